"""Stands in for libneuronxla, whose cache optimum-neuron imports, and is told not to use."""
