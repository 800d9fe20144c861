"""The closed list of doubts: when each applies, what it says, and what it does to the verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferbench_runner.caveats import EFFECTS, Circumstances, judge
from inferbench_runner.contract import (
    MAX_COMPACT_CAVEATS,
    Caveat,
    CellCaveat,
    CompactReport,
    FullReport,
    Measurement,
    Verdict,
)
from inferbench_runner.interval import Percentile
from inferbench_runner.noise import Counters
from inferbench_runner.summary import Distribution
from inferbench_runner.usage import Usage
from test_runner.builders import MS, SPOTLESS, Latencies, Stage, circumstances, distribution, plan, scripted_run, steady

SECOND = 1000 * MS
QUIET = Counters(available_ns=100 * SECOND, own_ns=100 * SECOND, busy_ns=100 * SECOND)
OPEN = Measurement.model_validate({"load": {"mode": "Open", "ratePerSecond": 100}})
FOUR = Measurement.model_validate({"load": {"concurrency": 4}})


@dataclass(frozen=True)
class Case:
    """What is changed in spotless figures and circumstances."""

    figures: dict[str, Any]
    circumstances: dict[str, Any]

    def judged(self) -> tuple[Verdict, tuple[CellCaveat, ...]]:
        """Return the verdict and the caveats."""
        return judge(replace(SPOTLESS, **self.figures), circumstances(**self.circumstances))


def seen(**figures: Any) -> Case:  # noqa: ANN401  # passed through
    """Return a case with other figures."""
    return Case(figures, {})


def under(**fields: Any) -> Case:  # noqa: ANN401  # passed through
    """Return a case with other circumstances."""
    return Case({}, fields)


def counted(**fields: int | None) -> Case:
    """Return a case with other counters of the kernel, over 100 s of one processor that the process has to itself."""
    return Case({"counters": replace(QUIET, **fields), "measured_ns": 100 * SECOND}, {})


def test_spotless_figures_leave_no_doubt() -> None:
    """The figures that the rows below change have nothing to be said against."""
    assert judge(SPOTLESS, circumstances()) == (Verdict.VALID, ())


@pytest.mark.parametrize(
    ("caveat", "within", "beyond"),
    [
        pytest.param(
            Caveat.TOO_FEW_SAMPLES,
            Case({"call": distribution(count=130)}, {"measurement": Measurement(min_samples=130)}),
            Case({"call": distribution(count=129)}, {"measurement": Measurement(min_samples=129)}),
            id="a p95 needs 130 samples",
        ),
        pytest.param(
            Caveat.TOO_FEW_SAMPLES,
            seen(call=distribution(count=1000)),
            seen(call=distribution(count=999)),
            id="as many as were asked for are needed as well",
        ),
        pytest.param(
            Caveat.TARGET_MISSED,
            seen(call=distribution(half_width=0.02)),
            seen(call=distribution(half_width=0.0201)),
            id="the interval's half width may be the target, 2 % by default, and no more",
        ),
        pytest.param(
            Caveat.TARGET_MISSED,
            Case({"call": distribution(half_width=0.1)}, {"measurement": Measurement(target_half_width_percent=10)}),
            Case({"call": distribution(half_width=0.1)}, {"measurement": Measurement(target_half_width_percent=9)}),
            id="another target is another limit",
        ),
        pytest.param(
            Caveat.TARGET_MISSED,
            seen(),
            seen(call=replace(SPOTLESS.call, p95=replace(SPOTLESS.call.p95, low=None, high=None))),
            id="no interval at all misses any target",
        ),
        pytest.param(
            Caveat.FEWER_PROCESSES,
            under(processes=3),
            under(processes=2),
            id="all processes that were asked for must have done their share",
        ),
        pytest.param(
            Caveat.PROCESSES_DISAGREE,
            seen(process_p95=(11 * MS, 12 * MS, 13 * MS)),
            seen(process_p95=(11 * MS, 12 * MS, 13 * MS), processes_disagree=True),
            id="processes differ by more than their noise",
        ),
        pytest.param(Caveat.DRIFT, seen(drift=0.049), seen(drift=0.05), id="a rise by 5 % is a drift"),
        pytest.param(Caveat.DRIFT, seen(drift=-0.049), seen(drift=-0.05), id="a fall by 5 % is one too"),
        pytest.param(Caveat.SECOND_MODE, seen(gap=0.0), seen(gap=0.05), id="a gap at the p95 is a second mode"),
        pytest.param(
            Caveat.CPU_STEAL,
            counted(steal_ns=1990 * MS),
            counted(steal_ns=2000 * MS),
            id="stolen time counts from 2 % on",
        ),
        pytest.param(
            Caveat.NEIGHBOURS,
            counted(busy_ns=100 * SECOND, own_ns=95_010 * MS),
            counted(busy_ns=100 * SECOND, own_ns=95_000 * MS),
            id="other processes count from 5 % of the processors' time on",
        ),
        pytest.param(
            Caveat.CONTEXT_SWITCHES,
            counted(switches=4999),
            counted(switches=5000),
            id="involuntary switches count from 50 per second of processor time on",
        ),
        pytest.param(
            Caveat.THROTTLING,
            counted(throttled_ns=1000 * MS),
            counted(throttled_ns=1001 * MS),
            id="a quota may hold the process back for 1 % of the time",
        ),
        pytest.param(Caveat.THROTTLING, counted(thermal=0), counted(thermal=1), id="heat must not slow it down once"),
        pytest.param(
            Caveat.LAUNCH_BOUND,
            seen(device=distribution(MS // 2)),
            seen(device=distribution(MS // 2 - 1)),
            id="the device should work for half of the call",
        ),
        pytest.param(
            Caveat.CLOCK_RESOLUTION,
            under(step_ns=MS // 10),
            under(step_ns=MS // 10 + 1),
            id="a median call should take a hundred steps of the clock",
        ),
        pytest.param(
            Caveat.WARMUP_UNSETTLED,
            seen(warmups_settled=True),
            seen(warmups_settled=False),
            id="no trend may be left after the warm-up",
        ),
        pytest.param(
            Caveat.NOT_INTERLEAVED,
            under(interleaved=True),
            under(interleaved=False),
            id="shapes should be measured by turns",
        ),
        pytest.param(
            Caveat.RATE_MISSED,
            Case({"achieved": 0.99, "in_flight": 7.0}, {"measurement": OPEN}),
            Case({"achieved": 0.9899, "in_flight": 7.0}, {"measurement": OPEN}),
            id="99 % of the rate must be reached in an open loop, where any number may be in flight",
        ),
        pytest.param(
            Caveat.CONCURRENCY_MISSED,
            seen(in_flight=0.951),
            seen(in_flight=0.949),
            id="throughput times latency may fall 5 % short of the one call in flight",
        ),
        pytest.param(
            Caveat.CONCURRENCY_MISSED,
            Case({"in_flight": 4.19}, {"measurement": FOUR}),
            Case({"in_flight": 4.21}, {"measurement": FOUR}),
            id="or exceed the four in flight by as much",
        ),
        pytest.param(
            Caveat.LEGACY_METHOD,
            under(measurement=Measurement()),
            under(measurement=Measurement.model_validate({"profile": "Legacy2023"}), processes=1),
            id="the published method is no sound one",
        ),
    ],
)
def test_thresholds(caveat: Caveat, within: Case, beyond: Case) -> None:
    """Just within the threshold there is no doubt at all; just beyond it there is this one, with its verdict."""
    assert within.judged() == (Verdict.VALID, ())
    verdict, found = beyond.judged()
    assert [doubt.caveat for doubt in found] == [caveat]
    assert verdict is EFFECTS[caveat]


def test_the_published_method_asks_for_one_process_and_no_width() -> None:
    """Whatever the plan says about processes and target, that method has neither; without a process it has less."""
    legacy = Measurement.model_validate({"profile": "Legacy2023", "processes": 3})
    figures = {"call": distribution(count=130, half_width=0.5)}
    _, found = Case(figures, {"measurement": legacy, "processes": 1}).judged()
    assert [doubt.caveat for doubt in found] == [Caveat.LEGACY_METHOD]
    _, found = Case(figures, {"measurement": legacy, "processes": 0}).judged()
    assert {doubt.caveat for doubt in found} == {Caveat.LEGACY_METHOD, Caveat.FEWER_PROCESSES}


def test_what_the_kernel_does_not_tell_is_no_doubt() -> None:
    """A machine without counters is not a noisy one."""
    assert seen(counters=Counters(1, 1, None, None, None, None, None)).judged() == (Verdict.VALID, ())


def test_host_and_device_give_each_doubt_once() -> None:
    """Where both are slowed down, or both are shared, the device's words count."""
    both = seen(
        counters=replace(QUIET, throttled_ns=50 * SECOND, own_ns=50 * SECOND),
        usage=Usage(throttled=frozenset({"HwThermalSlowdown"}), neighbours=1),
    )
    _, found = both.judged()
    assert [doubt.caveat for doubt in found] == [Caveat.THROTTLING, Caveat.NEIGHBOURS]
    assert "HwThermalSlowdown" in found[0].message
    assert "other processes: 1" in found[1].message


def test_a_device_that_has_nothing_to_tell_leaves_no_doubt() -> None:
    """Energy and clocks are figures, and no reason to doubt."""
    quiet = seen(usage=Usage(energy_millijoules=5, lowest_megahertz=1, highest_megahertz=2, neighbours=0))
    assert quiet.judged() == (Verdict.VALID, ())


EVERYTHING: dict[Caveat, Case] = {
    Caveat.TOO_FEW_SAMPLES: seen(call=distribution(count=129)),
    Caveat.TARGET_MISSED: seen(call=distribution(half_width=0.5)),
    Caveat.FEWER_PROCESSES: under(processes=0),
    Caveat.PROCESSES_DISAGREE: seen(process_p95=(11 * MS, 12 * MS, 13 * MS), processes_disagree=True),
    Caveat.DRIFT: seen(drift=0.2),
    Caveat.SECOND_MODE: seen(gap=0.5),
    Caveat.CPU_STEAL: seen(counters=replace(QUIET, steal_ns=50 * SECOND)),
    Caveat.NEIGHBOURS: seen(counters=replace(QUIET, own_ns=50 * SECOND)),
    Caveat.CONTEXT_SWITCHES: seen(counters=replace(QUIET, switches=10**6)),
    Caveat.THROTTLING: seen(counters=replace(QUIET, throttled_ns=50 * SECOND)),
    Caveat.LAUNCH_BOUND: seen(device=distribution(1)),
    Caveat.CLOCK_RESOLUTION: under(step_ns=MS),
    Caveat.WARMUP_UNSETTLED: seen(warmups_settled=False),
    Caveat.NOT_INTERLEAVED: under(interleaved=False),
    Caveat.RATE_MISSED: Case({"achieved": 0.5}, {"measurement": OPEN}),
    Caveat.CONCURRENCY_MISSED: seen(in_flight=0.5),
    Caveat.RECOMPILED: seen(usage=Usage(recompilations=1)),
    Caveat.LEGACY_METHOD: under(measurement=Measurement.model_validate({"profile": "Legacy2023"})),
}
"""A case of each caveat."""

GRAVITY = [Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.NOISY, Verdict.VALID]


def test_every_caveat_has_an_effect_and_can_be_reached() -> None:
    """The list is closed and has no dead entry: each one applies in some case, and each has its verdict."""
    assert set(EFFECTS) == set(EVERYTHING) == set(Caveat)
    for caveat, case in EVERYTHING.items():
        assert caveat in [doubt.caveat for doubt in case.judged()[1]]


def test_effects_are_listed_by_gravity() -> None:
    """What makes a number invalid comes first, then what makes it inconclusive, noisy, and what only informs."""
    order = [GRAVITY.index(effect) for effect in EFFECTS.values()]
    assert order == sorted(order)
    assert set(EFFECTS.values()) == set(GRAVITY)


def test_two_doubts_come_gravest_first_with_the_graver_verdict() -> None:
    """Of any two that can be had together, both are found, in the order of gravity, and the graver one decides."""
    pairs = 0
    for (first, one), (second, two) in combinations(EVERYTHING.items(), 2):
        overlap = set(one.figures) & set(two.figures) | set(one.circumstances) & set(two.circumstances)
        without = {Caveat.TARGET_MISSED, Caveat.FEWER_PROCESSES} if Caveat.LEGACY_METHOD in {first, second} else set()
        open_loop = {first, second} == {Caveat.RATE_MISSED, Caveat.CONCURRENCY_MISSED}
        if overlap or {first, second} & without or open_loop:
            continue
        pairs += 1
        verdict, found = Case(one.figures | two.figures, one.circumstances | two.circumstances).judged()
        names = [doubt.caveat for doubt in found]
        gravities = [GRAVITY.index(EFFECTS[name]) for name in names]
        assert {first, second} <= set(names)
        assert gravities == sorted(gravities)
        assert verdict is GRAVITY[gravities[0]]
    assert pairs > 100


WAY_OUT = re.compile(
    r"\b(raise|lower|use|set|pin|remove|cool|give|find|compare|let|see|repeat|accept|quieten|measure again)\b"
)


@pytest.mark.parametrize("caveat", list(Caveat))
def test_messages_name_a_figure_and_a_way_out(caveat: Caveat) -> None:
    """A doubt says what was seen, with its figure where there is one, and what to do about it, in one or two lines."""
    _, found = EVERYTHING[caveat].judged()
    message = next(doubt.message for doubt in found if doubt.caveat is caveat)
    assert len(message) <= 320
    assert re.search(r"\d", message) or caveat is Caveat.NOT_INTERLEAVED
    seen_part, _, advice = message.partition(";")
    assert seen_part
    assert WAY_OUT.search(advice)
    assert message.endswith(".")


DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("call", "relative"),
    [
        pytest.param(distribution(1, 1, half_width=0.5), -1e6, id="one call of a few nanoseconds"),
        pytest.param(distribution(DAY // 20, 129, half_width=1e6), 1e6, id="calls that take all day"),
        pytest.param(replace(distribution(DAY // 20, 129), p95=Percentile(1, None, None, 129)), 1e6, id="no interval"),
    ],
)
@pytest.mark.parametrize(
    ("profile", "load"),
    [
        ("Sound", {"concurrency": 256}),
        ("Sound", {"mode": "Open", "ratePerSecond": 1_000_000}),
        ("Legacy2023", {}),
    ],
)
def test_messages_fit_whatever_the_figures(
    call: Distribution, relative: float, load: dict[str, Any], profile: str
) -> None:
    """With the most extreme figures every doubt there can be fits into the contract, and none is lost."""
    figures = replace(
        SPOTLESS,
        call=call,
        device=distribution(0),
        process_p95=(1, DAY),
        processes_disagree=True,
        drift=relative,
        gap=1e6,
        in_flight=1e9,
        achieved=0.0,
        warmup_calls=10**9,
        warmups_settled=False,
        counters=Counters(10**9, 10**9, 10**8, 10**15, 10**15, 10**17, 10**9),
        usage=Usage(
            throttled=frozenset({"HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "SwThermalSlowdown"}),
            neighbours=10**9,
            sharing=frozenset({"MIG", "MPS", "time slices"}),
            recompilations=10**9,
        ),
    )
    measurement = Measurement.model_validate({"load": load, "profile": profile, "processes": 32})
    _, found = judge(figures, Circumstances(measurement, processes=0, interleaved=False, step_ns=DAY))
    assert all(len(doubt.message) <= 320 for doubt in found)
    left_out = {Caveat.CONCURRENCY_MISSED if load.get("mode") else Caveat.RATE_MISSED}
    left_out |= {Caveat.LEGACY_METHOD} if profile == "Sound" else {Caveat.TARGET_MISSED}
    assert {doubt.caveat for doubt in found} == set(Caveat) - left_out


def last(outcome_path: Path) -> CompactReport:
    """Return the termination message."""
    return CompactReport.model_validate_json(outcome_path.read_bytes())


def measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    latencies: Latencies,
    stage: Stage | None = None,
    **fields: int,
) -> tuple[Verdict, list[Caveat], CompactReport, FullReport]:
    """Run a plan with the default measurement and scripted latencies; return verdict, caveats and reports."""
    wanted = plan(measurement={"minSamples": 1000, "minSeconds": 10, "maxSeconds": 300} | fields)
    stage = stage or Stage()
    stage.latencies = latencies
    outcome = scripted_run(tmp_path, wanted, stage, monkeypatch)
    outcome.run.carry_out()
    compact, full = last(outcome.path), outcome.run.to_full()
    caveats = [doubt.caveat for doubt in full.cells[0].caveats]
    assert compact.measured[0].caveats == tuple(caveats[:MAX_COMPACT_CAVEATS])
    return compact.measured[0].verdict, caveats, compact, full


def test_a_quiet_host_gives_a_valid_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent latencies with little noise: no doubt, after little more than the fewest samples."""
    verdict, caveats, compact, _ = measured(tmp_path, monkeypatch, steady(relative=0.01))
    assert (verdict, caveats) == (Verdict.VALID, [])
    assert 1000 <= compact.measured[0].samples < 1500


def test_a_second_mode_at_the_p95(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call in twenty is three times slower: the time runs out, and the report says why more won't help."""
    generator = np.random.default_rng(2)

    def latencies(_index: int, calls: int) -> Sequence[int]:
        slow = np.where(generator.random(calls) < 0.05, 3, 1)
        return [int(value) for value in 10 * MS * slow * (1 + 0.01 * generator.standard_normal(calls))]

    verdict, caveats, _, full = measured(tmp_path, monkeypatch, latencies)
    assert verdict is Verdict.INCONCLUSIVE
    assert set(caveats) == {Caveat.TARGET_MISSED, Caveat.SECOND_MODE}
    assert full.cells[0].measure_milliseconds >= 290_000


@pytest.mark.parametrize("target", [2, 30])
def test_a_drift_of_a_tenth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: int) -> None:
    """The latency rises all the time, by a tenth in 300 s: the rise is named with its size, whatever the target."""
    generator, stage = np.random.default_rng(3), Stage()
    begun = stage.clock.now

    def latencies(_index: int, calls: int) -> Sequence[int]:
        level = 10 * MS * (1 + 0.1 * (stage.clock.now - begun) / (300 * SECOND))
        return [int(value) for value in level * (1 + 0.005 * generator.standard_normal(calls))]

    verdict, caveats, _, full = measured(tmp_path, monkeypatch, latencies, stage, targetHalfWidthPercent=target)
    assert verdict in {Verdict.INCONCLUSIVE, Verdict.NOISY}
    assert Caveat.DRIFT in caveats
    message = next(doubt.message for doubt in full.cells[0].caveats if doubt.caveat is Caveat.DRIFT)
    told = re.search(r"\+([\d.]+)%", message)
    assert told
    assert float(told[1]) == pytest.approx(10 * (stage.clock.now - begun) / (300 * SECOND), rel=0.15)


def test_a_single_stall_is_shown_and_not_held_against_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 ms once in a thousand calls: the maximum has it, the p95 doesn't, and the number is valid."""
    quiet, calls_so_far = steady(relative=0.01), 0

    def latencies(index: int, calls: int) -> Sequence[int]:
        nonlocal calls_so_far
        found = list(quiet(index, calls))
        if calls_so_far <= 500 < calls_so_far + calls:
            found[500 - calls_so_far] = 300 * MS
        calls_so_far += calls
        return found

    verdict, caveats, compact, _ = measured(tmp_path, monkeypatch, latencies)
    assert (verdict, caveats) == (Verdict.VALID, [])
    assert compact.measured[0].max_microseconds == 300_000
    assert compact.measured[0].p99_microseconds < 11_000
