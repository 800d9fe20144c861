"""Lists everything, namespace by namespace: at the start, and then to find what a watch has missed.

A pass over half the facts could start a run twice. So the benchmarks of a namespace that could not be listed are left
alone until it is, and those of the other namespaces don't wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from inferbench_operator.kube import metrics
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import ForbiddenError, KubernetesError
from inferbench_operator.kube.kinds import WATCHED
from inferbench_operator.kube.parse import Key

RETRY_SECONDS: Final = 5.0
"""How often is tried again what has failed."""

_logger = logging.getLogger(__name__)


class Listings:
    """What is listed into the cache, and of which namespaces that holds all there is."""

    def __init__(self, client: Client, cache: Cache, namespaces: tuple[str | None, ...]) -> None:
        """List in these namespaces; (None,) means in all."""
        self._client = client
        self._cache = cache
        self._namespaces = namespaces
        self._problems: dict[str | None, str] = dict.fromkeys(namespaces, "")
        """Namespaces that are not listed, and why; nothing before the first time."""

    def is_complete(self, key: Key) -> bool:
        """Whether all is known of a benchmark."""
        return not self._problems.keys() & {None, key.namespace}

    async def until_installed(self) -> None:
        """Return when the API server serves all kinds that are to be watched: Kopf looks for them only once."""
        told = ""
        while problem := await self._missing_kinds():
            if problem != told:
                _logger.warning("Waiting for the cluster: %s", problem)
            told = problem
            await asyncio.sleep(RETRY_SECONDS)

    async def list_all(self) -> list[Key]:
        """List everything; return the benchmarks that were found."""
        return await self._list(self._namespaces)

    async def list_failed(self) -> list[Key]:
        """List what could not be listed before; return the benchmarks that were found."""
        return await self._list(tuple(self._problems))

    async def _list(self, namespaces: Iterable[str | None]) -> list[Key]:
        listed = [namespace for namespace in namespaces if await self._list_one(namespace)]
        if listed and not self._problems:
            metrics.resynced()
        return [key for key in self._cache.known() if not {None, key.namespace}.isdisjoint(listed)]

    async def _list_one(self, namespace: str | None) -> bool:
        """List everything in a namespace; return whether it worked."""
        where = "all namespaces" if namespace is None else f"namespace {namespace}"
        before = self._problems.get(namespace)
        try:
            for kind in WATCHED:
                # Held by no name, so that there is never more than one listing in memory.
                self._cache.replace_all(kind, *await self._client.list(kind, namespace), namespace)
        except KubernetesError as error:
            problem = self._problems[namespace] = f"{error}{_advice(error, namespace)}"
            if problem != before:
                _logger.warning("The benchmarks in %s are left alone until all can be listed: %s", where, problem)
            return False
        self._problems.pop(namespace, None)
        if before:
            _logger.info("The benchmarks in %s are looked after from now on.", where)
        return True

    async def _missing_kinds(self) -> str:
        try:
            missing = [kind.plural for kind in WATCHED if not await self._client.serves(kind)]
        except KubernetesError as error:
            return str(error)
        return f"it has no {' and no '.join(missing)}; apply the CRDs." if missing else ""


def _advice(error: KubernetesError, namespace: str | None) -> str:
    if not isinstance(error, ForbiddenError):
        return ""
    missing = "ClusterRole" if namespace is None else "Role in it, or the namespace itself"
    return f". What is missing is the operator's {missing}."
