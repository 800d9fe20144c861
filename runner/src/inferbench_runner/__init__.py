"""Measures one model on one device and reports; knows nothing of Kubernetes."""
