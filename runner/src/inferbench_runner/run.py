"""Supervises a plan: fresh measuring processes one after the other, rounds over all shapes, a report after every round.

    each process:  prepare ─> each shape: refer ─> each: compile, verify, warm up ─> rounds of those that want more

This process never imports a model library, and waits while a measuring process works. What such a process fails at, or
dies of, becomes a typed failure of the shape that it was on; the other shapes go on, in a new process if need be.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from inferbench_runner.adaptive import Design, Progress, Quota
from inferbench_runner.backends import open_backend
from inferbench_runner.backends.base import Source
from inferbench_runner.cells import Cell
from inferbench_runner.child import Child, ChildDiedError, Patience, Servant
from inferbench_runner.clock import NS_PER_SECOND, now_ns, step_ns, to_milliseconds
from inferbench_runner.contract import (
    CompactReport,
    Compilation,
    Correctness,
    FailureReason,
    FullReport,
    Phase,
    Plan,
    Position,
    Shape,
    provenance_differences,
)
from inferbench_runner.errors import CompileTimeoutError, PhaseFailedError
from inferbench_runner.measure import END_TO_END_EVERY, WARMUP_CALLS, Warmup
from inferbench_runner.outlet import Outlet
from inferbench_runner.phases import Phases
from inferbench_runner.report import Measured, own_facts, to_facts, to_failed
from inferbench_runner.summary import Round, as_samples
from inferbench_runner.worker import (
    Bind,
    Command,
    Compile,
    Failure,
    Measure,
    OpenBackend,
    Prepare,
    Prepared,
    Refer,
    Referred,
    Release,
    Value,
    Warm,
)

StartChild = Callable[[Plan, OpenBackend], Servant]

GROWTH = 1.25
"""Samples at one provisional report over those at the one before: each costs a few milliseconds of sorting."""

CROWDED = frozenset(
    {FailureReason.OUT_OF_MEMORY, FailureReason.COMPILE_OUT_OF_MEMORY, FailureReason.DEVICE_OUT_OF_MEMORY}
)
"""Reasons that may be gone once the other shapes are let go."""

FATAL = frozenset(
    {
        FailureReason.BAD_INPUT,
        FailureReason.DEVICE_TIMEOUT,
        FailureReason.HARDWARE_ERROR,
        FailureReason.PROCESS_CRASHED,
    }
)
"""Reasons after which a process can't use its device any more: the others would fail there of the same."""

BEGINS = {
    Prepare: Phase.PROBE,
    Refer: Phase.VERIFY,
    Compile: Phase.COMPILE,
    Bind: Phase.VERIFY,
    Warm: Phase.WARMUP,
    Measure: Phase.MEASURE,
}
"""Phase that a command begins with: a process that dies before it has said so is on that one."""

_Value = TypeVar("_Value", bound=Value)


class CommandFailedError(Exception):
    """Retry: as its failure says. A measuring process could not do what it was told."""

    def __init__(self, failure: Failure) -> None:
        """Hold the failure as the process told it."""
        self.failure = failure
        super().__init__(failure.sentence)


class DeviceLostError(Exception):
    """Retry: the other shapes, in a new process. This one's way to the device is broken."""


@dataclass
class Run:
    """One pass over a plan, with what is known so far."""

    plan: Plan
    outlet: Outlet
    open_backend: OpenBackend = open_backend
    start: StartChild = Child
    patience: Patience = field(default_factory=Patience)
    on_report: Callable[[], None] = lambda: None
    """Told when the final report begins, which nothing should cut short."""
    phases: Phases = field(default_factory=Phases)
    facts: dict[str, str] = field(default_factory=dict)
    interleaved: bool = True
    _begun_ns: int = field(default_factory=now_ns)
    _step_ns: int = field(default_factory=step_ns)
    _source: Source | None = None
    _compiles: bool = False
    _doing: Position | None = None

    def __post_init__(self) -> None:
        """Lay the cells out."""
        self.design = Design.from_measurement(self.plan.measurement)
        self.cells = [Cell(index, shape, Progress(self.design)) for index, shape in enumerate(self.plan.shapes)]

    def carry_out(self) -> None:
        """Measure every shape that can be; whatever stops the run, what was measured is reported.

        The first, empty report tells early whether reports can be written at all.
        """
        model = self.plan.model
        self.facts |= own_facts(self.plan)
        try:
            self._publish()
            self.outlet.say(f"{model.id}: {model.weights} weights, {self.plan.device.kind}, {self.plan.precision}")
            for share in range(self.design.processes):
                self._share(share)
        finally:
            self.on_report()
            self._doing = None
            self._summarise(self.cells)
            self._publish()
            self.outlet.deliver(self.to_full())

    def _share(self, share: int) -> None:
        """Let one process do its share of every shape; where it dies, another one does the rest."""
        while left := _unfinished(self.cells, share):
            self._doing = None
            try:
                child = self.start(self.plan, self.open_backend)
            except OSError as error:
                self._give_up(Failure.from_error(PhaseFailedError(Phase.PROBE, error)), left, share)
                continue
            try:
                self._process(child, share, left)
            except ChildDiedError as death:
                self._bury(death, left, share)
            except DeviceLostError:
                self.outlet.say(f"process {share + 1} is ended: its device answers no more")
            except CommandFailedError as refusal:
                self._give_up(refusal.failure, left, share)
            except BaseException:
                child.kill()
                raise
            child.close()
            self._doing = None
            self._summarise(left)
            self._publish()
            for cell in left:
                if cell.measured and not cell.failed:
                    self.outlet.say(f"{self._label(cell.shape)}: {cell.measured.to_sentence()}")

    def _process(self, child: Servant, share: int, cells: Sequence[Cell]) -> None:
        prepared = self._ask(child, Prepare(self._source), self.patience.prepare, Prepared)
        self._source, self._compiles = prepared.source, prepared.compiles
        facts = to_facts(prepared.facts)
        before = {name: self.facts[name] for name in facts if name in self.facts}
        for one in provenance_differences(before, facts) if before else ():
            self.outlet.say(f"processes differ in {one.field}: {one.left or 'nothing'} before, {one.right} now")
        self.facts |= facts
        self.outlet.say(f"{self.plan.model.id}: process {share + 1} of {self.design.processes} is ready")
        for cell in cells:
            cell.progress.begin(share)
            self._tried(self._refer, child, cell, ())
        while self.interleaved and (crowded := self._together(child, share, _unfinished(cells, share))):
            # Alone in the device's memory it either fits, or is too big in any case.
            self.interleaved = not self._fits(child, crowded)
        for cell in self._shuffled(_unfinished(cells, share), share, 0):
            self._together(child, share, [cell])

    def _together(self, child: Servant, share: int, cells: Sequence[Cell]) -> Cell | None:
        """Measure cells in rounds, with all of them held ready.

        Returns:
            The cell for which memory ran out while others were held: all of them are let go then, unfinished.
        """
        ready: list[Cell] = []
        for cell in cells:
            if self._tried(self._make_ready, child, cell, ready):
                return cell
            if not cell.failed:
                ready.append(cell)
        number = 0
        while wanting := [cell for cell in ready if not cell.failed and cell.progress.wants_round()]:
            number += 1
            for cell in self._shuffled(wanting, share, number):
                others = [one for one in ready if one is not cell and not one.failed]
                if self._tried(self._round, child, cell, others):
                    return cell
        done = [cell for cell in ready if not cell.failed]
        for cell in done:
            cell.shares, cell.finished = share + 1, cell.finished + 1
        for cell in done:
            self._release(child, cell)
        return None

    def _tried(
        self, action: Callable[[Servant, Cell], None], child: Servant, cell: Cell, others: Sequence[Cell]
    ) -> bool:
        """Do something with a cell, which may fail; return whether it failed only because others take up the memory."""
        try:
            action(child, cell)
        except CommandFailedError as refusal:
            if refusal.failure.reason not in CROWDED or not others:
                self._fail(cell, refusal.failure)
                if refusal.failure.reason in FATAL:
                    raise DeviceLostError from refusal
                return False
            for other in others:
                self._release(child, other)
            return True
        return False

    def _fits(self, child: Servant, cell: Cell) -> bool:
        """Whether a cell can be measured with no other held ready; it fails if it can't."""
        self._tried(self._make_ready, child, cell, [])
        if cell.failed:
            return False
        self._release(child, cell)
        self.outlet.say("The device's memory doesn't hold all shapes at once: they are measured one after the other.")
        return True

    def _refer(self, child: Servant, cell: Cell) -> None:
        # Who is told that it is known leaves to others what is asked once; those may have died before they could.
        known = cell.right if cell.rounds else None
        referred = self._ask(child, Refer(cell.index, known), self.patience.bind, Referred, cell)
        cell.right = referred.rows

    def _make_ready(self, child: Servant, cell: Cell) -> None:
        if self._compiles:
            made = self._compile(child, cell)
            cell.compilation = cell.compilation or made
        begun = now_ns()
        cell.correctness = self._ask(child, Bind(cell.index), self.patience.bind, Correctness, cell)
        cell.slowest_ns = max(cell.slowest_ns, now_ns() - begun)
        cell.warmups.append(self._warm(child, cell))

    def _compile(self, child: Servant, cell: Cell) -> Compilation:
        seconds = self.plan.compile_deadline_seconds
        try:
            return self._ask(child, Compile(cell.index), seconds, Compilation, cell)
        except ChildDiedError as death:
            raise (ChildDiedError(CompileTimeoutError(seconds)) if death.hung else death) from death

    def _grace(self, cell: Cell) -> float:
        """Return the seconds after which a process hangs that should have ended a loop of this cell."""
        calls = WARMUP_CALLS * self.plan.measurement.load.concurrency
        return self.patience.grace + calls * cell.slowest_ns / NS_PER_SECOND

    def _release(self, child: Servant, cell: Cell) -> None:
        """Let a shape's inputs and buffers go; whatever becomes of that, no figure depends on it."""
        try:
            self._ask(child, Release(cell.index), self.patience.grace, type(None), cell)
        except CommandFailedError as refusal:
            self.outlet.say(f"{self._label(cell.shape)}: could not be let go: {refusal}")

    def _warm(self, child: Servant, cell: Cell) -> Warmup:
        quota, rounds = self.design.quota, self.design.rounds
        share = Quota(quota.calls * rounds, quota.min_ns * rounds, self.design.share_ns)
        seconds = self._grace(cell) + self.patience.warmup
        return self._ask(child, Warm(cell.index, share), seconds, Warmup, cell)

    def _round(self, child: Servant, cell: Cell) -> None:
        quota = cell.progress.quota
        process = len(cell.progress.processes) - 1
        seed = f"{self.plan.seed}/{cell.index}/{len(cell.rounds)}"
        seconds = self._grace(cell) + quota.max_ns / NS_PER_SECOND * (1 + 1 / END_TO_END_EVERY)
        begun = now_ns()
        one = self._ask(child, Measure(cell.index, quota, process, seed), seconds, Round, cell)
        cell.rounds.append(one)
        cell.progress.add(as_samples(one.series.calls), now_ns() - begun)
        if not cell.measured or cell.samples >= GROWTH * cell.measured.figures.call.count:
            self._summarise([cell])
            self._publish()

    def _ask(
        self, child: Servant, command: Command, seconds: float, wanted: type[_Value], cell: Cell | None = None
    ) -> _Value:
        """Return the value of the reply to a command; its failure is raised."""

        def publish(phase: Phase) -> None:
            doing = Position(cell=cell.shape.cell if cell else None, phase=phase)
            if doing != self._doing:
                self._doing = doing
                self._publish()

        if begins := BEGINS.get(type(command)):
            publish(begins)
        reply = child.ask(command, seconds, publish)
        self.phases.add(reply.spent_ns)
        if isinstance(reply.value, Failure):
            raise CommandFailedError(reply.value)
        if not isinstance(reply.value, wanted):
            msg = f"{type(command).__name__} was answered by {type(reply.value).__name__}"
            raise TypeError(msg)
        return reply.value

    def _bury(self, death: ChildDiedError, cells: Sequence[Cell], share: int) -> None:
        """Fail the cell that a process died on, or where it died before any, all that it was started for."""
        position = self._doing or Position(phase=Phase.PROBE)
        failure = Failure.from_error(PhaseFailedError(position.phase, death.cause))
        if position.cell is None:
            self._give_up(failure, cells, share)
            return
        self.outlet.say(f"process {share + 1} has ended: {failure.reason} in {failure.phase}")
        for cell in _unfinished(cells, share):
            if cell.shape.cell == position.cell:
                self._fail(cell, failure)

    def _give_up(self, failure: Failure, cells: Sequence[Cell], share: int) -> None:
        """End a share that can't even begin: what has no samples fails, and the rest has one process fewer."""
        for cell in cells:
            if not cell.rounds:
                self._fail(cell, failure)
            else:
                cell.shares = share + 1
        if any(cell.rounds for cell in cells):
            self.outlet.say(f"process {share + 1} measured nothing: {failure.reason} in {failure.phase}")

    def _fail(self, cell: Cell, failure: Failure) -> None:
        cell.failed = to_failed(cell.shape.cell, failure)
        self.outlet.say(
            f"{self._label(cell.shape)}: {cell.failed.reason} in {cell.failed.phase}: {cell.failed.message}"
        )
        if failure.trace:
            sys.stderr.write(failure.trace)

    def _shuffled(self, cells: Sequence[Cell], share: int, number: int) -> Iterator[Cell]:
        """Yield the cells in an order that differs by round, so that none always follows the same other."""
        order = list(cells)
        Random(f"{self.plan.seed}/{share}/{number}").shuffle(order)  # noqa: S311  # an order, not a secret
        yield from order

    def _label(self, shape: Shape) -> str:
        return f"{self.plan.model.id} {shape.sequence_length or 'image'}x{shape.batch_size}"

    def _summarise(self, cells: Sequence[Cell]) -> None:
        """Bring the figures of cells up to date."""
        for cell in cells:
            cell.summarise(self.plan.measurement, interleaved=self.interleaved, step_ns=self._step_ns)

    def _publish(self) -> None:
        with self.phases.step(Phase.REPORT):
            self.outlet.publish(
                CompactReport(
                    measured=tuple(measured.to_cell() for measured in self._reportable()),
                    failed=tuple(cell.failed for cell in self.cells if cell.failed),
                    doing=self._doing,
                )
            )

    def _reportable(self) -> list[Measured]:
        return [cell.measured for cell in self.cells if cell.measured and not cell.failed]

    def to_full(self) -> FullReport:
        """Convert to the log line's content."""
        # Linux counts the peak in kibibytes; of all children that have ended it is the largest.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        facts = to_facts(self.facts)
        return FullReport(
            cells=tuple(measured.to_details(facts) for measured in self._reportable()),
            phases_milliseconds=self.phases.to_milliseconds(),
            wall_milliseconds=to_milliseconds(now_ns() - self._begun_ns),
            peak_host_memory_mebibytes=peak,
            provenance=facts,
        )


def _unfinished(cells: Sequence[Cell], share: int) -> list[Cell]:
    return [cell for cell in cells if cell.is_unfinished(share)]
