"""What the end-to-end tests do over and over: apply a benchmark, look at it, wait for what must become true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from cluster import ControlPlane, NodeAgent
from cluster.observing import eventually, read
from cluster.operator_process import OperatorProcess

Json = dict[str, Any]


def benchmark(name: str, **spec: Any) -> Json:  # noqa: ANN401 - any part of a specification
    """Return a small benchmark on simulated CPU nodes; `spec` replaces or adds fields."""
    defaults = {
        "models": [{"name": "bert", "id": "bert-base-uncased", "weights": "Random"}],
        "accelerators": [{"name": "cpu", "kind": "CPU"}],
        "sequenceLengths": [8, 16],
        "measurement": {
            "processes": 1,
            "minSamples": 130,
            "minSeconds": 1,
            "maxSeconds": 60,
            "targetHalfWidthPercent": 100,
        },
    }
    return {
        "apiVersion": "inferbench.dev/v1alpha1",
        "kind": "InferenceBenchmark",
        "metadata": {"name": name},
        "spec": defaults | spec,
    }


@dataclass(frozen=True, slots=True)
class Harness:
    """One namespace of a cluster in which the operator runs."""

    control_plane: ControlPlane
    agent: NodeAgent
    operator: OperatorProcess
    namespace: str

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.control_plane.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    def apply(self, manifest: Json) -> None:
        """Apply a manifest."""
        self.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(manifest))

    def get(self, kind: str, name: str) -> Json:
        """Return an object."""
        return read(self.control_plane, self.namespace, kind, name)

    def list(self, kind: str) -> list[Json]:
        """Return all objects of a kind in the namespace."""
        items: list[Json] = read(self.control_plane, self.namespace, kind)["items"]
        return items

    def status(self, name: str) -> Json:
        """Return a benchmark's status."""
        found: Json = self.get("ib", name)["status"]
        return found

    def condition(self, name: str, kind: str) -> Json:
        """Return a benchmark's condition, or an empty one."""
        conditions = self.status(name).get("conditions", [])
        return next((found for found in conditions if found["type"] == kind), {})

    def wait_until_finished(self, name: str, *, seconds: float = 120, every: float = 0.1) -> Json:
        """Wait until the run of the benchmark's present generation is over; return the status.

        Where something real is measured meanwhile, look seldom: each look costs the processor a moment.
        """

        def is_over(found: Json) -> bool:
            status = found["status"]
            current = status["observedGeneration"] == found["metadata"]["generation"]
            return current and "completionTime" in status.get("run", {})

        found = eventually(
            f"the run of {name} is over", lambda: self.get("ib", name), is_over, seconds=seconds, every=every
        )
        status: Json = found["status"]
        return status

    def cells(self, name: str) -> dict[tuple[str, str, int | None], Json]:
        """Return a benchmark's entries by model, accelerator and sequence length."""
        return {
            (entry["model"], entry["accelerator"], entry.get("sequenceLength")): entry
            for entry in self.status(name).get("results", [])
        }
