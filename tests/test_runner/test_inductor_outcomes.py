"""What is told of a compilation, whatever the compiler does and wherever it puts its graphs; no compiler is needed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="install the torch extra to test what its compiler says")

from torch._inductor.exc import CppCompileError

from inferbench_runner.backends import inductor
from inferbench_runner.backends.environment import prepare_environment
from inferbench_runner.contract import CacheOutcome, FailureReason
from inferbench_runner.errors import RunnerError
from test_runner.builders import fails, host


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", "CompileOutOfMemory"),
        ("virtual memory exhausted: Cannot allocate memory", "CompileOutOfMemory"),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 2000000 bytes", "CompileOutOfMemory"),
        ("x.cpp:1:1: error: 'out' does not name a type; did you mean 'memory'?", "CompileFailed"),
    ],
    ids=["killed", "exhausted", "refused", "wrong"],
)
def test_a_compiler_without_memory_is_told_from_one_that_fails(words: str, reason: str) -> None:
    """The words are g++'s own, in the error that PyTorch makes of them."""
    refused(CppCompileError(["g++", "x.cpp", "-O3"], words), reason)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_the_memory_may_run_out_in_python_too(error: Exception) -> None:
    """While the graph is traced, or called for the first time."""
    refused(error, "CompileOutOfMemory")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("wrapped", [False, True], ids=["as it is", "in words"])
def test_a_disk_without_room_is_told_from_a_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    wrapped: bool,  # noqa: FBT001  # a column
) -> None:
    """The folder is named, which is what has to be changed."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/full/inductor")
    error = OSError(code, "no more")
    with pytest.raises(RunnerError, match="/full/inductor can't be written") as caught:
        inductor.timed(fails(RuntimeError(f"InductorError: OSError: {error}") if wrapped else error), "")
    assert caught.value.reason is FailureReason.CACHE_UNWRITABLE


def refused(error: Exception, reason: str) -> None:
    """Let a first call end like this, and compare the reason."""
    with pytest.raises(RunnerError) as caught:
        inductor.timed(fails(error), "")
    assert caught.value.reason is FailureReason(reason)


@pytest.mark.parametrize(
    ("given", "outcome", "why"),
    [
        pytest.param({}, CacheOutcome.OFF, "", id="none was asked for"),
        pytest.param({"INFERBENCH_SCRATCH": "run"}, CacheOutcome.OFF, "", id="the run's own folder is no cache"),
        pytest.param(
            {"INFERBENCH_CACHE": "kept"}, CacheOutcome.MISS, "no entry for this graph and these libraries", id="new"
        ),
        pytest.param(
            {"INFERBENCH_CACHE": "file/kept"}, CacheOutcome.OFF, "not kept: {}/file/kept can't be written", id="a file"
        ),
        pytest.param(
            {"INFERBENCH_CACHE": "file/kept", "INFERBENCH_SCRATCH": "run"},
            CacheOutcome.OFF,
            "not kept: {}/file/kept can't be written",
            id="kept as long as the run only",
        ),
        pytest.param(
            {"INFERBENCH_CACHE": "kept", "TORCHINDUCTOR_CACHE_DIR": "own"},
            CacheOutcome.OFF,
            "not kept: TORCHINDUCTOR_CACHE_DIR is {}/own",
            id="the user's own folder",
        ),
    ],
)
def test_a_graph_that_is_not_kept_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], outcome: CacheOutcome, why: str
) -> None:
    """The first compilation is a miss where there is a cache, and otherwise it is told why there is none."""
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    environment = {name: str(tmp_path / folder) for name, folder in given.items()}
    prepare_environment(environment, host())
    for name in ("INFERBENCH_CACHE", "INFERBENCH_SCRATCH", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
        if name in environment:
            monkeypatch.setenv(name, environment[name])
    made = inductor.timed(lambda: None, "dynamic=False")
    assert (made.cache, made.miss) == (outcome, why.format(tmp_path))


def test_a_long_path_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason has no more room in a report."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("INFERBENCH_CACHE", "/dev/null/" + "deep/" * 100)
    made = inductor.timed(lambda: None, "")
    assert made.miss.startswith("not kept: /dev/null/deep/")
    assert len(made.miss) == 256
