"""Completes the facts of one benchmark with what the cache does not hold: the end of a log, Events."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from inferbench_operator.core.assessment import wanted_references
from inferbench_operator.core.attempts import is_silent
from inferbench_operator.core.baselines import REFERENCE_KEY
from inferbench_operator.core.facts import Attempt, Benchmark, ClusterWarning, Observed, Reference
from inferbench_operator.core.names import RUNNER_CONTAINER
from inferbench_operator.core.reports import parse_full
from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import ForbiddenError, KubernetesError, NotFoundError
from inferbench_operator.kube.kinds import CONFIG_MAP, JOB
from inferbench_runner.contract import FULL_REPORT_BYTES

_LOG_BYTES: Final = FULL_REPORT_BYTES + 64 * 1024

_PATIENCE: Final = timedelta(seconds=10)
"""How long an attempt may wait without a word before Events are asked: most start by then."""
_ASK_AGAIN: Final = timedelta(seconds=30)
_ASKED: Final = 4
"""Most attempts about which Events are asked for in one pass."""

_logger = logging.getLogger(__name__)


async def gather(observed: Observed, client: Client, now: datetime) -> tuple[Observed, datetime | None]:
    """Return the facts of a benchmark with what only logs and Events know, and when to ask these again.

    That is the full reports of attempts whose results are not stored yet, why others wait, whether a Job has gone with
    its pod, and what gates compare with.
    """
    observed = await _with_jobs(observed, client)
    observed = await _with_references(observed, client)
    observed = await _with_reports(observed, client)
    silent = [attempt for attempt in _current(observed) if is_silent(attempt)]
    if not silent:
        return observed, None
    # What holds one of them up holds up the others as well: a few requests are enough.
    asked = [attempt for attempt in silent if now >= _since(attempt) + _PATIENCE][:_ASKED]
    told = {attempt.uid: await _warning(observed.benchmark, attempt, client) for attempt in asked}
    attempts = tuple(replace(one, warning=told.get(one.uid)) for one in observed.attempts)
    return replace(observed, attempts=attempts), now + (_ASK_AGAIN if asked else _PATIENCE)


def _since(attempt: Attempt) -> datetime:
    return (
        attempt.pod.scheduled_at or attempt.pod.created_at if attempt.pod else attempt.started_at or attempt.created_at
    )


def _current(observed: Observed) -> list[Attempt]:
    run = observed.benchmark.status.run
    return [attempt for attempt in observed.attempts if run and attempt.run == run.id]


async def _with_jobs(observed: Observed, client: Client) -> Observed:
    """Return the facts with the Jobs marked that somebody has deleted, where so far only their pods were heard to go.

    Each kind has its own watch. Of the pod alone it would seem that the cluster had taken it away.
    """
    namespace = observed.benchmark.namespace
    attempts = []
    for attempt in observed.attempts:
        doubtful = attempt.pod and attempt.pod.gone_at and not (attempt.deleting or attempt.finished_at)
        gone = doubtful and not await client.exists(JOB, namespace, attempt.name, uid=attempt.uid)
        attempts.append(replace(attempt, deleting=True) if gone else attempt)
    return replace(observed, attempts=tuple(attempts))


async def _with_references(observed: Observed, client: Client) -> Observed:
    namespace = observed.benchmark.namespace
    found = {name: await _reference(namespace, name, client) for name in wanted_references(observed)}
    return replace(observed, references=found)


async def _reference(namespace: str, name: str, client: Client) -> Reference:
    """Return what a ConfigMap has to compare with, or why it has nothing; another error is not "nothing"."""
    try:
        data = (await client.get(CONFIG_MAP, namespace, name)).get("data") or {}
    except NotFoundError:
        return Reference(problem=f"There is no ConfigMap {name} in this namespace to compare with.")
    except ForbiddenError as error:
        return Reference(problem=f"The operator may not read ConfigMap {name}: {error.detail}")
    if REFERENCE_KEY not in data:
        return Reference(problem=f"ConfigMap {name} has no key {REFERENCE_KEY} to compare with; add it.", broken=True)
    return Reference(data[REFERENCE_KEY])


async def _with_reports(observed: Observed, client: Client) -> Observed:
    stored = {(result.spec.cell, result.status.run) for result in observed.results}
    fresh = [
        attempt
        for attempt in _current(observed)
        if any((cell, attempt.run) not in stored for cell in _measured(attempt))
    ]
    if not fresh:
        return observed
    with_reports = await asyncio.gather(*(_with_full_report(observed.benchmark, attempt, client) for attempt in fresh))
    by_uid = {attempt.uid: attempt for attempt in with_reports}
    return replace(observed, attempts=tuple(by_uid.get(attempt.uid, attempt) for attempt in observed.attempts))


async def _warning(benchmark: Benchmark, attempt: Attempt, client: Client) -> ClusterWarning | None:
    kind, name = ("Pod", attempt.pod.name) if attempt.pod else ("Job", attempt.name)
    try:
        if attempt.suspended:
            latest = await client.queue_word(benchmark.namespace, attempt.uid)
        else:
            latest = await client.latest_warning(benchmark.namespace, kind, name)
    except KubernetesError as error:
        # The right to read Events or Workloads may be withheld; then the wait has fewer words.
        _logger.debug("%s/%s: nothing is known of %s: %s", benchmark.namespace, benchmark.name, name, error)
        return None
    return ClusterWarning(latest.get("reason") or "", latest.get("message") or "") if latest else None


def _measured(attempt: Attempt) -> list[str]:
    end = attempt.pod.terminated if attempt.pod else None
    return [entry.cell for entry in end.report.measured] if end and end.report else []


async def _with_full_report(benchmark: Benchmark, attempt: Attempt, client: Client) -> Attempt:
    if attempt.pod is None:
        return attempt
    try:
        log = await client.log(benchmark.namespace, attempt.pod.name, RUNNER_CONTAINER, limit_bytes=_LOG_BYTES)
    except KubernetesError as error:
        # The figures are in the termination message; only the details are lost with the log.
        where = f"{benchmark.namespace}/{benchmark.name}"
        _logger.warning("%s: no details from pod %s: %s", where, attempt.pod.name, error)
        return attempt
    return replace(attempt, full_report=parse_full(log))
