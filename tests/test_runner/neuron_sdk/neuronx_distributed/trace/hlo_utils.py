"""Stands in for neuronx_distributed.trace.hlo_utils."""
