"""Fills the cache of compiled graphs: every shape of a plan, in a process of its own that may run out of memory.

Compilers need more memory and time than what they compile, so this is for a larger machine than the one that measures,
and it need not have the device.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from inferbench_runner.backends.base import Source
from inferbench_runner.child import Child, ChildDiedError, Patience, Servant
from inferbench_runner.contract import CellFailed, CompactReport, Compilation, Phase, Plan, Shape
from inferbench_runner.errors import CompileTimeoutError, PhaseFailedError
from inferbench_runner.outlet import Outlet
from inferbench_runner.report import to_failed
from inferbench_runner.run import StartChild
from inferbench_runner.worker import Command, Compile, Failure, OpenBackend, Prepare, Prepared, Value


@dataclass
class Filling:
    """One pass over a plan's shapes."""

    plan: Plan
    outlet: Outlet
    open_compiler: OpenBackend
    start: StartChild = Child
    patience: Patience = field(default_factory=Patience)
    failed: list[CellFailed] = field(default_factory=list)
    _source: Source | None = None
    _phase: Phase = Phase.PROBE

    def carry_out(self) -> bool:
        """Compile each shape, and return whether all graphs are in the cache now; the report names those that aren't.

        A process that dies has failed the shape that it was on; another one does the rest.
        """
        left = list(self.plan.shapes)
        try:
            while left:
                self._publish()
                left = self._process(left)
        finally:
            self._publish()
        return not self.failed

    def _process(self, shapes: list[Shape]) -> list[Shape]:
        """Let one process compile shapes, and return those that it did not come to."""
        self._phase = Phase.PROBE
        try:
            child = self.start(self.plan, self.open_compiler)
        except OSError as error:
            return self._give_up(Failure.from_error(PhaseFailedError(Phase.PROBE, error)), shapes)
        try:
            left = self._served(child, shapes)
        except ChildDiedError as death:
            left = self._give_up(Failure.from_error(PhaseFailedError(self._phase, death.cause)), shapes)
        except BaseException:
            child.kill()
            raise
        child.close()
        return left

    def _served(self, child: Servant, shapes: list[Shape]) -> list[Shape]:
        prepared = self._ask(child, Prepare(self._source), self.patience.prepare)
        if isinstance(prepared, Failure):
            return self._give_up(prepared, shapes)
        if isinstance(prepared, Prepared):
            self._source = prepared.source
            if not prepared.compiles:
                self.outlet.say(f"{self.plan.model.id}: nothing to compile")
                return []
        for number, shape in enumerate(shapes):
            index = self.plan.shapes.index(shape)
            try:
                answer = self._ask(child, Compile(index), self.plan.compile_deadline_seconds)
            except ChildDiedError as death:
                cause = CompileTimeoutError(self.plan.compile_deadline_seconds) if death.hung else death.cause
                self._fail(shape, Failure.from_error(PhaseFailedError(Phase.COMPILE, cause)))
                return shapes[number + 1 :]
            if isinstance(answer, Failure):
                self._fail(shape, answer)
            elif isinstance(answer, Compilation):
                self.outlet.say(f"{self._label(shape)}: {_sentence(answer)}")
        return []

    def _ask(self, child: Servant, command: Command, seconds: float) -> Value:
        return child.ask(command, seconds, self._enter).value

    def _enter(self, phase: Phase) -> None:
        self._phase = phase

    def _give_up(self, failure: Failure, shapes: list[Shape]) -> list[Shape]:
        for shape in shapes:
            self._fail(shape, failure)
        return []

    def _fail(self, shape: Shape, failure: Failure) -> None:
        cell = to_failed(shape.cell, failure)
        self.failed.append(cell)
        self.outlet.say(f"{self._label(shape)}: {cell.reason} in {cell.phase}: {cell.message}")
        if failure.trace:
            sys.stderr.write(failure.trace)

    def _publish(self) -> None:
        self.outlet.publish(CompactReport(failed=tuple(self.failed)))

    def _label(self, shape: Shape) -> str:
        return f"{self.plan.model.id} {shape.sequence_length or 'image'}x{shape.batch_size}"


def _sentence(compilation: Compilation) -> str:
    miss = f" ({compilation.miss})" if compilation.miss else ""
    return f"{compilation.cache}{miss}, {compilation.milliseconds / 1000:.1f} s, {compilation.key or 'no key'}"
