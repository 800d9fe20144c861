"""Delivery of the termination message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferbench_runner.contract import (
    TERMINATION_PATH_VARIABLE,
    CellFailed,
    CompactReport,
    FailureReason,
    FullReport,
    Phase,
)
from inferbench_runner.outlet import Outlet
from test_runner.builders import cell

LONG = CompactReport(
    failed=tuple(
        CellFailed(cell=cell(index), phase=Phase.LOAD, reason=FailureReason.INTERNAL_ERROR, message="x" * 50)
        for index in range(3)
    )
)
SHORT = CompactReport()


def test_the_file_is_rewritten_in_place(tmp_path: Path) -> None:
    """Reports of any length follow each other in the same file: the kubelet's mount survives."""
    outlet = Outlet.from_environment({TERMINATION_PATH_VARIABLE: str(tmp_path / "message")})
    inodes = set()
    for report in (SHORT, LONG, SHORT, LONG):
        outlet.publish(report)
        assert CompactReport.model_validate_json(outlet.path.read_bytes()) == report
        assert not outlet.path.read_bytes().endswith(b" ")
        inodes.add(outlet.path.stat().st_ino)
    assert len(inodes) == 1


def test_a_crash_before_the_cut_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the process dies between writing a shorter report and cutting the file, the file still parses."""
    outlet = Outlet(tmp_path / "message", may_create=True, say=lambda _: None)
    outlet.publish(LONG)
    monkeypatch.setattr(os, "ftruncate", lambda *_: None)
    outlet.publish(SHORT)
    assert CompactReport.model_validate_json(outlet.path.read_bytes()) == SHORT


def test_what_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    """The runner goes on; the log has the rest."""
    said: list[str] = []
    outlet = Outlet(tmp_path / "nowhere" / "message", may_create=True, say=said.append)
    outlet.publish(SHORT)
    outlet.publish(LONG)
    assert len(said) == 1
    assert "No such file or directory" in said[0]


def test_nothing_is_said_where_there_is_no_kubelet(tmp_path: Path) -> None:
    """Its own file is there in pods only; one that is there and can't be written is another matter."""
    said: list[str] = []
    Outlet(tmp_path / "termination-log", may_create=False, say=said.append).publish(SHORT)
    assert said == []
    Outlet(tmp_path, may_create=False, say=said.append).publish(SHORT)
    assert len(said) == 1


def test_the_kubelets_own_file_is_never_created(tmp_path: Path) -> None:
    """Only a file that the environment names is made; /dev gets none on a laptop."""
    assert not Outlet.from_environment({}).may_create
    outlet = Outlet(tmp_path / "message", may_create=False, say=lambda _: None)
    outlet.publish(SHORT)
    assert not outlet.path.exists()


def test_the_full_report_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output gets the marked line and nothing else."""
    Outlet(tmp_path / "message", may_create=True).deliver(FullReport())
    assert (
        capfd.readouterr().out == 'INFERBENCH-REPORT {"version":2,"cells":[],"phasesMilliseconds":{},"provenance":{}}\n'
    )
