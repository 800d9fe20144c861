"""Carries out a plan: the phases in order, a report after every shape, a full report at the end.

    probe ─> fetch ─> compile ─> load ─┬─> verify ─> warmup ─> measure ─> report ─┐
      a failure here fails all shapes   └──── next shape; a failure fails this one ┘

The compile phase is entered only by back ends that compile, and fetch only for pretrained weights.
"""

from __future__ import annotations

import resource
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

from inferbench_runner.backends import open_backend
from inferbench_runner.backends.base import Backend, LoadedModel, Source
from inferbench_runner.contract import (
    CellFailed,
    CompactReport,
    FailureReason,
    FullReport,
    Phase,
    Plan,
    Shape,
    Weights,
)
from inferbench_runner.errors import PhaseFailedError
from inferbench_runner.measure import Limits, collector_paused, measure, warm_up
from inferbench_runner.outlet import Outlet
from inferbench_runner.phases import Phases
from inferbench_runner.probe import Host, probe_host
from inferbench_runner.report import Measured, to_facts, to_failed
from inferbench_runner.summary import summarise

OpenBackend = Callable[[Plan, Host], Backend]


@dataclass
class Run:
    """One pass over a plan, with what is known so far."""

    plan: Plan
    outlet: Outlet
    open_backend: OpenBackend = open_backend
    phases: Phases = field(default_factory=Phases)
    measured: list[Measured] = field(default_factory=list)
    failed: list[CellFailed] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def carry_out(self) -> None:
        """Measure every shape that can be; whatever stops the run, what was measured is reported.

        The first, empty report tells early whether reports can be written at all.
        """
        try:
            self._publish()
            try:
                model = self._prepare()
            except PhaseFailedError as failure:
                for shape in self.plan.shapes:
                    self._fail(shape, failure)
                self._publish()
            else:
                with collector_paused():
                    for shape in self.plan.shapes:
                        self._measure(model, shape)
                        self._publish()
        finally:
            self.outlet.deliver(self.to_full())

    def _prepare(self) -> LoadedModel:
        model = self.plan.model
        self.outlet.say(f"{model.id}: {model.weights} weights, {self.plan.device.kind}, {self.plan.precision}")
        with self.phases.step(Phase.PROBE):
            host = probe_host()
            self.facts |= self._own_facts() | host.to_facts()
            backend = self.open_backend(self.plan, host)
            self.facts |= backend.facts
        source = Source()
        if model.weights is Weights.PRETRAINED:
            with self.phases.step(Phase.FETCH):
                source = backend.fetch(model)
        with self.phases.step(Phase.LOAD):
            loaded = backend.load(model, source)
            self.facts |= loaded.facts
        spent = ", ".join(
            f"{phase} {time / 1000:.1f} s"
            for phase, time in self.phases.to_milliseconds().items()
            if phase is not Phase.REPORT
        )
        self.outlet.say(f"{model.id}: ready ({spent})")
        return loaded

    def _measure(self, model: LoadedModel, shape: Shape) -> None:
        limits = Limits.from_measurement(self.plan.measurement)
        try:
            with self.phases.step(Phase.VERIFY):
                model.verify(shape)
            with model.bound(shape) as call:
                with self.phases.step(Phase.WARMUP):
                    warmup = warm_up(call)
                with self.phases.step(Phase.MEASURE):
                    series = measure(call, limits)
            with self.phases.step(Phase.REPORT):
                measured = Measured(shape, warmup, series, summarise(series.samples))
        except PhaseFailedError as failure:
            self._fail(shape, failure)
        else:
            self.measured.append(measured)
            self.outlet.say(f"{self._label(shape)}: {measured.to_sentence()}")

    def _fail(self, shape: Shape, failure: PhaseFailedError) -> None:
        cell = to_failed(shape.cell, failure)
        self.failed.append(cell)
        self.outlet.say(f"{self._label(shape)}: {cell.reason} in {cell.phase}: {cell.message}")
        if failure.reason is FailureReason.INTERNAL_ERROR:
            traceback.print_exception(failure.cause, file=sys.stderr)

    def _label(self, shape: Shape) -> str:
        return f"{self.plan.model.id} {shape.sequence_length or 'image'}x{shape.batch_size}"

    def _publish(self) -> None:
        with self.phases.step(Phase.REPORT):
            self.outlet.publish(
                CompactReport(measured=tuple(cell.to_cell() for cell in self.measured), failed=tuple(self.failed))
            )

    def _own_facts(self) -> dict[str, str]:
        return {
            "runner": metadata.version("inferbench-operator"),
            "weights": self.plan.model.weights,
            "weightsSeed": str(self.plan.seed),
            "inputs": "uniform token ids or normal pixels, full length",
            "inputSeed": str(self.plan.seed),
        }

    def to_full(self) -> FullReport:
        """Convert to the log line's content."""
        # Linux counts the peak in kibibytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return FullReport(
            cells=tuple(cell.to_details() for cell in self.measured),
            phases_milliseconds=self.phases.to_milliseconds(),
            peak_host_memory_mebibytes=peak,
            provenance=to_facts(self.facts),
        )
