"""The operator's metrics about itself: declared here, used through verbs."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_PREFIX: Final = "inferbench_operator"

_RECONCILES = Counter(
    f"{_PREFIX}_reconciles",
    "Passes over one benchmark, by result: success, conflict (looked again at once) or error (retried later).",
    ["result"],
)
_RECONCILE_SECONDS = Histogram(
    f"{_PREFIX}_reconcile_duration_seconds",
    "Wall time of one pass over one benchmark.",
    buckets=(0.001, 0.005, 0.02, 0.05, 0.1, 0.5, 2, 10),
)
_REQUESTS = Counter(
    f"{_PREFIX}_api_requests",
    "Requests to the API server other than watches, by verb, resource and HTTP code (0: not reached).",
    ["verb", "resource", "code"],
)
_QUEUE_LENGTH = Gauge(f"{_PREFIX}_queue_length", "Benchmarks that wait for a pass.")
_LAST_RESYNC = Gauge(
    f"{_PREFIX}_last_resync_timestamp_seconds", "When all objects were last listed in full, in seconds since 1970."
)


def reconciled(result: str, seconds: float) -> None:
    """Count one pass."""
    _RECONCILES.labels(result).inc()
    _RECONCILE_SECONDS.observe(seconds)


def api_request(verb: str, resource: str, code: int) -> None:
    """Count one request."""
    _REQUESTS.labels(verb, resource, str(code)).inc()


def queue_length(length: int) -> None:
    """Tell how many benchmarks wait for a pass."""
    _QUEUE_LENGTH.set(length)


def resynced() -> None:
    """Tell that all objects have just been listed."""
    _LAST_RESYNC.set_to_current_time()
