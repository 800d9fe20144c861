"""The closed list of doubts: when each applies, what it says, and what it does to the verdict. Pure.

Every threshold stands here once, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Final

from inferbench_runner.contract import MIN_SAMPLES_FOR_P95, Caveat, CellCaveat, LoadMode, Measurement, Profile, Verdict
from inferbench_runner.summary import Figures

EFFECTS: Final = {
    Caveat.RATE_MISSED: Verdict.INVALID,
    Caveat.CONCURRENCY_MISSED: Verdict.INVALID,
    Caveat.TOO_FEW_SAMPLES: Verdict.INCONCLUSIVE,
    Caveat.TARGET_MISSED: Verdict.INCONCLUSIVE,
    Caveat.FEWER_PROCESSES: Verdict.INCONCLUSIVE,
    Caveat.LEGACY_METHOD: Verdict.INCONCLUSIVE,
    Caveat.SECOND_MODE: Verdict.NOISY,
    Caveat.PROCESSES_DISAGREE: Verdict.NOISY,
    Caveat.DRIFT: Verdict.NOISY,
    Caveat.THROTTLING: Verdict.NOISY,
    Caveat.NEIGHBOURS: Verdict.NOISY,
    Caveat.CPU_STEAL: Verdict.NOISY,
    Caveat.CONTEXT_SWITCHES: Verdict.NOISY,
    Caveat.WARMUP_UNSETTLED: Verdict.VALID,
    Caveat.NOT_INTERLEAVED: Verdict.VALID,
    Caveat.LAUNCH_BOUND: Verdict.VALID,
    Caveat.CLOCK_RESOLUTION: Verdict.VALID,
}
"""What each caveat does to the verdict, gravest first: a number with too wide an interval is Inconclusive before it is
Noisy, because the interval already says how little is known."""

ORDER: Final = list(EFFECTS)

GRAVITY: Final = (Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.NOISY, Verdict.VALID)

LITTLE_TOLERANCE: Final = 0.05
"""Largest relative difference between throughput times latency and the calls in flight."""

RATE_SHARE: Final = 0.99
"""Smallest share of the asked rate that counts as kept."""

DISAGREEMENT: Final = 0.01
"""Smallest range of the processes' p95 that is worth a word, however sure it is."""

DRIFT: Final = 0.05
"""Smallest change over the whole run that is called a drift: less is within what hosts do from hour to hour."""

STEAL_PERCENT: Final = 2.0
"""Share of stolen time at which more than one call in twenty may be hit."""

NEIGHBOURS_PERCENT: Final = 5.0
"""Share of the processors' time that others may use: the kernel's own threads and the supervisor take 1 or 2."""

SWITCHES_PER_SECOND: Final = 50.0
"""Involuntary switches per second of processor time; a thread that has its processor alone sees a handful."""

THROTTLED: Final = 0.01
"""Share of the time for which a quota may hold the process back."""

LAUNCH_BOUND: Final = 0.5
"""Device time over call time below which the host is what was measured."""

CLOCK_STEPS: Final = 100
"""Steps of the clock that a call should take: fewer, and the step itself is a percent of the figure."""


@dataclass(frozen=True)
class Circumstances:
    """What the figures alone don't tell."""

    measurement: Measurement
    processes: int
    """Processes that finished their share."""
    interleaved: bool
    step_ns: int
    """Smallest step of the clock."""


def judge(figures: Figures, circumstances: Circumstances) -> tuple[Verdict, tuple[CellCaveat, ...]]:
    """Return the verdict and all caveats, gravest first."""
    found = [
        *_sampling(figures, circumstances),
        *_method(figures, circumstances),
        *_load(figures, circumstances),
        *_shape(figures),
        *_host(figures),
    ]
    found.sort(key=lambda doubt: ORDER.index(doubt.caveat))
    verdict = min((EFFECTS[doubt.caveat] for doubt in found), key=GRAVITY.index, default=Verdict.VALID)
    return verdict, tuple(found)


def _doubt(caveat: Caveat, message: str) -> CellCaveat:
    return CellCaveat(caveat=caveat, message=message)


def _sampling(figures: Figures, circumstances: Circumstances) -> Iterator[CellCaveat]:
    measurement, p95 = circumstances.measurement, figures.call.p95
    sound = measurement.profile is Profile.SOUND
    if figures.call.count < MIN_SAMPLES_FOR_P95:
        yield _doubt(
            Caveat.TOO_FEW_SAMPLES,
            f"{figures.call.count} samples, and a p95 needs {MIN_SAMPLES_FOR_P95}; raise measurement.maxSeconds or "
            "minSamples.",
        )
    elif sound and figures.call.count < measurement.min_samples:
        yield _doubt(
            Caveat.TOO_FEW_SAMPLES,
            f"{figures.call.count} samples within measurement.maxSeconds, and measurement.minSamples asks for "
            f"{measurement.min_samples}; raise the one or lower the other.",
        )
    target = measurement.target_half_width_percent
    if sound and not p95.half_width * 100 <= target:
        width = f"± {p95.half_width:.1%}" if isfinite(p95.half_width) else "not known at all"
        yield _doubt(
            Caveat.TARGET_MISSED,
            f"The p95 is {width} with {p95.effective} effectively independent samples of {figures.call.count}, not "
            f"± {target} %; raise measurement.maxSeconds, quieten the host, or accept a wider target.",
        )
    wanted = measurement.processes if sound else 1
    if circumstances.processes < wanted:
        yield _doubt(
            Caveat.FEWER_PROCESSES,
            f"{circumstances.processes} of {wanted} processes measured this; see why the others ended "
            "in the pod's log, and measure again.",
        )
    spread = (max(figures.process_p95) - min(figures.process_p95)) / max(figures.call.p95.value, 1)
    if figures.processes_disagree and spread >= DISAGREEMENT:
        yield _doubt(
            Caveat.PROCESSES_DISAGREE,
            f"The processes' own p95 differ by {spread:.1%}, more than their noise; memory placement or the host "
            "changes from one to the next: raise measurement.processes, or pin the pod to whole processors.",
        )


def _method(figures: Figures, circumstances: Circumstances) -> Iterator[CellCaveat]:
    if not figures.warmups_settled:
        yield _doubt(
            Caveat.WARMUP_UNSETTLED,
            f"The latency still fell or rose after {figures.warmup_calls} warm-up calls; raise measurement.minSamples, "
            "which lengthens the warm-up too.",
        )
    if not circumstances.interleaved:
        yield _doubt(
            Caveat.NOT_INTERLEAVED,
            "The device's memory doesn't hold all shapes at once, so they were measured one after the other, and a "
            "slow change of the host can look like one of length; use fewer shapes, or repeat the run.",
        )
    if circumstances.measurement.profile is Profile.LEGACY_2023:
        yield _doubt(
            Caveat.LEGACY_METHOD,
            "Measured as in 2023: 100 calls of one process, percentiles between two samples, autograd on, no "
            "synchronisation; use profile: Sound for a number to rely on.",
        )
    median = figures.call.p50.value
    if median < CLOCK_STEPS * circumstances.step_ns:
        yield _doubt(
            Caveat.CLOCK_RESOLUTION,
            f"The median call takes {median} ns and the clock moves in steps of {circumstances.step_ns} ns; use a "
            "larger batch or length.",
        )


def _load(figures: Figures, circumstances: Circumstances) -> Iterator[CellCaveat]:
    load = circumstances.measurement.load
    if load.mode is LoadMode.OPEN:
        if figures.achieved is not None and figures.achieved < RATE_SHARE:
            yield _doubt(
                Caveat.RATE_MISSED,
                f"{figures.achieved:.1%} of {load.rate_per_second} calls per second were reached, so the queue only "
                "grows; lower load.ratePerSecond or raise load.concurrency.",
            )
    elif abs(figures.in_flight / load.concurrency - 1) > LITTLE_TOLERANCE:
        yield _doubt(
            Caveat.CONCURRENCY_MISSED,
            f"Throughput times mean latency is {figures.in_flight:.2f} and should be {load.concurrency}: the calls "
            "were not all in flight; use a larger batch or length, or a lower load.concurrency.",
        )


def _shape(figures: Figures) -> Iterator[CellCaveat]:
    if abs(figures.drift) >= DRIFT:
        yield _doubt(
            Caveat.DRIFT,
            f"The latency changed by {figures.drift:+.1%} from the first round to the last; let the machine reach a "
            "steady temperature and load, and measure again.",
        )
    if figures.gap:
        yield _doubt(
            Caveat.SECOND_MODE,
            f"A gap of {figures.gap:.0%} lies at the p95, with calls on either side, so that more samples don't settle "
            "it; find what makes one call in twenty slow, or compare p50 and p99.",
        )
    device = figures.device
    if device and device.p50.value < LAUNCH_BOUND * figures.call.p50.value:
        share = device.p50.value / max(figures.call.p50.value, 1)
        yield _doubt(
            Caveat.LAUNCH_BOUND,
            f"The device works for {share:.0%} of the call, so the host's own work is what was measured; use CUDA "
            "graphs, compile the model, or raise the batch size.",
        )


def _host(figures: Figures) -> Iterator[CellCaveat]:
    noise = figures.counters.to_noise()
    if noise.steal_percent and float(noise.steal_percent) >= STEAL_PERCENT:
        yield _doubt(
            Caveat.CPU_STEAL,
            f"The hypervisor took {noise.steal_percent} % of the processors' time; use an instance whose processors "
            "are its own.",
        )
    if noise.neighbours_percent and float(noise.neighbours_percent) >= NEIGHBOURS_PERCENT:
        yield _doubt(
            Caveat.NEIGHBOURS,
            f"Other processes took {noise.neighbours_percent} % of the processors' time; set execution.exclusiveNode, "
            "or pin the pod to whole processors.",
        )
    switches = noise.involuntary_switches_per_second
    if switches and float(switches) >= SWITCHES_PER_SECOND:
        yield _doubt(
            Caveat.CONTEXT_SWITCHES,
            f"The kernel interrupted the process {switches} times per second of processor time; give the pod whole "
            "processors, as many as it has threads.",
        )
    if (noise.throttled_milliseconds or 0) * 1_000_000 > THROTTLED * figures.measured_ns or noise.thermal_throttles:
        yield _doubt(
            Caveat.THROTTLING,
            f"A quota held the process back for {noise.throttled_milliseconds or 0} ms, and heat slowed processors "
            f"down {noise.thermal_throttles or 0} times; remove the CPU limit or cool the machine.",
        )
