"""How and when runner pods are run, retried and given up."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from inferbench_operator.models.base import ApiModel, Decimals

MAX_HISTORY = 50
"""Most earlier runs, and earlier measurements of a cell, that are kept."""


class OnSuspend(StrEnum):
    """What becomes of Jobs that run when a benchmark is suspended."""

    FINISH = "Finish"
    STOP = "Stop"


class ExecutionPolicy(ApiModel):
    """How the runner pods are run, retried and given up."""

    max_parallel_jobs: Annotated[int, Field(ge=1, le=256)] = Field(
        default=4, description="Most runner Jobs of this benchmark at the same time."
    )
    retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=1, description="How often cells whose runner failed are tried again, alone, in a new Job."
    )
    disruption_retries: Annotated[int, Field(ge=0, le=100)] = Field(
        default=5,
        description="How often cells whose pod the cluster took away (preemption, drain, spot interruption, lost node) "
        "are tried again; such attempts don't count as retries.",
    )
    on_suspend: OnSuspend = Field(
        default=OnSuspend.FINISH,
        description="What suspend does to Jobs that run: Finish lets them end, Stop removes them, and their cells are "
        "measured again when the benchmark is resumed.",
    )
    exclusive_node: bool = Field(
        default=True,
        description="Whether a runner shares its node with no other runner: it takes all devices, and no two runners "
        "are placed on one node.",
    )
    scheduling_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = Field(
        default=1800, description="Longest time that a pod may wait for a node, in seconds."
    )
    start_deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=900, description="Longest time from being scheduled to running (image pull, volumes), in seconds."
    )
    compile_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = Field(
        default=1800,
        description="Longest time to compile the graph of one cell, in seconds. It counts towards "
        "measureDeadlineSeconds too.",
    )
    measure_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = Field(
        default=3600, description="Longest time that a runner may run, in seconds."
    )
    deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = Field(
        default=None,
        description="Longest time of a whole run, in seconds, without the time that it is suspended. What is not "
        "measured by then has failed.",
    )
    max_cost_usd: Decimals | None = Field(
        default=None,
        alias="maxCostUSD",
        description="Most that one run may cost, in US dollars, a decimal string: no Job is started that could take "
        "it further, should it use up startDeadlineSeconds and measureDeadlineSeconds. A pod costs the on-demand "
        "price of its whole node, the dearest of its instance types, from being scheduled to its end; every "
        "accelerator must have a price. Nobody watches the limit while no operator runs.",
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=604_800)] = Field(
        default=3600,
        description="How long Jobs and pods are kept after the run has finished, in seconds. Never removes results.",
    )


class History(ApiModel):
    """What is kept of earlier runs."""

    runs: Annotated[int, Field(ge=0, le=MAX_HISTORY)] = Field(
        default=10,
        description="How many earlier runs status.history keeps, and how many earlier measurements each result does.",
    )


class Schedule(ApiModel):
    """When the whole matrix is measured again."""

    cron: Annotated[
        str, StringConstraints(min_length=9, max_length=128, pattern=r"^[0-9A-Za-z*/,#?-]+( [0-9A-Za-z*/,#?-]+){4}$")
    ] = Field(description="Cron expression of five fields: minute, hour, day of the month, month, day of the week.")
    time_zone: Annotated[
        str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$")
    ] = Field(default="Etc/UTC", description="Name of the time zone that the expression is in, such as Europe/Berlin.")
