"""The CPU back end compiled: the real compiler, on tiny models."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="install the torch extra to test the compiled back end")

import torch

from inferbench_runner.backends.cpu import CPUModel
from inferbench_runner.child import Child
from inferbench_runner.contract import CACHE_VARIABLE, CacheOutcome, Compilation
from inferbench_runner.errors import CompileFailedError
from inferbench_runner.scratch import scratch_folder
from inferbench_runner.worker import Compile, Prepare, Refer
from test_runner.builders import plan
from test_runner.fake_backends import open_counting
from test_runner.tiny import SMALL, load_random, only_shape

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="install g++, with which PyTorch compiles for CPUs"),
]

COMPILE = {"kind": "CPU", "execution": "Compile"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what is compiled, in memory and on disk, to each test."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()  # noqa: SLF001  # the documented way
    yield
    torch._dynamo.reset()  # noqa: SLF001


def output(loaded: CPUModel) -> torch.Tensor:
    """Return what the call that is timed returns."""
    with loaded.bound(only_shape(loaded)) as bound, bound.worker():
        found: torch.Tensor = bound.call().logits  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_and_eager_agree_and_the_facts_say_which_ran(precision: str) -> None:
    """Both pass the gate in front of every number, and give the same output but for rounding."""
    eager = load_random(precision=precision)
    compiled = load_random(precision=precision, device=COMPILE)
    made = compiled.compile(only_shape(compiled))
    for loaded in (eager, compiled):
        loaded.verify(only_shape(loaded))
    assert not eager.compiles
    assert (made.compiler, made.arguments) == (f"inductor of torch {torch.__version__}", "dynamic=False")
    assert made.milliseconds > 0
    assert (made.peak_memory_mebibytes or 0) > 100
    tolerance = 1e-5 if precision == "fp32" else 0.05
    assert torch.allclose(output(eager), output(compiled), atol=tolerance)


def test_a_second_process_finds_what_the_first_has_compiled() -> None:
    """The cache is the compiler's own: content-addressed, and a hit says so."""
    first = load_random(device=COMPILE)
    assert first.compile(only_shape(first)).cache is CacheOutcome.MISS
    torch._dynamo.reset()  # noqa: SLF001
    second = load_random(device=COMPILE)
    assert second.compile(only_shape(second)).cache is CacheOutcome.HIT


def test_without_a_cache_there_is_neither_hit_nor_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the compiler's own temporary folder dies with the pod."""
    monkeypatch.delenv(CACHE_VARIABLE)
    loaded = load_random(device=COMPILE)
    assert loaded.compile(only_shape(loaded)).cache is CacheOutcome.OFF


def compiled_in_a_process(scratch: Path | None) -> Compilation:
    """Return what a fresh process tells of compiling a graph."""
    child = Child(plan(device=COMPILE, model={"config": SMALL}), open_counting, scratch)
    try:
        replies = [child.ask(command, 600, lambda _: None).value for command in (Prepare(), Refer(0), Compile(0))]
    finally:
        child.close()
    assert isinstance(replies[-1], Compilation), replies
    return replies[-1]


def test_the_processes_of_a_run_compile_a_graph_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one finds it in the folder that they share, which is no cache: nothing of it outlives the run."""
    for name in (CACHE_VARIABLE, "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as scratch:
        assert scratch is not None
        first, second = (compiled_in_a_process(scratch) for _ in range(2))
        assert (first.key, second.key) == ("0 1", "1 0")
        assert first.cache is second.cache is CacheOutcome.OFF
        assert [path.parent.parent for path in tmp_path.rglob("fxgraph")] == [scratch]
    assert not scratch.exists()


def test_graphs_that_are_compiled_while_measuring_are_counted() -> None:
    """Calls of the shape that was compiled compile nothing; those of another one do."""
    loaded = load_random(device=COMPILE, shapes=((8, 1), (16, 1)))
    one, two = loaded.plan.shapes
    loaded.compile(one)
    loaded.verify(one)
    with loaded.bound(one) as bound, loaded.bound(two) as other, bound.worker():
        assert bound.observe is not None
        observed = bound.observe()
        bound.call()
        assert observed().recompilations == 0
        other.call()
        assert observed().recompilations >= 1


def test_a_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a C++ compiler is a typed failure with PyTorch's words."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    loaded = load_random(device=COMPILE)
    # By PyTorch's own means: after the undoing of any other, the setting would be gone for the tests that follow.
    with (
        torch._inductor.config.patch("cpp.cxx", ("no-such-compiler",)),  # noqa: SLF001
        pytest.raises(CompileFailedError, match="no-such-compiler"),
    ):
        loaded.compile(only_shape(loaded))
