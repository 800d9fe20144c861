"""The phases in order, with a back end that a test controls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferbench_runner.contract import CompactReport, FailureReason, Phase, Plan, Shape
from inferbench_runner.errors import (
    DeviceNotFoundError,
    FetchFailedError,
    ModelUnsupportedError,
    NumericMismatchError,
    OutOfMemoryError,
)
from inferbench_runner.outlet import Outlet
from inferbench_runner.run import Run
from test_runner.builders import FakeBackend, cell, plan

SHAPES = ((8, 1), (16, 1), (32, 2))
FETCHED = {"id": "a/b", "weights": "Pretrained", "config": {}}


def carry_out(tmp_path: Path, backend: FakeBackend, wanted: Plan) -> tuple[Run, CompactReport]:
    """Run the plan and return the run with the termination message that it left."""
    outlet = Outlet(tmp_path / "message", may_create=True, say=lambda _: None)
    run = Run(wanted, outlet, backend.open)
    run.carry_out()
    return run, CompactReport.model_validate_json(outlet.path.read_bytes())


def fails(error: Exception) -> Callable[..., None]:
    """Return a step that raises."""

    def step(*_: object) -> None:
        raise error

    return step


def test_all_shapes_are_measured_and_phases_that_were_not_entered_are_absent(tmp_path: Path) -> None:
    """Random weights fetch nothing and eager execution compiles nothing: neither has a time, not even zero."""
    run, report = carry_out(tmp_path, FakeBackend(), plan(shapes=SHAPES))
    assert [entry.cell for entry in report.measured] == [cell(0), cell(1), cell(2)]
    assert report.failed == ()
    full = run.to_full()
    assert set(full.phases_milliseconds) == set(Phase) - {Phase.FETCH, Phase.COMPILE}
    assert [details.cell for details in full.cells] == [cell(0), cell(1), cell(2)]
    assert full.provenance["device"] == "fake"
    assert full.peak_host_memory_mebibytes


@pytest.mark.parametrize(
    ("backend", "phase", "reason"),
    [
        (
            FakeBackend(on_fetch=fails(FetchFailedError("a/b", OSError("down")))),
            Phase.FETCH,
            FailureReason.FETCH_FAILED,
        ),
        (FakeBackend(on_load=fails(ModelUnsupportedError("no"))), Phase.LOAD, FailureReason.MODEL_UNSUPPORTED),
        (FakeBackend(on_load=fails(MemoryError())), Phase.LOAD, FailureReason.OUT_OF_MEMORY),
    ],
)
def test_a_failure_before_the_shapes_fails_them_all(
    tmp_path: Path, backend: FakeBackend, phase: Phase, reason: FailureReason
) -> None:
    """Without a model there is no number for any shape, and each says why."""
    _, report = carry_out(tmp_path, backend, plan(model=FETCHED, shapes=SHAPES))
    assert [(entry.cell, entry.phase, entry.reason) for entry in report.failed] == [
        (cell(index), phase, reason) for index in range(3)
    ]


def test_a_device_that_is_absent_fails_the_probe(tmp_path: Path) -> None:
    """The probe fails all shapes when there is no back end."""
    backend = FakeBackend(on_open=fails(DeviceNotFoundError("Neuron")))
    _, report = carry_out(tmp_path, backend, plan(shapes=SHAPES))
    assert {(entry.phase, entry.reason) for entry in report.failed} == {(Phase.PROBE, FailureReason.DEVICE_NOT_FOUND)}


@pytest.mark.parametrize("phase", [Phase.VERIFY, Phase.WARMUP, Phase.MEASURE])
def test_a_failure_of_one_shape_leaves_the_others(tmp_path: Path, phase: Phase) -> None:
    """The second shape fails in this phase; the first and the third have figures."""
    calls = 0
    calls_until_failure = {Phase.WARMUP: 3, Phase.MEASURE: 12}.get(phase)

    def verify(shape: Shape) -> None:
        if phase is Phase.VERIFY and shape.sequence_length == 16:
            message = "not finite"
            raise NumericMismatchError(message)

    def call(shape: Shape) -> None:
        nonlocal calls
        if shape.sequence_length == 16:
            calls += 1
            if calls == calls_until_failure:
                raise OutOfMemoryError

    _, report = carry_out(tmp_path, FakeBackend(on_verify=verify, on_call=call), plan(shapes=SHAPES))
    assert [entry.cell for entry in report.measured] == [cell(0), cell(2)]
    assert [(entry.cell, entry.phase) for entry in report.failed] == [(cell(1), phase)]


def test_an_unexpected_error_is_typed_and_its_traceback_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody foresaw is an internal error of the shape, in one clean line, with the traceback in the log."""
    backend = FakeBackend(on_verify=fails(ZeroDivisionError("bad\x1bthing\nhere")))
    _, report = carry_out(tmp_path, backend, plan())
    assert report.failed[0].reason is FailureReason.INTERNAL_ERROR
    assert report.failed[0].message.endswith("bad thing here")
    assert "ZeroDivisionError" in report.failed[0].message
    assert "Traceback" in capsys.readouterr().err


def test_the_report_is_rewritten_after_each_shape(tmp_path: Path) -> None:
    """While a shape is measured, the message holds all the shapes before it."""
    seen: dict[int | None, int] = {}

    def look(shape: Shape) -> None:
        report = CompactReport.model_validate_json((tmp_path / "message").read_bytes())
        seen[shape.sequence_length] = len(report.measured)

    carry_out(tmp_path, FakeBackend(on_verify=look), plan(shapes=SHAPES))
    assert seen == {8: 0, 16: 1, 32: 2}


def test_a_stop_request_delivers_what_was_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An exit in the middle passes through, and the log line still comes, with the first shape."""

    def verify(shape: Shape) -> None:
        if shape.sequence_length == 16:
            raise SystemExit(143)

    with pytest.raises(SystemExit):
        carry_out(tmp_path, FakeBackend(on_verify=verify), plan(shapes=SHAPES))
    line = capfd.readouterr().out
    assert line.startswith("INFERBENCH-REPORT ")
    assert cell(0) in line
