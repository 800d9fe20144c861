"""Plans and a back end without any device, with defaults for what a test doesn't care about."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from inferbench_runner.backends.base import Call, Facts, Source
from inferbench_runner.contract import ModelRef, Plan, Shape
from inferbench_runner.probe import Host

TINY_BERT = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
"""Overrides that make a BERT whose call takes less than a millisecond."""


def cell(index: int) -> str:
    """Return a cell hash."""
    return f"{index:010x}"


def plan_dict(
    *,
    model: Mapping[str, Any] | None = None,
    device: Mapping[str, Any] | None = None,
    shapes: tuple[tuple[int | None, int], ...] = ((8, 1),),
    measurement: Mapping[str, Any] | None = None,
    **others: object,
) -> dict[str, Any]:
    """Return a plan as it comes over the wire; shapes are pairs of length and batch size."""
    return {
        "model": {"id": "bert-base-uncased", "weights": "Random", "config": TINY_BERT} | dict(model or {}),
        "device": {"kind": "CPU"} | dict(device or {}),
        "shapes": [
            {"cell": cell(index), "sequenceLength": length, "batchSize": batch}
            for index, (length, batch) in enumerate(shapes)
        ],
        "measurement": {"minSamples": 3, "minSeconds": 0, "maxSeconds": 5} | dict(measurement or {}),
        **others,
    }


def plan(**fields: Any) -> Plan:  # noqa: ANN401  # passed through
    """Return a plan; see `plan_dict`."""
    return Plan.model_validate(plan_dict(**fields))


def host() -> Host:
    """Return a machine with one processor, so that a test keeps the others free."""
    return Host(
        cpu_model="test",
        cpu_flags=(),
        kernel="test",
        python="3",
        affinity=(0,),
        cpu_limit_millis=None,
        memory_limit_bytes=None,
    )


@dataclass
class FakeClock:
    """A clock that a call moves; reading it costs nothing."""

    now: int = 0

    def read(self) -> int:
        """Return the time in nanoseconds."""
        return self.now

    def call_of(self, *durations: int) -> Call:
        """Return a call that takes each duration in turn, the last one for ever."""
        left = list(durations)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


@dataclass
class FakeBackend:
    """A back end, and a model, whose every step a test may replace."""

    facts: Facts = field(default_factory=lambda: {"device": "fake"})
    on_open: Callable[[], None] = lambda: None
    on_fetch: Callable[[], None] = lambda: None
    on_load: Callable[[], None] = lambda: None
    on_verify: Callable[[Shape], None] = lambda _: None
    on_call: Callable[[Shape], object] = lambda _: None

    def open(self, _plan: Plan, _host: Host) -> FakeBackend:
        """Stand in for `open_backend`."""
        self.on_open()
        return self

    def fetch(self, _model: ModelRef) -> Source:
        """Fetch nothing."""
        self.on_fetch()
        return Source()

    def load(self, _model: ModelRef, _source: Source) -> FakeBackend:
        """Be the model too."""
        self.on_load()
        return self

    def verify(self, shape: Shape) -> None:
        """Accept the shape unless the test says otherwise."""
        self.on_verify(shape)

    @contextmanager
    def bound(self, shape: Shape) -> Iterator[Call]:
        """Yield the test's call."""
        yield lambda: self.on_call(shape)


def sleepy_backend() -> FakeBackend:
    """Return a back end whose call takes as many milliseconds as the shape has tokens."""
    return FakeBackend(on_call=lambda shape: time.sleep((shape.sequence_length or 0) / 1000))
