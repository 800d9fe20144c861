"""What a device did: spans add up, and what it does not tell stays unknown."""

from __future__ import annotations

from inferbench_runner.contract import DeviceUse
from inferbench_runner.usage import Usage

FIRST = Usage(
    energy_millijoules=1500,
    lowest_megahertz=300,
    highest_megahertz=1700,
    throttled=frozenset({"SwPowerCap"}),
    neighbours=0,
    peak_memory_bytes=3 * 2**20,
    sharing=frozenset({"MIG"}),
    recompilations=1,
)
SECOND = Usage(
    energy_millijoules=500,
    lowest_megahertz=200,
    highest_megahertz=1600,
    throttled=frozenset({"HwThermalSlowdown"}),
    neighbours=2,
    peak_memory_bytes=2 * 2**20,
    recompilations=2,
    monitor_p50_microseconds=900,
    monitor_p99_microseconds=950,
)
THIRD = Usage(monitor_p50_microseconds=800, monitor_p99_microseconds=1000)


def test_spans_add_up() -> None:
    """Sums are added, extremes and lists joined."""
    assert (FIRST + SECOND).to_report() == DeviceUse(
        energy_joules="2.000",
        lowest_clock_megahertz=200,
        highest_clock_megahertz=1700,
        throttle_reasons=("HwThermalSlowdown", "SwPowerCap"),
        neighbours=2,
        peak_memory_mebibytes=3,
        sharing=("MIG",),
        recompilations=3,
        monitor_p50_microseconds=900,
        monitor_p99_microseconds=950,
    )


def test_percentiles_stay_those_that_are_known_first() -> None:
    """Two medians have no sum; both percentiles come from the same calls."""
    joined = FIRST + SECOND + THIRD
    assert (joined.monitor_p50_microseconds, joined.monitor_p99_microseconds) == (900, 950)


def test_what_one_span_lacks() -> None:
    """A sum with a part missing is no sum; an extreme is one of what was seen."""
    assert (FIRST + Usage()).to_report().energy_joules is None
    assert (FIRST + Usage()).highest_megahertz == 1700
    assert Usage().to_report() == DeviceUse()
