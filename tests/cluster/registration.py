"""Brings nodes to the API server, keeps their leases fresh, and takes them away."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from cluster.api import MERGE_PATCH, Api, ApiError, persist
from cluster.errors import NodeNotReadyError
from cluster.nodes import LEASE_NAMESPACE, Node, lease_manifest, node_manifest, renew_time
from cluster.pods import Json

_RENEW_SECONDS: Final = 10.0
_READY_SECONDS: Final = 60.0
_NODES = "/api/v1/nodes"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"


class Registration:
    """The nodes of one agent."""

    def __init__(self, api: Api, port: int) -> None:
        """Take the client, and the port on which the agent serves logs for all nodes."""
        self._api = api
        self._port = port
        self._names: set[str] = set()

    async def add(self, node: Node) -> None:
        """Register the Node and its Lease; return when the controllers let pods be scheduled on it.

        Raises:
            NodeNotReadyError: They did not.
        """
        manifest = node_manifest(node, self._port)
        # A node that is there already, from an earlier agent, keeps its specification but has a new address for logs.
        created = await self._create_or_patch(_NODES, manifest, f"{_NODES}/{node.name}/status")
        lease = lease_manifest(node.name, created["metadata"]["uid"])
        await self._create_or_patch(_LEASES, lease, f"{_LEASES}/{node.name}")
        self._names.add(node.name)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._wait_until_schedulable(node.name)
        except TimeoutError:
            raise NodeNotReadyError(node.name, _READY_SECONDS) from None

    def forget(self, name: str) -> None:
        """Renew the node's lease no more."""
        self._names.discard(name)

    async def remove(self, name: str) -> None:
        """Delete the Node; its Lease follows, being owned by it."""
        await _unless_absent(self._api, f"{_NODES}/{name}")

    async def renew(self) -> None:
        """Renew all leases for ever, so that the node controller believes in the nodes; cancel it to end."""
        while True:
            for name in list(self._names):
                await self._renew(name)
            await asyncio.sleep(_RENEW_SECONDS)

    async def _create_or_patch(self, collection: str, manifest: Json, path: str) -> Json:
        while True:
            try:
                return await persist(lambda: self._api.request("POST", collection, manifest))
            except ApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
            try:
                return await persist(lambda: self._api.request("PATCH", path, manifest, content_type=MERGE_PATCH))
            except ApiError as error:
                # Between the two requests the garbage collector may take what belonged to an earlier node.
                if error.status != HTTPStatus.NOT_FOUND:
                    raise

    async def _renew(self, name: str) -> None:
        body = {"spec": {"renewTime": renew_time()}}
        path = f"{_LEASES}/{name}"
        try:
            await persist(lambda: self._api.request("PATCH", path, body, content_type=MERGE_PATCH))
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # somebody deleted the node
                raise
            self._names.discard(name)

    async def _wait_until_schedulable(self, name: str) -> None:
        # The API server taints every new node as not ready; a controller takes that back when it sees its conditions.
        while True:
            node = await persist(lambda: self._api.request("GET", f"{_NODES}/{name}"))
            taints = {taint["key"] for taint in node["spec"].get("taints", ())}
            if not any(key.startswith("node.kubernetes.io/") for key in taints):
                return
            await asyncio.sleep(0.05)


async def _unless_absent(api: Api, path: str) -> None:
    try:
        await persist(lambda: api.request("DELETE", path))
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
