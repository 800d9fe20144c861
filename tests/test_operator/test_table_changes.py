"""What becomes of benchmarks when the operator's own table of instance types is wrong, or changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from inferbench_operator.core.decide import Decision, decide
from inferbench_operator.core.facts import Attempt, Benchmark, Nodes, Result, Supply, Taint
from inferbench_operator.core.instance_table import MAX_BYTES, with_table
from inferbench_operator.core.settings import Settings
from inferbench_operator.kube import reconciler as engine
from inferbench_operator.kube.kinds import BENCHMARK, JOB
from inferbench_operator.kube.reconciler import Reconciler
from inferbench_operator.kube.table_file import TableFile
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.instances import Catalogue, packaged_catalogue
from inferbench_operator.models.status import BenchmarkStatus, CellState, Condition, ConditionType
from operator_testing.builders import (
    NOW,
    SETTINGS,
    attempt_of,
    benchmark,
    cells_of,
    ended,
    measured,
    observed,
    pod,
    report,
    result_of,
    run_of,
    running,
    spec,
    spec_json,
)
from operator_testing.server import Server, ServerClient, create_benchmark
from operator_testing.virtual_time import VirtualCalendar

NEW: list[dict[str, Any]] = [{"name": "new", "instanceTypes": ["g6x.large"]}]
ENTRY = "g6x.large: {kind: NVIDIA, devices: 1, usdPerHour: '1.10'}"
WRONG = "g6x.large: {kind: NVIDIA, devices: 1, usdPerHour: cheap}"
TOLD = "g6x.large: usdPerHour is 'cheap', but must be a decimal number"
ONE = spec(accelerators=NEW, sequenceLengths=[8])


def _with(table: str) -> Settings:
    return replace(SETTINGS, catalogue=with_table(packaged_catalogue(), table.encode()))


def _status(decision: Decision) -> BenchmarkStatus:
    assert decision.status
    return decision.status


def _condition(decision: Decision, kind: ConditionType) -> Condition:
    return next(found for found in _status(decision).conditions if found.type is kind)


def _started(wanted: BenchmarkSpec, *facts: Attempt | Result) -> Benchmark:
    """Return a benchmark that was accepted with a right entry in the table, as the operator left it."""
    of = benchmark(wanted)
    for _ in range(2):
        of = replace(of, status=_status(decide(observed(of, *facts), NOW, _with(ENTRY))))
    return of


@pytest.mark.parametrize(
    ("types", "table", "told"),
    [
        (["inf2.xlarge"], "inf2.xlarge: {usdPerHour: '0.61'}", False),
        (["inf2.xlarge"], "inf2.xlarge: {usdPerHour: cheap}", True),
        (["inf2.8xlarge", "inf2.xlarge"], "inf2.xlarge: {usdPerHour: cheap}", True),
        (["inf2.8xlarge"], "inf2.xlarge: {usdPerHour: cheap}", False),
        (["inf2.8xlarge"], "- inf2.xlarge", True),
    ],
    ids=["a right price", "a wrong one", "one of two", "of a type that is not named", "a table that is none"],
)
def test_a_fault_of_the_table_is_told_to_whom_it_may_concern(types: list[str], table: str, *, told: bool) -> None:
    """In the message of Accepted, which stays True; the run starts all the same."""
    of = benchmark(spec(accelerators=[{"name": "inf2", "instanceTypes": types}]))
    decision = decide(observed(of), NOW, _with(table))
    accepted = _condition(decision, ConditionType.ACCEPTED)
    assert accepted.status == "True"
    assert accepted.message.startswith("Cells in the matrix: 1.")
    assert ("The operator's table of instance types" in accepted.message) is told
    assert "table" not in _condition(decision, ConditionType.READY).message
    assert _status(decision).run


def test_a_type_that_only_a_wrong_entry_would_add_is_refused() -> None:
    """With the reason of any unknown type, and what is wrong with the entry."""
    decision = decide(observed(benchmark(ONE)), NOW, _with(WRONG))
    for kind in (ConditionType.ACCEPTED, ConditionType.READY, ConditionType.STALLED):
        assert _condition(decision, kind).reason == "UnknownInstanceType"
        assert TOLD in _condition(decision, kind).message
    (event,) = decision.events
    assert TOLD in event.message


def test_a_change_of_the_table_starts_no_run() -> None:
    """Neither one that goes on nor one that has ended is taken up again, whatever its types cost or are now."""
    attempt = attempt_of(of := benchmark(ONE), pod=running())
    result = result_of(of, cells_of(ONE)[0], run=run_of(of))
    for facts in ((attempt,), (result,)):
        of = _started(ONE, *facts)
        for table in (ENTRY.replace("1.10", "9"), ENTRY.replace("devices: 1", "devices: 8, processors: 96")):
            decision = decide(observed(of, *facts), NOW, _with(table))
            assert decision.status == of.status
            assert not decision.create_jobs
            assert not decision.delete_jobs


def test_only_a_new_job_follows_the_table() -> None:
    """With the devices and the size that it says now."""
    of = _started(ONE)
    larger = "g6x.large: {kind: NVIDIA, devices: 4, processors: 8, memoryGiB: 64}"
    (job,) = decide(observed(of), NOW, _with(larger)).create_jobs
    (container,) = job["spec"]["template"]["spec"]["containers"]
    # 64 GiB: three quarters less 300 MiB are 48,852, of which a tenth stays.
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "cpu": "7", "memory": "43967Mi"}


@pytest.mark.parametrize("table", [WRONG, "", "- no table"])
def test_a_job_goes_on_whose_type_the_table_has_lost(table: str) -> None:
    """Nothing more is needed, so nothing is wrong; what it measures is stored, and the run ends well."""
    of = _started(ONE, attempt := attempt_of(benchmark(ONE), pod=running()))
    decision = decide(observed(of, attempt), NOW, _with(table))
    assert not decision.delete_jobs
    assert _condition(decision, ConditionType.ACCEPTED).status == "True"
    assert _status(decision).results[0].state is CellState.RUNNING

    (cell,) = cells_of(ONE)
    done = replace(attempt, pod=ended(report(measured(cell.hash))))
    (write,) = decide(observed(of, done), NOW, _with(table)).results
    assert write.manifest["spec"]["cell"] == cell.hash

    decision = decide(observed(of, done, result_of(of, cell, run=run_of(of))), NOW, _with(table))
    assert _condition(decision, ConditionType.READY).status == "True"


@pytest.mark.parametrize(
    ("accelerator", "limits"),
    [({}, {}), ({}, {"maxCostUSD": "25"}), ({"kind": "NVIDIA"}, {"maxCostUSD": "25"})],
    ids=["without a limit", "with a limit of the cost", "with one, and its kind"],
)
def test_a_run_that_needs_a_job_waits_for_the_table(accelerator: dict[str, str], limits: dict[str, str]) -> None:
    """It is refused while the type is missing, but its Job goes on, and so does the run once it is there again."""
    models = [{"name": name, "id": f"org/{name}"} for name in ("a", "b")]
    wanted = spec(accelerators=[NEW[0] | accelerator], models=models, execution={"maxParallelJobs": 1} | limits)
    attempt = attempt_of(benchmark(wanted), pod=running())
    of = _started(wanted, attempt)

    refused = decide(observed(of, attempt), NOW, _with(WRONG))
    assert _condition(refused, ConditionType.STALLED).reason == "UnknownInstanceType"
    assert TOLD in _condition(refused, ConditionType.ACCEPTED).message
    assert not refused.delete_jobs
    assert not refused.create_jobs
    assert {entry.state for entry in _status(refused).results} == {CellState.RUNNING, CellState.PENDING}
    of = replace(of, status=_status(refused))
    assert decide(observed(of, attempt), NOW, _with(WRONG)).status == of.status, "it does not waver"

    result = result_of(of, cells_of(wanted)[0], run=run_of(of))
    refused = decide(observed(of, result), NOW, _with(WRONG))
    assert _condition(refused, ConditionType.STALLED).reason == "UnknownInstanceType"
    assert [entry.state for entry in _status(refused).results] == [CellState.SUCCEEDED, CellState.PENDING]
    assert not refused.create_jobs
    going = decide(observed(of, result), NOW, _with(ENTRY))
    assert _condition(going, ConditionType.ACCEPTED).status == "True"
    assert len(going.create_jobs) == 1
    assert of.status.run == _status(going).run


def test_of_a_type_that_is_lost_it_is_not_said_what_the_cluster_lacks() -> None:
    """Nobody knows any more which taints its pods tolerate; the scheduler's own word stands."""
    waits = pod(unschedulable="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    of = _started(ONE, attempt := attempt_of(benchmark(ONE), pod=waits))
    labels = (("node.kubernetes.io/instance-type", "g6x.large"),)
    node = Nodes(labels, (("nvidia.com/gpu", 1),), (Taint("nvidia.com/gpu", "", "NoSchedule"),))
    facts = observed(of, attempt, supply=Supply(frozenset({node}), ()))
    for table in (ENTRY, WRONG):
        told = _condition(decide(facts, NOW, _with(table)), ConditionType.CAPACITY_AVAILABLE)
        assert (told.reason, "taint" in told.message) == ("Unschedulable", False)


def test_a_suspended_run_needs_no_job() -> None:
    """So it is told of the table when it is resumed."""
    of = _started(ONE)
    assert of.spec
    of = replace(of, spec=of.spec.model_copy(update={"suspend": True}), generation=2)
    assert _condition(decide(observed(of), NOW, _with("")), ConditionType.ACCEPTED).status == "True"


def test_a_limit_of_the_cost_that_cannot_be_kept_is_told_at_once() -> None:
    """Even of a run whose Jobs are all there: they go on, since they measure what is asked for."""
    of = _started(ONE, attempt := attempt_of(benchmark(ONE), pod=running()))
    of = replace(of, spec=spec(accelerators=NEW, sequenceLengths=[8], execution={"maxCostUSD": "1"}), generation=2)
    decision = decide(observed(of, attempt), NOW, _with(ENTRY.replace(", usdPerHour: '1.10'", "")))
    assert _condition(decision, ConditionType.ACCEPTED).reason == "PriceUnknown"
    assert not decision.delete_jobs


def test_the_file_is_read_when_it_has_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the kubelet changes it, by a link to another folder; each fault is logged once for each change."""

    def write(table: str) -> None:
        version = tmp_path / f"..{len(list(tmp_path.iterdir()))}"
        version.mkdir()
        (version / "types.yaml").write_text(table)
        link = tmp_path / "new"
        link.symlink_to(version)
        link.rename(tmp_path / "mounted")

    file = TableFile(tmp_path / "mounted" / "types.yaml")
    with caplog.at_level(logging.WARNING):
        missing = file.news()
        assert missing
        assert "types.yaml is no file" in missing.problem
        assert file.news() is None
        write(ENTRY)
        added = file.news()
        assert added
        assert "g6x.large" in added.types
        assert file.news() is None
        assert caplog.text.count("WARNING") == 1
        write(WRONG)
        wrong = file.news()
        assert wrong
        assert "g6x.large" not in wrong.types
        assert file.news() is None
        write(ENTRY)
        assert file.news() == added
    assert caplog.text.count("WARNING") == 2
    assert caplog.text.count(TOLD) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "is no file"),
        (lambda path: path.symlink_to(path), "is no file"),
        (lambda path: path.write_bytes(b"#" * (MAX_BYTES + 1)), "larger than"),
        (lambda path: path.write_bytes(b"\xff"), "no YAML"),
    ],
    ids=["a folder", "a link to itself", "too large", "no text"],
)
def test_a_file_that_is_no_table_is_told(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    """To every benchmark; the package's own types stay."""
    make(tmp_path / "types.yaml")
    found = TableFile(tmp_path / "types.yaml").news()
    assert found
    assert found.types == packaged_catalogue().types
    assert words in found.problem


@contextmanager
def _in_haste() -> Iterator[None]:
    """Look at the table all the time, on the calendar of the simulated server; threads know no virtual time."""
    with patch.object(engine, "TABLE_SECONDS", 0.01), patch.object(engine, "datetime", VirtualCalendar):
        yield


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - the state waited for is on the simulated server
            await asyncio.sleep(0.01)


async def test_a_change_is_taken_up_without_a_restart(tmp_path: Path) -> None:
    """A benchmark that was refused starts as soon as the table has its type, and is not told what is mended."""
    table = tmp_path / "types.yaml"
    table.write_text(WRONG)
    server = Server()
    create_benchmark(server, "study", spec_json(accelerators=NEW))

    def accepted() -> str:
        raw = server.find(BENCHMARK, "study")
        conditions = raw["status"].get("conditions", []) if raw else []
        return next((found["message"] for found in conditions if found["type"] == "Accepted"), "")

    with _in_haste():
        async with Reconciler(ServerClient(server), SETTINGS, (None,), TableFile(table)):
            await _until(lambda: TOLD in accepted())
            assert server.all(JOB) == []
            table.write_text(ENTRY)
            await _until(lambda: accepted() == "Cells in the matrix: 1.")
            await _until(lambda: bool(server.all(JOB)))


def test_a_slip_of_the_pen_does_not_take_all_prices_away(tmp_path: Path) -> None:
    """Of a file that can't be read any more the last good state stands, with a sentence that says so."""
    path = tmp_path / "types.yaml"
    file = TableFile(path)
    path.write_text('inf2.xlarge: {usdPerHour: "5"}\n')
    assert file.news()
    for broken in ('inf2.xlarge: {usdPerHour: "7"\n', "- a list\n"):
        path.write_text(broken)
        found = file.news()
        assert found
        assert found.types["inf2.xlarge"].usd_per_hour == Decimal(5)
        assert "changes nothing" in found.problem
    path.unlink()
    found = file.news()
    assert found
    assert found.types["inf2.xlarge"].usd_per_hour == Decimal(5)
    path.write_text("{}\n")
    found = file.news()
    assert found
    assert (found.types["inf2.xlarge"].usd_per_hour, found.problem) == (Decimal("0.7582"), "")


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    """With the system's own words."""
    (tmp_path / "types.yaml").write_text(ENTRY)
    with patch.object(Path, "open", side_effect=PermissionError(13, "Permission denied")):
        found = TableFile(tmp_path / "types.yaml").news()
    assert found
    assert "types.yaml can't be read (Permission denied)" in found.problem


async def test_a_fault_of_our_own_in_reading_leaves_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the operator goes on."""

    class Faulty(TableFile):
        asked = 0

        def news(self) -> Catalogue | None:
            self.asked += 1
            message = "a fault"
            raise ZeroDivisionError(message)

    server, table = Server(), Faulty(Path("nowhere"))
    create_benchmark(server, "study", spec_json())
    with _in_haste():
        async with Reconciler(ServerClient(server), SETTINGS, (None,), table):
            await _until(lambda: bool(server.all(JOB)) and table.asked > 2)
    assert "Reading the table of instance types failed" in caplog.text
