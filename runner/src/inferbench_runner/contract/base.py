"""What all messages have in common: how they are written, and the numbers that bound them."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

PLAN_VARIABLE: Final = "INFERBENCH_PLAN"
"""Environment variable that holds the plan's JSON in a runner pod."""

CACHE_VARIABLE: Final = "INFERBENCH_CACHE"
"""Environment variable that names the folder in which compiled graphs are kept, such as a mounted volume's."""

TERMINATION_PATH_VARIABLE: Final = "INFERBENCH_TERMINATION_MESSAGE_PATH"
"""Environment variable that names the termination message file where it is not the kubelet's default."""

DEFAULT_TERMINATION_PATH: Final = "/dev/termination-log"

COMPACT_REPORT_BYTES: Final = 4096
"""The kubelet cuts a container's termination message at this size."""

FULL_REPORT_BYTES: Final = 256 * 1024
"""Longest log line that is accepted as a full report."""

REPORT_MARK: Final = "INFERBENCH-REPORT "
"""Prefix of the one log line that carries the full report."""

INVALID_PLAN_EXIT_CODE: Final = 2
"""Exit code of a runner that can't make sense of its plan."""

DEADLINE_EXIT_CODE: Final = 124
"""Exit code of a runner whose plan's deadline has passed; the same as of timeout(1)."""

MAX_SHAPES: Final = 8
"""Most shapes in one plan: eight entries of the compact report fit into a termination message."""

MIN_ARRIVALS: Final = 400
"""Fewest arrivals of an open loop: ten in each of forty rounds."""

MAX_COMPACT_CAVEATS: Final = 4
"""Most caveats of one cell in the compact report."""

MIN_SAMPLES_FOR_P95: Final = 130
"""Fewest samples behind a p95 that counts as more than a hint (MLPerf's early-stopping floor at 99 %)."""

CellHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{10}$")]
Microseconds = Annotated[int, Field(ge=0, le=86_400_000_000)]


class Contract(BaseModel):
    """Base of all messages: camelCase on the wire, immutable, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )
