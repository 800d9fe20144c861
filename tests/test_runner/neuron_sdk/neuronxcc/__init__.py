"""Stands in for the compiler's package: it has a version and nothing else."""

from importlib import metadata

__version__ = metadata.version("neuronx-cc")
