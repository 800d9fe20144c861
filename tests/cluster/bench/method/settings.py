"""How much is measured: enough for a quiet machine by default, little for a trial, as one variable says."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.errors import ClusterError
from inferbench_runner.contract import Measurement

VARIABLE: Final = "INFERBENCH_BENCH_METHOD"
"""Environment variable with some of the settings as JSON, such as {"rows": ["loop"], "layers": 1}."""

Count = Annotated[int, Field(ge=1)]


class Row(StrEnum):
    """What can be measured by itself."""

    LOOP = "loop"
    """Percentiles beside those of a loop written by hand."""
    COSTS = "costs"
    """Memory over that of the loop, and the supervisor's processor time."""
    OPTIMUM = "optimum"
    """Time to a result, and the result, beside optimum-benchmark's."""
    PYPERF = "pyperf"
    """The same beside pyperf's."""
    STUDY = "study"
    """Share of the time that is spent in timed calls, over the whole published study."""


class SettingsError(ClusterError):
    """The variable does not hold settings."""

    def __init__(self, error: ValidationError) -> None:
        """Say what is wrong with it."""
        super().__init__(f"${VARIABLE} is not valid: {error}")


class Settings(BaseModel):
    """What is measured and how often."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: tuple[Row, ...] = tuple(Row)
    layers: Count = 12
    """Layers of bert-base: fewer of them make a trial short. The study's models stay as they are."""
    loop_samples: dict[int, Count] = {8: 600, 128: 120, 512: 60}
    """By length, over all processes, in sixty rounds."""
    loop_processes: Count = 3
    loop_threads: tuple[Count, ...] = (1, 2)
    costs_length: Count = 128
    costs_samples: Count = 60
    peer_threads: Count = 2
    peer_pairs: Count = 2
    optimum_samples: dict[int, Count] = {8: 60, 128: 30}
    pyperf_samples: dict[int, Count] = {8: 60}
    """Over all processes: its way is to have several, and so has ours here."""
    pyperf_processes: Count = 3
    # One process: loading and warming up in each of three would take most of so short a time.
    study: Measurement = Measurement(min_samples=200, min_seconds=5, max_seconds=15, processes=1)
    study_models: tuple[str, ...] = ()
    """Names in the published study; none means all."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Return the defaults with the variable's settings over them.

        Raises:
            SettingsError: The variable names something that is no setting, or gives it a value that it can't have.
        """
        try:
            return cls.model_validate_json(environment.get(VARIABLE) or "{}")
        except ValidationError as error:
            raise SettingsError(error) from None
