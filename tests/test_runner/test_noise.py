"""The kernel's counters, read from made-up file trees, and what a report makes of them."""

from __future__ import annotations

import os
import resource
from dataclasses import astuple
from pathlib import Path

import pytest

from inferbench_runner import noise
from inferbench_runner.contract import Noise
from inferbench_runner.noise import Counters, read_counters
from test_runner.builders import MS, tree

SECOND = 1000 * MS
TICK = SECOND // os.sysconf("SC_CLK_TCK")

STAT = """\
cpu  9999 9999 9999 9999 9999 9999 9999 9999 9999 9999
cpu0 100 20 30 1000 500 4 3 7 50 6
cpu1 9000 9000 9000 9000 9000 9000 9000 9000 0 0
cpu2 200 0 40 2000 0 0 5 13 0 0
intr 12345 0 0
ctxt 123456789
"""
"""Columns are user, nice, system, idle, waiting, interrupts, soft interrupts, stolen, guest; processor 1 isn't ours."""


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test may use processors 0 and 2, at a time when the clock shows 100 s and the process has used 3 s."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    monkeypatch.setattr(noise, "now_ns", lambda: 100 * SECOND)
    monkeypatch.setattr(noise, "cpu_ns", lambda: 3 * SECOND)


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    """Without a single file only the process's own figures are known; the rest is absent, not zero."""
    found = read_counters(tmp_path)
    assert (found.available_ns, found.own_ns) == (200 * SECOND, 3 * SECOND)
    assert found.switches is not None
    assert (found.busy_ns, found.steal_ns, found.throttled_ns, found.thermal) == (None, None, None, None)
    assert found.to_noise().model_dump(exclude={"involuntary_switches_per_second"}, exclude_none=True) == {}


def test_busy_and_stolen_time_are_those_of_the_processors_that_may_be_used(tmp_path: Path) -> None:
    """Busy is all but idling and waiting; guests are part of user time already; stolen time is nobody's work here."""
    found = read_counters(tree(tmp_path, {"proc/stat": STAT}))
    assert found.busy_ns == (100 + 20 + 30 + 4 + 3 + 200 + 40 + 5) * TICK
    assert found.steal_ns == (7 + 13) * TICK


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="an empty file"),
        pytest.param("cpu0 1 2 3 4\n", id="an old kernel that counts no stolen time"),
        pytest.param("cpu1 1 2 3 4 5 6 7 8\n", id="only processors that may not be used"),
        pytest.param("cpufreq 1 2 3 4 5 6 7 8\n", id="another word"),
    ],
)
def test_a_file_without_the_processors_tells_nothing(tmp_path: Path, text: str) -> None:
    """What is not there is unknown."""
    found = read_counters(tree(tmp_path, {"proc/stat": text}))
    assert (found.busy_ns, found.steal_ns) == (None, None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 1500\n",
            },
            1_500_000,
            id="version 2 counts microseconds",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "1:cpu,cpuacct:/pod\n",
                "sys/fs/cgroup/cpu/pod/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 1500\n",
            },
            1500,
            id="version 1 counts nanoseconds",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/outer/inner\n",
                "sys/fs/cgroup/outer/inner/cpu.stat": "throttled_usec 1\n",
                "sys/fs/cgroup/outer/cpu.stat": "throttled_usec 20\n",
            },
            21_000,
            id="each group around the process may hold it back",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": "usage_usec 5\n"},
            None,
            id="a group without a quota's controller tells nothing",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": "throttled_usec never\n"},
            None,
            id="nonsense tells nothing",
        ),
    ],
)
def test_throttling(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    """The time for which quotas held the process back is in nanoseconds, whatever the kernel's unit."""
    assert read_counters(tree(tmp_path, files)).throttled_ns == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param({0: "3\n", 1: "50\n", 2: "4\n"}, 7, id="those of the processors that may be used"),
        pytest.param({2: "4\n"}, 4, id="of one processor, where the other one tells nothing"),
        pytest.param({0: "0\n", 2: "0\n"}, 0, id="a cool machine"),
        pytest.param({0: "hot\n"}, None, id="nonsense"),
        pytest.param({}, None, id="a virtual machine has no such files"),
    ],
)
def test_heat(tmp_path: Path, counts: dict[int, str], expected: int | None) -> None:
    """Slow-downs because of heat are summed over the processors."""
    files = {
        f"sys/devices/system/cpu/cpu{number}/thermal_throttle/core_throttle_count": text
        for number, text in counts.items()
    }
    assert read_counters(tree(tmp_path, files)).thermal == expected


def test_this_machine_can_be_read() -> None:
    """The kernel's own files parse, and the process's own figures are the kernel's."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    found = read_counters()
    assert found.switches is not None
    assert before <= found.switches <= resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def test_spans_add_up_and_readings_are_subtracted() -> None:
    """A span is a reading minus the one before; spans are summed, and what one of them lacks the sum lacks too."""
    before, after = Counters(1, 2, 3, 4, 5, None, 7), Counters(10, 20, 30, 40, 50, 60, 70)
    assert after - before == Counters(9, 18, 27, 36, 45, None, 63)
    assert after + after == Counters(20, 40, 60, 80, 100, 120, 140)
    assert sum([after, before, after], Counters()) == Counters(21, 42, 63, 84, 105, None, 147)
    assert set(astuple(Counters())) == {0}


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        pytest.param(
            Counters(
                available_ns=200 * SECOND,
                own_ns=100 * SECOND,
                switches=1234,
                busy_ns=110 * SECOND,
                steal_ns=3 * SECOND,
                throttled_ns=1_000_001,
                thermal=2,
            ),
            Noise(
                steal_percent="1.50",
                neighbours_percent="5.00",
                involuntary_switches_per_second="12.34",
                throttled_milliseconds=2,
                thermal_throttles=2,
            ),
            id="shares are of the processors' time, switches of the process's own",
        ),
        pytest.param(
            Counters(available_ns=200 * SECOND, own_ns=100 * SECOND, busy_ns=99 * SECOND),
            Noise(
                steal_percent="0.00",
                neighbours_percent="0.00",
                involuntary_switches_per_second="0.00",
                throttled_milliseconds=0,
                thermal_throttles=0,
            ),
            id="the kernel's ticks are coarse: less than nothing is nothing",
        ),
        pytest.param(
            Counters(),
            Noise(throttled_milliseconds=0, thermal_throttles=0),
            id="of no time there are no shares",
        ),
        pytest.param(
            Counters(200 * SECOND, 100 * SECOND, None, None, None, None, None),
            Noise(),
            id="what the kernel does not tell is absent",
        ),
    ],
)
def test_figures_of_a_report(counters: Counters, expected: Noise) -> None:
    """Sums become percentages and rates with two decimals, and milliseconds that are rounded up."""
    assert counters.to_noise() == expected
