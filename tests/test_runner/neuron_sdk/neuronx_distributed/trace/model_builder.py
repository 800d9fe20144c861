"""Stands in for neuronx_distributed.trace.model_builder: classes that no encoder is an instance of."""


class BaseModelInstance:
    pass


class ModelBuilder:
    pass
