"""Reads what the cluster offers: its nodes, and Karpenter's NodePools. Both rights are optional."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from inferbench_operator.core.facts import NodePool, Nodes, Requirement, Supply, Taint
from inferbench_operator.core.preflight import LOOK_EVERY
from inferbench_operator.core.supply import DEVICES, LABELS, NODE_POOL_LABEL, REPELLING
from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import ForbiddenError, KubernetesError, NotFoundError
from inferbench_operator.kube.kinds import NODE, NODE_POOL, Kind

Json = Mapping[str, Any]
Fact = TypeVar("Fact")

_AFTER_REFUSAL: Final = timedelta(minutes=10)
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_THOUSANDS: Final = 1000

_logger = logging.getLogger(__name__)


class SupplyReader:
    """Lists for all benchmarks together, and at most once a minute: there may be thousands of nodes."""

    def __init__(self, client: Client) -> None:
        """Read nothing yet."""
        self._client = client
        self._supply: Supply | None = None
        self._due = self._pools_due = _LONG_AGO
        self._reading = asyncio.Lock()

    async def read(self, now: datetime) -> Supply | None:
        """Return what the cluster offers, as of the last minute; None where the operator may not know."""
        async with self._reading:
            if now >= self._due:
                await self._read_anew(now)
        return self._supply

    async def _read_anew(self, now: datetime) -> None:
        self._due = now + LOOK_EVERY
        try:
            nodes = frozenset(await self._all(NODE, _nodes))
            self._supply = Supply(nodes, await self._pools(now))
        except ForbiddenError as error:
            _logger.debug("Without the right to list nodes, the scheduler alone says what is lacking: %s", error)
            self._supply, self._due = None, now + _AFTER_REFUSAL
        except KubernetesError as error:
            # That nodes can't be listed just now doesn't mean that there are none.
            _logger.debug("What was known of nodes stands: %s", error)

    async def _pools(self, now: datetime) -> tuple[NodePool, ...] | None:
        if now < self._pools_due:
            return None
        try:
            return tuple(sorted(await self._all(NODE_POOL, _node_pool), key=lambda pool: pool.name))
        except (ForbiddenError, NotFoundError) as error:
            _logger.debug("Nothing is known of NodePools: %s", error)
            self._pools_due = now + _AFTER_REFUSAL
            return None

    async def _all(self, kind: Kind, parse: Callable[[Json], Fact]) -> set[Fact]:
        # A node is a hundred times as large as what is kept of it, and most are alike.
        return {parse(raw) async for page in self._client.pages(kind, None) for raw in page["items"]}


def _nodes(raw: Json) -> Nodes:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    labels = metadata.get("labels") or {}
    amounts = status.get("allocatable") or {}
    return Nodes(
        labels=tuple(sorted((key, value) for key, value in labels.items() if key in LABELS)),
        devices=tuple(sorted((name, _number(text)) for name, text in amounts.items() if name.startswith(DEVICES))),
        taints=_taints(spec.get("taints")),
        cordoned=bool(spec.get("unschedulable")),
    )


def _node_pool(raw: Json) -> NodePool:
    name, template = raw["metadata"]["name"], raw["spec"]["template"]
    labels = {**((template.get("metadata") or {}).get("labels") or {}), NODE_POOL_LABEL: name}
    asked = template["spec"].get("requirements") or []
    return NodePool(
        name=name,
        requirements=(
            *(Requirement(one["key"], one["operator"], tuple(one.get("values") or ())) for one in asked),
            *(Requirement(key, "In", (value,)) for key, value in labels.items()),
        ),
        taints=_taints(template["spec"].get("taints")),
    )


def _taints(raws: Iterable[Json] | None) -> tuple[Taint, ...]:
    found = (Taint(raw["key"], raw.get("value") or "", raw["effect"]) for raw in raws or ())
    return tuple(sorted((taint for taint in found if taint.effect in REPELLING), key=str))


def _number(text: str) -> int:
    """Return a whole amount; Kubernetes writes a thousand as 1k, which is more than anybody asks for."""
    return int(text) if text.isdecimal() else _THOUSANDS
