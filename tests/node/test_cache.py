"""A cache of compiled graphs on a volume that the runner's user can't write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.real.provisioning import lend_folder
from e2e_harness import Harness, Json, benchmark
from node_testing.compilers import with_compiler
from node_testing.models import BERT

pytestmark = pytest.mark.node


def compiled(runner: Json) -> Json:
    """Return a benchmark of one cell that is compiled."""
    return benchmark(
        "compiled",
        models=[BERT],
        accelerators=[{"name": "cpu", "kind": "CPU", "execution": "Compile"}],
        sequenceLengths=[8],
        runner=runner,
    )


@pytest.mark.parametrize("obstacle", ["owned by root", "mounted read-only"])
def test_a_cache_that_cannot_be_written_costs_no_figure(harness: Harness, tmp_path: Path, obstacle: str) -> None:
    """The result stands, and says of its graph that it was not kept and why; the volume stays empty."""
    read_only = obstacle == "mounted read-only"
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777 if read_only else 0o755)
    lend_folder(harness.control_plane, harness.namespace, "cache", folder)
    runner = with_compiler(harness.control_plane, harness.namespace)
    runner["volumes"].append({"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}})
    runner["volumeMounts"].append({"name": "cache", "mountPath": "/cache", "readOnly": read_only})
    runner["env"].append({"name": "INFERBENCH_CACHE", "value": "/cache"})
    harness.apply(compiled(runner))

    status = harness.wait_until_finished("compiled", seconds=300, every=1)

    (entry,) = status["results"]
    assert entry["state"] == "succeeded", entry["message"]
    (result,) = harness.list("ibr")
    made = result["status"]["compilation"]
    assert (made["cache"], made["miss"]) == ("Off", "not kept: /cache can't be written")
    assert os.listdir(folder) == []  # noqa: PTH208 - as a list


def test_a_cache_without_room_is_a_typed_failure(harness: Harness) -> None:
    """The folder is named, which is what has to be changed, and nothing is tried again."""
    runner = with_compiler(harness.control_plane, harness.namespace)
    runner["volumes"].append({"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}})
    runner["volumeMounts"].append({"name": "cache", "mountPath": "/cache"})
    runner["env"].append({"name": "INFERBENCH_CACHE", "value": "/cache"})
    harness.apply(compiled(runner))

    status = harness.wait_until_finished("compiled", seconds=300, every=1)

    (entry,) = status["results"]
    assert (entry["reason"], entry["attempts"]) == ("CacheUnwritable", 1), entry["message"]
    assert "/cache" in entry["message"]
