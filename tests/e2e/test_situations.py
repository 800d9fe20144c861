"""What becomes of a benchmark in every situation that a cluster can bring it into; the rows are in tests/situations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster import ControlPlane, NodeAgent
from cluster.operator_process import OperatorProcess
from situations import disrupted, ending, patient, placing, refused, starting, steered
from situations.history import Chronicle
from situations.play import Stage
from situations.rows import Row

pytestmark = [pytest.mark.e2e, pytest.mark.situations]

ROWS = (*placing.ROWS, *starting.ROWS, *ending.ROWS, *disrupted.ROWS, *refused.ROWS, *steered.ROWS)


def _id(row: Row) -> str:
    return row.id


@pytest.fixture(scope="module", params=[False, True], ids=["undisturbed", "operator killed"])
def stage(
    request: pytest.FixtureRequest,
    control_plane: ControlPlane,
    operator_kubeconfig: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """One operator for all rows, as starting it takes longer than most of them; or one that is killed in each."""
    log = tmp_path_factory.mktemp("situations") / "operator.log"
    with (
        NodeAgent(control_plane) as agent,
        OperatorProcess(operator_kubeconfig, log) as operator,
        Chronicle(control_plane) as chronicle,
    ):
        yield Stage(control_plane, agent, operator, chronicle, kills=request.param)
    text = log.read_text()
    assert "Traceback" not in text, text
    assert 'User "system:serviceaccount' not in text, f"the role lacks a right: {text}"


@pytest.fixture(scope="module", autouse=True)
def played(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[None]]]:
    """The patient rows that were selected, which are played beside all others, from the start on."""
    selected = [params for item in request.session.items if "patient" in (params := _params(item))]
    rows = [params["patient"] for params in selected if params["stage"] == stage.kills]
    others_kill = replace(stage, kills=False)
    with ThreadPoolExecutor(max_workers=max(len(rows), 1)) as pool:
        yield {row.id: pool.submit(others_kill.play, row) for row in rows}


def _params(item: pytest.Item) -> Mapping[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def test_patient_rows_have_their_instance_types_alone() -> None:
    """They are played beside the others, whose pods must find no node among theirs."""
    others = {kind for row in ROWS for kind in row.instance_types}
    counts = Counter(kind for row in patient.ROWS for kind in row.instance_types)
    assert set(counts.values()) == {1}
    assert not others & counts.keys()


@pytest.mark.parametrize("row", ROWS, ids=_id)
def test_situation(stage: Stage, row: Row) -> None:
    """The status says at every moment what is true, and in the end what has become of each cell and why."""
    stage.play(row)


@pytest.mark.parametrize("patient", patient.ROWS, ids=_id)
def test_situation_that_takes_time(played: Mapping[str, Future[None]], patient: Row) -> None:
    """The same, where the cluster or the operator waits by design before it believes what it sees."""
    played[patient.id].result()
