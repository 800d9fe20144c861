"""What Argo CD and Flux make of a benchmark: the scripts and expressions in `charts/inferbench/files`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.kstatus import kstatus_of
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.status import ConditionType
from operator_testing.builders import spec_json
from operator_testing.gitops import FILES, RERUN, argo_customization, disagreements, flux_status
from operator_testing.kstatus import kstatus

Json = dict[str, Any]

ARGO = FILES / "argocd"
ACTIONS = ("rerun", "suspend", "resume", "cancel")
EXAMPLES = FILES.parent / "examples"


def said(kind: str, status: str, message: str = "") -> Json:
    """Return a condition."""
    return {"type": kind, "status": status, "reason": "Any", "message": message or f"{kind} is {status}."}


def seen(*conditions: Json, rerun: str = "", spec: Json | None = None, **status: Any) -> Json:  # noqa: ANN401 - any field
    """Return a benchmark whose third generation the operator has seen, with the value of its annotation."""
    return {
        "metadata": {"name": "study", "generation": 3, "annotations": {RERUN: rerun} if rerun else {}},
        "spec": spec_json(**(spec or {})),
        "status": {"observedGeneration": 3, "conditions": list(conditions), **status},
    }


def changed(raw: Json, **metadata: Any) -> Json:  # noqa: ANN401 - any field
    """Return a benchmark with other metadata."""
    return raw | {"metadata": raw["metadata"] | metadata}


SUCCESS = (said("Ready", "True", "All figures."), said("Accepted", "True"), said("Succeeded", "True"))
AT_WORK = (said("Reconciling", "True", "1/2 cells."), said("Ready", "False", "1/2 cells."), said("Accepted", "True"))
REFUSAL = (said("Stalled", "True", "No such type."), said("Ready", "False"), said("Accepted", "False"))
FAILURE = (said("Stalled", "True", "1 failed."), said("Ready", "False"), said("Accepted", "True"))
PAUSE = (said("Ready", "False", "1/2 cells; waits."), said("Accepted", "True"), said("Suspended", "True"))

TABLE = [
    pytest.param({"metadata": {"generation": 1}}, "Progressing", "not seen", "Current", id="no status at all"),
    pytest.param(
        {"metadata": {"generation": 1}, "status": {"observedGeneration": -1}},
        "Progressing",
        "not seen",
        "InProgress",
        id="not seen by the operator",
    ),
    pytest.param(
        {"metadata": {"generation": 1}, "status": {"observedGeneration": 1}},
        "Progressing",
        "Waiting for the operator",
        "Current",
        id="seen, but nothing is said",
    ),
    pytest.param(changed(seen(*SUCCESS), generation=4), "Progressing", "not seen", "InProgress", id="edited"),
    pytest.param(changed(seen(*FAILURE), generation=4), "Progressing", "not seen", "InProgress", id="mended"),
    pytest.param(seen(*AT_WORK), "Progressing", "1/2 cells.", "InProgress", id="measuring"),
    pytest.param(
        seen(*AT_WORK, said("Suspended", "True")),
        "Progressing",
        "1/2 cells.",
        "InProgress",
        id="suspended while the last Jobs go on",
    ),
    pytest.param(seen(*PAUSE), "Suspended", "1/2 cells; waits.", "InProgress", id="suspended, and nothing goes on"),
    pytest.param(seen(*SUCCESS), "Healthy", "All figures.", "Current", id="success"),
    pytest.param(
        seen(*SUCCESS, said("Suspended", "True")), "Healthy", "All figures.", "Current", id="suspended after success"
    ),
    pytest.param(
        seen(*SUCCESS, said("GatesPassed", "False")),
        "Healthy",
        "All figures.",
        "Current",
        id="a gate that is only reported is missed",
    ),
    pytest.param(
        seen(
            said("Stalled", "True", "interactive: too slow."),
            said("Ready", "False"),
            said("Succeeded", "True"),
            said("GatesPassed", "False"),
        ),
        "Degraded",
        "interactive: too slow.",
        "Failed",
        id="a gate that is enforced is missed",
    ),
    pytest.param(seen(*FAILURE), "Degraded", "1 failed.", "Failed", id="cells failed"),
    pytest.param(
        seen(*FAILURE, said("Suspended", "True")), "Degraded", "1 failed.", "Failed", id="suspended after a failure"
    ),
    pytest.param(seen(*REFUSAL), "Degraded", "No such type.", "Failed", id="refused"),
    pytest.param(
        seen(*SUCCESS, rerun="b", run={"rerun": "a"}),
        "Progressing",
        "rerun",
        "Current",
        id="another rerun is asked for",
    ),
    pytest.param(seen(*SUCCESS, rerun="a", run={}), "Progressing", "rerun", "Current", id="a first rerun is asked for"),
    pytest.param(seen(*FAILURE, rerun="a"), "Progressing", "rerun", "Failed", id="a rerun after a failure"),
    pytest.param(
        seen(*SUCCESS, rerun="a", run={"rerun": "a"}), "Healthy", "All figures.", "Current", id="the rerun is over"
    ),
    pytest.param(
        seen(*SUCCESS, run={"rerun": "a"}), "Healthy", "All figures.", "Current", id="the annotation is gone again"
    ),
    pytest.param(
        changed(seen(*SUCCESS), annotations={RERUN: ""}), "Healthy", "All figures.", "Current", id="an empty annotation"
    ),
    pytest.param(
        seen(said("Reconciling", "False"), said("Stalled", "False"), *SUCCESS),
        "Healthy",
        "All figures.",
        "Current",
        id="what is not normal is denied",
    ),
    pytest.param(
        seen(*REFUSAL, rerun="b", run={"rerun": "a"}),
        "Degraded",
        "No such type.",
        "Failed",
        id="a rerun of something refused never starts",
    ),
    pytest.param(
        seen(*SUCCESS, rerun="x" * 65, run={"rerun": "x" * 64}),
        "Healthy",
        "All figures.",
        "Current",
        id="an annotation of which the operator keeps but a part",
    ),
]
"""A benchmark; what Argo CD shows, with a part of the message; and what kstatus makes of it."""


@pytest.mark.parametrize(("raw", "health", "words", "word"), TABLE)
def test_health(raw: Json, health: str, words: str, word: str) -> None:
    """Argo CD shows what goes on, and why."""
    found = argo_customization().health(raw)
    assert found.status == health
    assert words in found.message
    assert kstatus(raw) == word


@pytest.mark.parametrize(("raw", "health", "words", "word"), TABLE)
def test_flux_waits_and_fails_with_argo_cd(raw: Json, health: str, words: str, word: str) -> None:  # noqa: ARG001 - one table
    """Current is Healthy, Failed is Degraded, and everything else is still to be waited for."""
    assert flux_status(raw) == {"Healthy": "Current", "Degraded": "Failed"}.get(health, "InProgress")


def _statuses() -> st.SearchStrategy[Json]:
    """Any status that has Ready, and never both of Reconciling and Stalled."""
    others = [kind.value for kind in ConditionType if kind.value not in {"Ready", "Reconciling", "Stalled"}]
    words = st.sampled_from(["True", "False", "Unknown"])
    conditions = st.builds(
        lambda abnormal, ready, rest: [
            *([said(abnormal, "True")] if abnormal else []),
            said("Ready", ready),
            *(said(kind, status) for kind, status in rest.items()),
        ],
        st.sampled_from(["", "Reconciling", "Stalled"]),
        words,
        st.dictionaries(st.sampled_from(others), words),
    )
    return st.builds(
        lambda generation, conditions, asked, taken: changed(
            seen(*conditions, rerun=asked, **({"run": {"rerun": taken} if taken else {}} if taken is not None else {})),
            generation=generation,
        ),
        st.sampled_from([3, 3, 3, 4]),
        conditions,
        st.sampled_from(["", "a", "b", "x" * 65]),
        st.sampled_from([None, "", "a", "x" * 64]),
    )


@given(_statuses())
def test_all_tools_agree(raw: Json) -> None:
    """On any status with the condition Ready, but for a rerun that kstatus can't know of."""
    assert not disagreements([raw], [kstatus(raw)])


def _any_conditions() -> st.SearchStrategy[Json]:
    """Any conditions in any order, as the operator never writes them, of a benchmark that may be on its way out."""
    condition = st.builds(
        said, st.sampled_from([kind.value for kind in ConditionType]), st.sampled_from(["True", "False", "Unknown"])
    )
    return st.builds(
        lambda conditions, observed, deleted: changed(
            seen(*conditions, observedGeneration=observed), **({"deletionTimestamp": deleted} if deleted else {})
        ),
        st.lists(condition, max_size=5),
        st.sampled_from([3, 3, 3, 2, -1]),
        st.sampled_from(["", "", "", "2026-01-01T00:00:00Z"]),
    )


@pytest.mark.e2e
def test_the_rewriting_of_kstatus_says_what_kstatus_says() -> None:
    """So that tests which ask it thousands of times need no other program."""
    rows: list[Json] = [row.values[0] for row in TABLE]
    assert kstatus_of(rows) == [row.values[3] for row in TABLE]

    @settings(max_examples=20, deadline=None)
    @given(st.lists(_any_conditions(), min_size=20, max_size=60))
    def on_any(found: list[Json]) -> None:
        assert kstatus_of(found) == [kstatus(raw) for raw in found]

    on_any()


def test_a_disagreement_is_told() -> None:
    """The comparison itself can fail."""
    assert len(disagreements([seen(*SUCCESS), seen(*PAUSE)], ["InProgress", "Current"])) == 2
    assert not disagreements([seen(*SUCCESS)], ["Terminating"])


@pytest.mark.parametrize(
    ("raw", "enabled"),
    [
        pytest.param(
            changed(seen(), generation=4), {"rerun", "suspend", "cancel"}, id="not seen since the last change"
        ),
        pytest.param(seen(*AT_WORK, run={}), {"rerun", "suspend", "cancel"}, id="measuring"),
        pytest.param(seen(*SUCCESS, run={"completionTime": "then"}), {"rerun"}, id="over"),
        pytest.param(
            seen(*SUCCESS, run={"completionTime": "then"}, spec={"schedule": {"cron": "0 3 * * 1"}}),
            {"rerun", "suspend"},
            id="over until the next tick of its schedule",
        ),
        pytest.param(seen(*PAUSE, run={}, spec={"suspend": True}), {"resume", "cancel"}, id="suspended"),
        pytest.param(seen(*FAILURE, run={"completionTime": "then"}, spec={"cancel": True}), {"resume"}, id="cancelled"),
        pytest.param(seen(*REFUSAL), set(), id="refused"),
        pytest.param(
            seen(*REFUSAL, run={}, cells={"total": 2, "running": 1, "pending": 1}),
            {"suspend", "cancel"},
            id="refused since its Jobs were started",
        ),
        pytest.param(changed(seen(*REFUSAL), generation=4), {"rerun", "suspend", "cancel"}, id="refused, and edited"),
    ],
)
def test_actions_that_make_no_sense_are_disabled(raw: Json, enabled: set[str]) -> None:
    """Each state offers what changes something."""
    assert argo_customization().enabled_actions(raw) == enabled


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("suspend", {}, {"suspend": True}),
        ("cancel", {"suspend": True}, {"suspend": True, "cancel": True}),
        ("resume", {"suspend": True}, {"suspend": False, "cancel": False}),
        ("resume", {"cancel": True}, {"suspend": False, "cancel": False}),
    ],
)
def test_an_action_changes_its_field_and_nothing_else(name: str, before: Json, after: Json) -> None:
    """In the specification, which the operator follows at once."""
    raw = changed(seen(*AT_WORK, spec=before), annotations={"team": "search"})
    assert argo_customization().act(name, deepcopy(raw)) == raw | {"spec": raw["spec"] | after}
    BenchmarkSpec.model_validate(raw["spec"] | after)


@pytest.mark.parametrize("annotations", [None, {"team": "search", RERUN: "before"}])
def test_rerun_sets_a_new_value(annotations: Json | None) -> None:
    """One that the operator keeps whole; other annotations stay."""
    raw = seen(*SUCCESS)
    raw["metadata"] = {key: value for key, value in raw["metadata"].items() if key != "annotations"}
    if annotations:
        raw["metadata"]["annotations"] = annotations
    after = argo_customization().act("rerun", deepcopy(raw))
    value = after["metadata"]["annotations"].pop(RERUN)
    assert value != "before"
    assert 0 < len(value) <= 64
    others = {key: found for key, found in (annotations or {}).items() if key != RERUN}
    assert list(after["metadata"]["annotations"] or []) == list(others)
    assert after | {"metadata": raw["metadata"]} == raw


def test_the_config_map_holds_the_files_beside_it() -> None:
    """Argo CD's own repository takes one file for each script, its ConfigMap all of them."""
    argo = argo_customization()
    assert argo.health_script == (ARGO / "health.lua").read_text()
    assert argo.discovery_script == (ARGO / "actions" / "discovery.lua").read_text()
    assert argo.action_scripts == {name: (ARGO / "actions" / name / "action.lua").read_text() for name in ACTIONS}
    assert {path.parent.name for path in ARGO.glob("actions/*/action.lua")} == set(ACTIONS)
    assert {*argo.enabled_actions({"metadata": {"generation": 1}})} <= set(ACTIONS)


def test_the_expressions_are_what_flux_takes() -> None:
    """The fields of healthCheckExprs, for our kind."""
    flux = yaml.safe_load((FILES / "flux" / "health-checks.yaml").read_text())
    (check,) = flux["spec"]["healthCheckExprs"]
    assert check.keys() == {"apiVersion", "kind", "inProgress", "failed", "current"}
    assert (check["apiVersion"], check["kind"]) == ("inferbench.dev/v1alpha1", "InferenceBenchmark")


def test_argo_cd_waits_for_the_gate_before_the_server() -> None:
    """The benchmark is of an earlier wave, and measures the revision that is rolled out."""
    benchmark, deployment = yaml.safe_load_all((EXAMPLES / "argocd-gate.yaml").read_text())
    first, second = (
        found["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"] for found in (benchmark, deployment)
    )
    assert int(first) < int(second)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "MODEL_REVISION", "value": benchmark["spec"]["models"][0]["revision"]}]
    assert benchmark["spec"]["gateMode"] == "Enforce"
    assert benchmark["spec"]["gates"] == [{"name": "interactive", "metric": "P95", "maxMicroseconds": 5000}]
    read = BenchmarkSpec.model_validate(benchmark["spec"]).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert read == benchmark["spec"]


def test_flux_waits_for_the_gate_before_the_server() -> None:
    """The server's Kustomization depends on the benchmark's, which has the expressions and waits."""
    benchmark, server = yaml.safe_load_all((EXAMPLES / "flux-gate.yaml").read_text())
    checks = yaml.safe_load((FILES / "flux" / "health-checks.yaml").read_text())["spec"]
    assert checks.items() <= benchmark["spec"].items()
    assert server["spec"]["dependsOn"] == [{"name": benchmark["metadata"]["name"]}]
    assert server["spec"]["sourceRef"] == benchmark["spec"]["sourceRef"]
