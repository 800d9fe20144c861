"""The folder that the processes of a run share: who gets it, and when it is gone."""

from __future__ import annotations

import errno
import multiprocessing
import os
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from inferbench_runner.backends.environment import prepare_environment
from inferbench_runner.child import Child
from inferbench_runner.scratch import SCRATCH_VARIABLE, scratch_folder
from test_runner.builders import host, plan
from test_runner.dying_backend import open_dying

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, which is empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("end", [None, ValueError(), SystemExit(143)], ids=["well", "by an error", "by a signal"])
def test_the_folder_goes_with_all_that_is_in_it(temporary: Path, end: BaseException | None) -> None:
    """However the run ends: nothing is left, not even below a folder that nobody may write."""

    def run() -> None:
        with scratch_folder() as folder:
            assert folder is not None
            assert folder.parent == temporary
            (folder / "deep").mkdir()
            (folder / "deep" / "graph").write_text("compiled", encoding="utf-8")
            (folder / "deep").chmod(0o500)
            if end:
                raise end

    with pytest.raises(type(end)) if end else nullcontext():
        run()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES], ids=os.strerror)
def test_a_folder_that_can_not_be_made_is_none(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A disk that is read-only or full stops no run."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "mkdir", refuse)
    with scratch_folder() as folder:
        assert folder is None


def test_where_there_is_no_place_for_temporary_files_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks for one that it can write to, and may find none."""

    def refuse() -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    with scratch_folder() as folder:
        assert folder is None


def test_what_can_not_be_removed_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is in use on a network's disk stays; the report is delivered by then."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with scratch_folder() as folder:
        assert folder is not None
        (folder / "graph").write_text("compiled", encoding="utf-8")
        monkeypatch.setattr(os, "unlink", refuse)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, "", id="neither"),
        pytest.param({"INFERBENCH_SCRATCH": "run"}, "run/inductor", id="what lasts as long as the run"),
        pytest.param({"INFERBENCH_SCRATCH": "run", "INFERBENCH_CACHE": "kept"}, "kept/inductor-", id="what is kept"),
        pytest.param(
            {"INFERBENCH_SCRATCH": "run", "INFERBENCH_CACHE": "file/kept"}, "run/inductor", id="what can be written"
        ),
        pytest.param({"INFERBENCH_SCRATCH": "file/run"}, "", id="nothing can be written"),
        pytest.param(
            {"INFERBENCH_SCRATCH": "run", "INFERBENCH_CACHE": "kept", INDUCTOR: "own"}, "own", id="the user's own"
        ),
    ],
)
def test_what_pytorch_compiles_has_the_best_place_there_is(
    tmp_path: Path, given: dict[str, str], expected: str
) -> None:
    """The cache that is kept comes before the run's folder, and the user's choice before both."""
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    environment = {name: str(tmp_path / folder) for name, folder in given.items()}
    prepare_environment(environment, host())
    found = environment.get(INDUCTOR, "")
    assert found.startswith(str(tmp_path / expected)) if expected else found == ""
    made = {path.name for path in tmp_path.iterdir()} - {"file", "temporary"}
    assert made == ({Path(expected).parts[0]} - {"own"} if expected else set())


@pytest.mark.parametrize("scratch", [None, Path("/run/folder")], ids=["without", "with"])
def test_a_child_is_told_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scratch: Path | None) -> None:
    """In its environment, which is the supervisor's again once it has started."""
    monkeypatch.delenv(SCRATCH_VARIABLE, raising=False)
    before = dict(os.environ)
    child = Child(plan(model={"id": str(tmp_path), "revision": "exit measure 1 9"}), open_dying, scratch)
    try:
        (process,) = multiprocessing.active_children()
        while not (told := Path(f"/proc/{process.pid}/environ").read_bytes()):  # Empty while the kernel loads Python.
            time.sleep(0.01)
    finally:
        child.kill()
    assert [line for line in told.split(b"\0") if line.startswith(b"INFERBENCH_SCRATCH=")] == (
        [b"INFERBENCH_SCRATCH=/run/folder"] if scratch else []
    )
    assert dict(os.environ) == before
