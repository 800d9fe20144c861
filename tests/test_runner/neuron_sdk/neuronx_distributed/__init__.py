"""Stands in for neuronx-distributed, which optimum-neuron imports and doesn't use on one core."""

from neuronx_distributed import parallel_layers, trace

__all__ = ["parallel_layers", "trace"]
