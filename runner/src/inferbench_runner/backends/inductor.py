"""PyTorch's own compiler: `torch.compile` with Inductor, one static graph for each shape."""

from __future__ import annotations

import errno
import os
import resource
from collections import Counter
from collections.abc import Callable, Mapping
from tempfile import gettempdir
from typing import Any, Final

import torch

from inferbench_runner.backends.environment import INDUCTOR_VARIABLE, why_unkept
from inferbench_runner.backends.tasks import Model
from inferbench_runner.clock import now_ns, to_milliseconds
from inferbench_runner.contract import CACHE_VARIABLE, CacheOutcome, Compilation
from inferbench_runner.errors import (
    ArtefactsUnwritableError,
    CompileFailedError,
    CompileOutOfMemoryError,
    OutOfMemoryError,
    RunnerError,
    is_out_of_memory,
)
from inferbench_runner.words import one_line

GRAPHS: Final = 64
"""Graphs of one model before PyTorch gives up compiling: each shape of a plan has one, and each way of calling it."""

KILLED: Final = ("Killed signal terminated program", "virtual memory exhausted", "cc1plus: out of memory")
"""What g++ says when the kernel ends a part of it, or it gets no memory."""

UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Codes of a disk that takes nothing more."""

MISS_CHARACTERS: Final = 256
"""Longest reason of a miss that the contract takes."""

COMPILER: Final = f"inductor of torch {torch.__version__}"


def compiled(model: Model, mode: str | None = None) -> Callable[..., Model]:
    """Return the model compiled, which happens at its first call with each shape."""
    torch._dynamo.config.recompile_limit = GRAPHS  # noqa: SLF001  # the documented way to set it
    # Workers of its own would stay, and wake up while a latency is measured.
    torch._inductor.config.compile_threads = 1  # noqa: SLF001  # as above
    found: Callable[..., Model] = torch.compile(model, dynamic=False, mode=mode)
    return found


def timed(first_call: Callable[[], object], arguments: str) -> Compilation:
    """Make a first call, which compiles, and tell what that took.

    Raises:
        CompileFailedError: The compiler gave up.
        CompileOutOfMemoryError: It, or a program that it started, had not enough memory.
        RunnerError: The device failed in the call itself.
    """
    before, begun = _cache(), now_ns()
    try:
        first_call()
    except Exception as error:
        if isinstance(error, OutOfMemoryError) or is_out_of_memory(error) or any(one in str(error) for one in KILLED):
            raise CompileOutOfMemoryError(COMPILER) from error
        if full := _unwritable(error):
            raise ArtefactsUnwritableError(os.environ.get(INDUCTOR_VARIABLE) or gettempdir(), full) from error
        if isinstance(error, RunnerError):
            # It is the device's own, such as its memory running out.
            raise
        raise CompileFailedError(COMPILER, f"{type(error).__name__}: {error}") from error
    spent, after = now_ns() - begun, _cache()
    hits, misses = (after[name] - before[name] for name in ("fxgraph_cache_hit", "fxgraph_cache_miss"))
    found = CacheOutcome.HIT if hits > misses == 0 else CacheOutcome.MISS
    # Elsewhere than in the cache, what is compiled is not kept beyond the run.
    unkept = why_unkept(os.environ)
    outcome = CacheOutcome.OFF if unkept or not os.environ.get(CACHE_VARIABLE) else found
    return Compilation(
        milliseconds=to_milliseconds(spent),
        peak_memory_mebibytes=peak_memory_mebibytes(),
        compiler=COMPILER,
        arguments=arguments,
        cache=outcome,
        miss=_why(outcome, unkept),
    )


def _why(outcome: CacheOutcome, unkept: str) -> str:
    if outcome is CacheOutcome.MISS:
        return "no entry for this graph and these libraries"
    return one_line(f"not kept: {unkept}", MISS_CHARACTERS) if unkept else ""


def _unwritable(error: BaseException) -> OSError | None:
    """Return the error of a disk that takes nothing more, if that is what stopped the compiler."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in UNWRITABLE:
            return link
        link = link.__cause__ or link.__context__
    # PyTorch keeps only the words of it.
    found = next((code for code in UNWRITABLE if f"[Errno {code}]" in str(error)), None)
    return None if found is None else OSError(found, os.strerror(found))


def graphs() -> int:
    """Return how many graphs were compiled in this process so far."""
    return int(_counter("stats")["unique_graphs"])


def peak_memory_mebibytes() -> int:
    """Return the largest resident memory that this process, or one program that it started, has had so far.

    The kernel counts from the process's start, and a program once it has ended: what was loaded or compiled before
    counts too, and two programs at the same time are not added up.
    """
    # Linux counts it in kibibytes.
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) // 1024


def _cache() -> Counter[str]:
    return Counter(_counter("inductor"))


def _counter(name: str) -> Mapping[str, Any]:
    from torch._dynamo.utils import counters  # noqa: PLC0415  # the compiler, which takes a second to import

    found: Mapping[str, Any] = counters[name]
    return found
