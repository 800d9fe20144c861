"""The scene of a measurement: an embedded cluster of its own, simulated nodes, the operator as in production."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cluster.api import Api
from cluster.bench.sightings import Sightings
from cluster.controlplane import ControlPlane
from cluster.node_agent import NodeAgent
from cluster.nodes import cpu_node
from cluster.observing import NeverHappenedError
from cluster.operator_process import CRDS, ROLES, SERVICE_ACCOUNT, OperatorProcess

Say = Callable[[str], None]

_NAMESPACE: Final = "bench"
_PATH: Final = f"/apis/inferbench.dev/v1alpha1/namespaces/{_NAMESPACE}/inferencebenchmarks"
_PATIENCE_SECONDS: Final = 300.0
# A node takes 110 pods at a time.
_NODES: Final = 3


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster on which the operator runs."""

    agent: NodeAgent
    operator: OperatorProcess
    api: Api
    """An administrator's client, which keeps its connections."""
    sightings: Sightings
    namespace: str = _NAMESPACE

    async def apply(self, name: str, **spec: Any) -> None:  # noqa: ANN401 - any part of a specification
        """Create a benchmark by one request; a kubectl process would take longer than what is measured."""
        manifest = {
            "apiVersion": "inferbench.dev/v1alpha1",
            "kind": "InferenceBenchmark",
            "metadata": {"name": name},
            "spec": spec_of(**spec),
        }
        await self.api.request("POST", _PATH, manifest)

    async def wait_until_completed(self, names: Sequence[str]) -> None:
        """Return when the runs of these benchmarks are over."""
        moments = self.sightings.completed
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await asyncio.gather(*(moments.of(name) for name in names))
        except TimeoutError:
            left = [name for name in names if not moments.of(name).done()]
            what = f"{len(names)} runs are over"
            raise NeverHappenedError(what, _PATIENCE_SECONDS, f"{len(left)} that go on, such as {left[0]}") from None


@contextmanager
def cluster(say: Say) -> Iterator[tuple[ControlPlane, NodeAgent, OperatorProcess]]:
    """Start a control plane, nodes that play their pods, and the operator."""
    with ControlPlane(manifests=CRDS, progress=say) as control_plane, NodeAgent(control_plane) as agent:
        for number in range(_NODES):
            agent.add_node(cpu_node(f"simulated-{number}", local=False))
        control_plane.create_namespace(_NAMESPACE)
        control_plane.kubectl("apply", f"--filename={ROLES}")
        control_plane.wait_for_service_account(*SERVICE_ACCOUNT.split("/"))
        kubeconfig = control_plane.kubeconfig_for(SERVICE_ACCOUNT)
        with OperatorProcess(kubeconfig, control_plane.folder / "operator.log") as operator:
            yield control_plane, agent, operator


@asynccontextmanager
async def stage(control_plane: ControlPlane, agent: NodeAgent, operator: OperatorProcess) -> AsyncIterator[Stage]:
    """Open a client inside the running event loop and follow what happens in the namespace."""
    layout = control_plane.layout
    api = Api(layout.server, layout.tokens.admin, ssl.create_default_context(cafile=str(layout.certificates.authority)))
    sightings = Sightings(api, _NAMESPACE)
    following = asyncio.create_task(sightings.follow())
    try:
        yield Stage(agent, operator, api, sightings)
    finally:
        following.cancel()
        await asyncio.wait([following])
        await api.close()
    if not following.cancelled():
        following.result()  # what went wrong in it, which would otherwise pass for an operator that is slow


def spec_of(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any part of a specification
    """Return a specification of one plan of three cells, with `fields` over it, that any node takes at any time."""
    defaults = {
        "models": models(1),
        "accelerators": [{"name": "cpu", "kind": "CPU"}],
        "sequenceLengths": [8, 32, 128],
        "execution": {"exclusiveNode": False},
    }
    return defaults | fields


def models(count: int) -> list[dict[str, str]]:
    """Return so many models; each is a plan of its own."""
    return [
        {"name": f"model-{number}", "id": f"example/model-{number}", "weights": "Random"} for number in range(count)
    ]
