"""Hands every watch event to the reconciler. No rule lives here.

Only `on.event` is used: Kopf's other handlers would put finalizers or annotations on the user's objects.
"""

from __future__ import annotations

from typing import Any

import kopf

from inferbench_operator.core.names import LABEL_BENCHMARK
from inferbench_operator.kube.kinds import JOB, POD, WATCHED, Kind
from inferbench_operator.kube.reconciler import Reconciler


def register(registry: kopf.OperatorRegistry, reconciler: Reconciler) -> None:
    """Watch everything that the reconciler works with."""
    for kind in WATCHED:
        _register(registry, reconciler, kind)


def configure(settings: kopf.OperatorSettings) -> None:
    """Set what differs from Kopf's defaults, each for its reason."""
    # Resources are named in full, so Kopf needs no right to list CRDs or namespaces.
    settings.scanning.disabled = True
    # Nothing is compared with its last state, and the copies would be a seventh of the work in a busy cluster.
    settings.persistence.diffbase_storage = _NothingToCompare()
    # A second operator in the cluster must not pause this one.
    settings.peering.standalone = True
    # Events on the benchmark are written by the applier, each once.
    settings.posting.enabled = False
    # A watch that the network has lost must not look alive for long.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    # Less than the usual grace period of a pod.
    settings.process.ultimate_exiting_timeout = 25
    for kind in (JOB, POD):
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = LABEL_BENCHMARK


class _NothingToCompare(kopf.DiffBaseStorage):
    """Spares Kopf the copies of every object that it makes for handlers of changes, of which there are none."""

    def build(self, **_: Any) -> kopf.BodyEssence:  # noqa: ANN401 - Kopf passes everything it has
        """Return nothing to compare."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:  # noqa: ANN401 - Kopf passes everything it has
        """Return no last state."""

    def store(self, **_: Any) -> None:  # noqa: ANN401 - Kopf passes everything it has
        """Write nothing into the object."""


def _register(registry: kopf.OperatorRegistry, reconciler: Reconciler, kind: Kind) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, id=f"saw-{kind.plural}", registry=registry)
    async def saw(event: kopf.RawEvent, **_: Any) -> None:  # noqa: ANN401 - Kopf passes everything it has
        reconciler.saw(kind, event["object"], deleted=event["type"] == "DELETED")
