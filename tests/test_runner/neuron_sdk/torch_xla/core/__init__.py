"""Stands in for torch_xla.core."""
