"""How cells are measured: the part of the specification that reaches the runner as it is.

Bounds and defaults are those of the runner's contract; a test holds the two against each other, field by field.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from inferbench_operator.models.base import ApiModel, rule, schema_extra
from inferbench_runner.contract import MIN_ARRIVALS, Arrivals, LoadMode, Profile


class Load(ApiModel):
    """How calls follow each other."""

    model_config = ConfigDict(
        json_schema_extra=schema_extra(
            validations=[
                rule(
                    "self.mode != 'Open' || has(self.ratePerSecond)",
                    "mode: Open needs ratePerSecond, the number of calls to start per second; give it, or leave mode "
                    "at Closed.",
                    field_path=".ratePerSecond",
                ),
                rule(
                    "self.mode != 'Closed' || (!has(self.arrivals) && !has(self.ratePerSecond))",
                    "arrivals and ratePerSecond belong to mode: Open, and mode is Closed unless it is given; set mode: "
                    "Open, or leave them out.",
                    field_path=".mode",
                ),
            ]
        )
    )

    mode: LoadMode = Field(
        default=LoadMode.CLOSED,
        description="Closed: a call starts when the one before it has ended, and the latency is the service time. "
        "Open: calls start on a schedule that waits for nobody, and the latency counts from the intended start, as a "
        "user sees it.",
    )
    concurrency: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="Calls in flight at the same time; with mode: Open, the most."
    )
    arrivals: Arrivals | None = Field(
        default=None,
        description="How the intended starts follow each other, with mode: Open only. Poisson: at random, as calls of "
        "independent users do. Constant: at equal distances. Default: Poisson.",
    )
    rate_per_second: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None,
        description="Calls to start per second, with mode: Open only, and required there. One call has batchSize "
        "inputs.",
    )


_MIN_SAMPLES: Final = 1000
_MIN_SECONDS: Final = 10
_MAX_SECONDS: Final = 300
_TARGET: Final = 2
_PROCESSES: Final = 3

# The API server has filled in the defaults by then, so a field that was left out is one that has its default.
_LEFT_TO_THE_PROFILE: Final = " && ".join(
    [
        f"self.minSamples == {_MIN_SAMPLES}",
        f"self.minSeconds == {_MIN_SECONDS}",
        f"self.targetHalfWidthPercent == {_TARGET}",
        f"self.processes == {_PROCESSES}",
        "self.load.mode == 'Closed'",
        "self.load.concurrency == 1",
    ]
)


class Measurement(ApiModel):
    """How each cell is measured: until the minima and the target are met, or the maximum time is up."""

    model_config = ConfigDict(
        json_schema_extra=schema_extra(
            validations=[
                rule(
                    f"self.profile != 'Legacy2023' || ({_LEFT_TO_THE_PROFILE})",
                    "profile Legacy2023 measures 100 calls in one process; leave minSamples, minSeconds, "
                    "targetHalfWidthPercent, processes and load out, or set profile: Sound.",
                    field_path=".profile",
                ),
                rule(
                    "self.profile == 'Legacy2023' || self.minSeconds <= self.maxSeconds",
                    f"minSeconds must not exceed maxSeconds, which is {_MAX_SECONDS} unless it is given; lower the one "
                    "or raise the other.",
                    field_path=".minSeconds",
                ),
                rule(
                    f"!has(self.load.ratePerSecond) || self.load.ratePerSecond * self.maxSeconds >= {MIN_ARRIVALS}",
                    f"load.ratePerSecond times maxSeconds must be {MIN_ARRIVALS} or more, or there are too few calls "
                    "to tell a p95; raise one of them.",
                    field_path=".load.ratePerSecond",
                ),
            ]
        )
    )

    profile: Profile = Field(
        default=Profile.SOUND,
        description="Method of measuring. Sound: in several processes and many rounds, until the p95 is known as "
        "precisely as targetHalfWidthPercent asks for. Legacy2023: 10 warm-up calls and 100 timed ones in one process, "
        "as a study published in 2023 did, to compare with its figures; of the other fields it takes maxSeconds only, "
        "and its results carry the caveat LegacyMethod.",
    )
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=_MIN_SAMPLES,
        description="Fewest calls to time per cell, over all processes. Below 130 a p95 is marked Inconclusive.",
    )
    min_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=_MIN_SECONDS, description="Shortest time to measure each cell, over all processes, in seconds."
    )
    max_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=_MAX_SECONDS,
        description="Longest time to measure each cell, over all processes, in seconds, whatever the minima and the "
        "target say.",
    )
    target_half_width_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        default=_TARGET,
        description="How precisely to measure: half the width of the 95 % confidence interval of the p95, in percent "
        "of the p95. A cell that has not reached it after maxSeconds is marked Inconclusive.",
    )
    processes: Annotated[int, Field(ge=1, le=32)] = Field(
        default=_PROCESSES,
        description="Number of fresh processes, one after the other, that share the samples of each cell; what differs "
        "from one start of a program to the next is part of the figures that way.",
    )
    load: Load = Field(default_factory=Load, description="How calls follow each other.")
