"""What is asked for beyond the cache before a decision: the end of a log, and Events."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from inferbench_operator.core.decide import decide
from inferbench_operator.core.facts import ClusterWarning, Observed
from inferbench_operator.kube.errors import ForbiddenError, KubernetesError, NotFoundError
from inferbench_operator.kube.gather import gather
from inferbench_operator.kube.kinds import JOB, Kind
from inferbench_runner.contract import REPORT_MARK
from operator_testing.builders import (
    NOW,
    SETTINGS,
    ago,
    attempt_of,
    benchmark,
    cells_of,
    details,
    ended,
    full_report,
    measured,
    observed,
    pod,
    report,
    result_of,
    run_of,
    running,
    spec,
)
from operator_testing.server import Json, Server, ServerClient
from operator_testing.virtual_time import VirtualCalendar


class _LogClient(ServerClient):
    """Counts how often logs are read, and about whom Events are asked for."""

    def __init__(self, text: str | KubernetesError = "", warning: Json | KubernetesError | None = None) -> None:
        self.server = Server()
        super().__init__(self.server)
        self.text = text
        self.warning = warning
        self.read = 0
        self.asked: list[tuple[str, str]] = []

    async def latest_warning(self, namespace: str, kind: str, name: str) -> Json | None:
        """Return the Event, or fail."""
        del namespace
        self.asked.append((kind, name))
        if isinstance(self.warning, KubernetesError):
            raise self.warning
        return self.warning

    async def queue_word(self, namespace: str, job_uid: str) -> Json | None:
        """Return the same."""
        return await self.latest_warning(namespace, "Workload", job_uid)

    async def log(self, namespace: str, pod: str, container: str, *, limit_bytes: int) -> str:
        """Return the log, or fail."""
        del namespace, pod, container, limit_bytes
        self.read += 1
        if isinstance(self.text, KubernetesError):
            raise self.text
        return self.text


WANTED = spec()
(CELL,) = cells_of(WANTED)
FULL = full_report(details(measured(CELL.hash)))


def _facts(*results: Any, of_pod: Any = None) -> Observed:  # noqa: ANN401 - results, a pod
    of = benchmark(WANTED)
    status = decide(observed(of), VirtualCalendar(2026, 1, 5), SETTINGS).status
    assert status
    of = replace(of, status=status)
    done = of_pod or ended(report(measured(CELL.hash)))
    return observed(of, attempt_of(of, pod=done), *results)


async def test_the_full_report_is_read_from_the_log_when_a_result_is_due() -> None:
    """Once, in the pass that writes the result."""
    client = _LogClient(f"noise\n{REPORT_MARK}{FULL.model_dump_json()}\n")
    (attempt,) = (await gather(_facts(), client, NOW))[0].attempts
    assert attempt.full_report == FULL
    assert client.read == 1


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(_facts(of_pod=running()), id="the runner is at work"),
        pytest.param(_facts(of_pod=ended(exit_code=1)), id="the runner measured nothing"),
        pytest.param(
            _facts(result_of(benchmark(WANTED), CELL, run=run_of(benchmark(WANTED)))), id="the result is stored"
        ),
    ],
)
async def test_no_log_is_read_without_need(facts: Observed) -> None:
    """Logs are the dearest thing to ask for."""
    client = _LogClient("")
    assert await gather(facts, client, NOW) == (facts, None)
    assert client.read == 0


@pytest.mark.parametrize(
    "log",
    [
        pytest.param("nothing", id="without a report"),
        pytest.param(KubernetesError("GET", "log", 404, "gone"), id="gone"),
    ],
)
async def test_a_missing_log_costs_only_the_details(log: str | KubernetesError) -> None:
    """The attempt stays as it is, with its figures."""
    (attempt,) = (await gather(_facts(), _LogClient(log), NOW))[0].attempts
    assert attempt.full_report is None
    assert attempt.pod
    assert attempt.pod.terminated
    assert attempt.pod.terminated.report


@pytest.mark.parametrize(
    ("job", "deleting"),
    [
        pytest.param(None, True, id="it is gone"),
        pytest.param({"uid": "another"}, True, id="another has its name"),
        pytest.param({"deletionTimestamp": "2026-01-05T12:00:00Z"}, True, id="it is on its way out"),
        pytest.param({}, False, id="it is there"),
    ],
)
async def test_a_pod_may_have_gone_with_its_job(job: Json | None, deleting: bool) -> None:  # noqa: FBT001 - a parameter
    """Nothing says that the watch of Jobs is as fast as the one of pods."""
    attempt = attempt_of(benchmark(WANTED), pod=running(gone_at=ago(1)))
    client = _LogClient()
    if job is not None:
        client.server.objects[JOB, attempt.name] = {"metadata": {"uid": attempt.uid} | job}
    facts, _ = await gather(_waiting(attempt), client, NOW)
    assert facts.attempts == (replace(attempt, deleting=deleting),)


class _ReferenceClient(_LogClient):
    """Has one ConfigMap, or fails."""

    def __init__(self, answer: Json | KubernetesError) -> None:
        super().__init__()
        self.answer = answer

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Return the ConfigMap, or fail."""
        assert (kind.plural, namespace, name) == ("configmaps", "team", "approved")
        if isinstance(self.answer, KubernetesError):
            raise self.answer
        return self.answer


GATED = spec(
    gates=[
        {"name": "a", "metric": "P95", "baseline": "ConfigMap", "baselineName": "approved", "maxIncreasePercent": 10},
        {"name": "b", "metric": "P95", "maxMicroseconds": 1},
    ]
)


@pytest.mark.parametrize(
    ("answer", "text", "broken", "words"),
    [
        pytest.param({"data": {"reference.json": "[]"}}, "[]", False, "", id="it is there"),
        pytest.param({"data": {"other": "[]"}}, "", True, "has no key reference.json", id="it has no such key"),
        pytest.param({}, "", True, "has no key reference.json", id="it is empty"),
        pytest.param(NotFoundError("GET", "configmaps", 404, ""), "", False, "There is no ConfigMap", id="it is gone"),
        pytest.param(
            ForbiddenError("GET", "configmaps", 403, "no"), "", False, "may not read ConfigMap", id="no right"
        ),
    ],
)
async def test_a_reference_is_read_for_its_gate(
    answer: Json | KubernetesError,
    text: str,
    broken: bool,  # noqa: FBT001 - a parameter
    words: str,
) -> None:
    """Or there is a sentence that says why not, and whether that is a mistake."""
    facts, _ = await gather(observed(benchmark(GATED)), _ReferenceClient(answer), NOW)
    (found,) = facts.references.values()
    assert (found.text, found.broken) == (text, broken)
    assert words in found.problem


async def test_an_error_is_not_an_absence() -> None:
    """The pass fails, and is repeated."""
    client = _ReferenceClient(KubernetesError("GET", "configmaps", 500, "out of order"))
    with pytest.raises(KubernetesError, match="out of order"):
        await gather(observed(benchmark(GATED)), client, NOW)


def _waiting(*attempts: Any) -> Observed:  # noqa: ANN401 - attempts
    return replace(_facts(), attempts=attempts)


EVENT = {"reason": "FailedCreate", "message": "exceeded quota: team"}
SILENT = {
    "a Job without a pod": attempt_of(benchmark(WANTED)),
    "a pod whose container doesn't come": attempt_of(benchmark(WANTED), pod=pod(scheduled_at=ago(30))),
}


@pytest.mark.parametrize("name", SILENT)
async def test_events_say_why_an_attempt_waits_that_has_no_words(name: str) -> None:
    """Those on the pod, or where there is none, on the Job; and they are asked for again after a while."""
    client, attempt = _LogClient(warning=EVENT), SILENT[name]
    facts, again = await gather(_waiting(attempt), client, NOW)
    assert facts.attempts == (replace(attempt, warning=ClusterWarning("FailedCreate", "exceeded quota: team")),)
    assert client.asked == [("Pod", "study-pod") if attempt.pod else ("Job", attempt.name)]
    assert again == NOW + timedelta(seconds=30)


@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param(
            attempt_of(benchmark(WANTED), pod=pod(unschedulable="0/3 nodes")), id="the scheduler has said why"
        ),
        pytest.param(
            attempt_of(benchmark(WANTED), pod=pod(scheduled_at=ago(30), waiting_message="Back-off")),
            id="the kubelet has said why",
        ),
        pytest.param(attempt_of(benchmark(WANTED), pod=running()), id="it runs"),
        pytest.param(attempt_of(benchmark(WANTED), finished_at=ago(1)), id="it has ended"),
        pytest.param(attempt_of(benchmark(WANTED), run="ffffffff"), id="it is of another run"),
    ],
)
async def test_no_events_are_asked_for_without_need(attempt: Any) -> None:  # noqa: ANN401 - an attempt
    """Most waits tell for what."""
    client = _LogClient(warning=EVENT)
    assert await gather(_waiting(attempt), client, NOW) == (_waiting(attempt), None)
    assert client.asked == []


async def test_a_wait_of_seconds_is_left_alone() -> None:
    """Most pods start by then; it is looked at again when it has taken longer."""
    client, young = _LogClient(warning=EVENT), attempt_of(benchmark(WANTED), created_at=ago(9))
    assert await gather(_waiting(young), client, NOW) == (_waiting(young), NOW + timedelta(seconds=10))
    assert client.asked == []


async def test_the_queue_says_why_it_holds_a_job() -> None:
    """Not Events, which speak of pods."""
    client, attempt = _LogClient(warning=EVENT), attempt_of(benchmark(WANTED), suspended=True)
    facts, again = await gather(_waiting(attempt), client, NOW)
    assert facts.attempts == (replace(attempt, warning=ClusterWarning("FailedCreate", "exceeded quota: team")),)
    assert (client.asked, again) == ([("Workload", attempt.uid)], NOW + timedelta(seconds=30))


async def test_few_of_many_are_asked_about() -> None:
    """What holds one of them up holds up the others as well."""
    client = _LogClient(warning=EVENT)
    many = [attempt_of(benchmark(WANTED), number=number) for number in range(1, 9)]
    facts, _ = await gather(_waiting(*many), client, NOW)
    assert len(client.asked) == sum(attempt.warning is not None for attempt in facts.attempts) == 4


@pytest.mark.parametrize("answer", [None, KubernetesError("GET", "events", 403, "forbidden")])
async def test_without_events_the_wait_has_fewer_words(answer: KubernetesError | None) -> None:
    """Whether there are none, or the right to read them is withheld."""
    attempt = SILENT["a Job without a pod"]
    facts, _ = await gather(_waiting(attempt), _LogClient(warning=answer), NOW)
    assert facts.attempts == (attempt,)
