"""Stands in for torch_xla.core.xla_model."""
