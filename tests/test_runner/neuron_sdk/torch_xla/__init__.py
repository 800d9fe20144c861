"""Stands in for torch-xla, which optimum-neuron imports and doesn't use for encoders."""

__version__ = "2.8.0"
