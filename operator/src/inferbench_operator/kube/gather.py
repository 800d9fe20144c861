"""Completes the facts of one benchmark with what only a pod's log knows, where a result is about to be written."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from inferbench_operator.core.facts import Attempt, Benchmark, Observed
from inferbench_operator.core.names import RUNNER_CONTAINER
from inferbench_operator.core.reports import parse_full
from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import KubernetesError
from inferbench_runner.contract import FULL_REPORT_BYTES

_LOG_BYTES: Final = FULL_REPORT_BYTES + 64 * 1024

_logger = logging.getLogger(__name__)


async def gather(observed: Observed, client: Client) -> Observed:
    """Return the facts of a benchmark with the full reports of those attempts whose results are not stored yet."""
    stored = {(result.spec.cell, result.status.run) for result in observed.results}
    run = observed.benchmark.status.run
    fresh = [
        attempt
        for attempt in observed.attempts
        if run and attempt.run == run.id and any((cell, attempt.run) not in stored for cell in _measured(attempt))
    ]
    if not fresh:
        return observed
    with_reports = await asyncio.gather(*(_with_full_report(observed.benchmark, attempt, client) for attempt in fresh))
    by_uid = {attempt.uid: attempt for attempt in with_reports}
    return replace(observed, attempts=tuple(by_uid.get(attempt.uid, attempt) for attempt in observed.attempts))


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
