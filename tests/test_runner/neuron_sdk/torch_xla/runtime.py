"""Stands in for torch_xla.runtime."""
