"""Stands in for neuronx_distributed.parallel_layers.parallel_state."""
