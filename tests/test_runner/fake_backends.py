"""Back ends that tests control, for real processes: each is a function that a fresh interpreter can import by name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from inferbench_runner.backends import open_backend
from inferbench_runner.backends.base import Backend
from inferbench_runner.contract import Compilation, Plan, Shape
from inferbench_runner.probe import Host
from test_runner.builders import FakeBackend

ENDLESS = 100_000
"""Length of the shape that stops answering after so many calls."""

CALLS_BEFORE_THE_END = 20
"""More than a warm-up, so that the shape is being measured by then."""


def open_sleepy(_plan: Plan, _host: Host) -> Backend:
    """Return a back end whose calls take as many milliseconds as the shape has tokens; or, for one length, for ever."""
    backend = FakeBackend()

    def call(shape: Shape) -> None:
        endless = shape.sequence_length == ENDLESS
        done = backend.count("call", ENDLESS) > CALLS_BEFORE_THE_END
        time.sleep(3600 if endless and done else 0.001 if endless else (shape.sequence_length or 0) / 1000)

    backend.on_call = call
    return backend


def open_busy(_plan: Plan, _host: Host) -> Backend:
    """Return a back end whose calls keep a processor busy for as many milliseconds as the shape has tokens."""

    def call(shape: Shape) -> None:
        end = time.process_time_ns() + (shape.sequence_length or 0) * 1_000_000
        while time.process_time_ns() < end:
            pass

    return FakeBackend(on_call=call)


def open_talkative(_plan: Plan, _host: Host) -> Backend:
    """Return a back end that prints to standard output wherever it can."""
    say = print
    say("opened")
    return FakeBackend(on_verify=lambda _: say("verified"), on_call=lambda _: say("called"))


def open_without_torch(plan: Plan, host: Host) -> Backend:
    """Open the real back end where torch is not installed."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    return open_backend(plan, host)


def open_counting(plan: Plan, host: Host) -> Backend:
    """Open the real back end; the key of each compilation says how often a graph was found, and how often not."""
    backend = open_backend(plan, host)
    from torch._dynamo.utils import counters  # noqa: PLC0415  # only here

    from inferbench_runner.backends import cpu  # noqa: PLC0415  # as above

    timed = cpu.timed

    def counted(first_call: Callable[[], object], arguments: str) -> Compilation:
        made, found = timed(first_call, arguments), counters["inductor"]
        return made.model_copy(update={"key": f"{found['fxgraph_cache_hit']} {found['fxgraph_cache_miss']}"})

    cpu.timed = counted  # type: ignore[attr-defined]
    return backend
