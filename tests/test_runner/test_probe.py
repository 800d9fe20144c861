"""Limits of the machine, read from made-up file trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferbench_runner.probe import Host, descendants, oom_kills, probe_host
from test_runner.builders import host, tree


@pytest.mark.parametrize(
    ("files", "cpu_limit", "memory_limit"),
    [
        pytest.param({}, None, None, id="nothing is readable"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/memory.max": "1073741824\n",
            },
            1500,
            2**30,
            id="version 2 in a container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/outer/inner\n",
                "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
                "sys/fs/cgroup/outer/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/outer/memory.max": "max\n",
            },
            500,
            None,
            id="version 2, where an outer group has the limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/pod\n1:cpu,cpuacct:/pod\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "4096",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            2000,
            4096,
            id="version 1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "1:cpu:/../..\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
            None,
            id="version 1 without a limit, with a path outside",
        ),
    ],
)
def test_limits(tmp_path: Path, files: dict[str, str], cpu_limit: int | None, memory_limit: int | None) -> None:
    """The tightest limit of all groups around the process counts."""
    found = probe_host(tree(tmp_path, files))
    assert (found.cpu_limit_millis, found.memory_limit_bytes) == (cpu_limit, memory_limit)
    assert found.affinity == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("processors", "limit", "threads"),
    [(4, None, 4), (4, 2500, 2), (4, 500, 1), (2, 8000, 2)],
)
def test_threads(processors: int, limit: int | None, threads: int) -> None:
    """Threads are the processors that may run at once without throttling, and at least one."""
    fields = vars(host()) | {"affinity": tuple(range(processors)), "cpu_limit_millis": limit}
    assert Host(**fields).threads == threads


def test_the_cpu_is_named(tmp_path: Path) -> None:
    """Model and matrix flags are those of the first processor."""
    text = (
        "processor\t: 0\nmodel name\t: Fast One\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\nmodel name\t: Other\n"
    )
    found = probe_host(tree(tmp_path, {"proc/cpuinfo": text}))
    assert (found.cpu_model, found.cpu_flags) == ("Fast One", ("avx2", "amx_bf16"))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.events": "low 0\nhigh 3\nmax 9\noom 8\noom_kill 7\noom_group_kill 6\n",
            },
            7,
            id="version 2",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/pod\n1:cpu,cpuacct:/other\n",
                "sys/fs/cgroup/memory/pod/memory.oom_control": "oom_kill_disable 0\nunder_oom 1\noom_kill 5\n",
            },
            5,
            id="version 1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            },
            2,
            id="version 1 in a container that sees its own group as the root",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/outer/inner\n",
                "sys/fs/cgroup/outer/inner/memory.events": "oom_kill 1\n",
                "sys/fs/cgroup/outer/memory.events": "oom_kill 40\n",
            },
            1,
            id="the innermost group counts, not the neighbours' that share an outer one",
        ),
        pytest.param({"proc/self/cgroup": "0::/\n"}, None, id="a kernel that doesn't tell"),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "oom_kill many\n"}, None, id="nonsense"
        ),
        pytest.param({}, None, id="no control group at all"),
    ],
)
def test_kills_for_want_of_memory(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    """The kernel's count of processes that it ended for want of memory is read in both versions."""
    assert oom_kills(tree(tmp_path, files)) == expected


def test_descendants_are_all_that_a_process_has_started(tmp_path: Path) -> None:
    """Also what its children have started; a name with brackets and blanks is no obstacle."""
    lines = {1: "1 (init) S 0", 5: "5 (a) b) S 1", 6: "6 (c) S 5", 7: "7 (d) S 6", 8: "8 (e) S 1", 9: ""}
    root = tree(tmp_path, {f"proc/{number}/stat": f"{line} 0 0" if line else "" for number, line in lines.items()})
    assert descendants(5, root) == [6, 7]
    assert sorted(descendants(1, root)) == [5, 6, 7, 8]
    assert descendants(7, root) == []
