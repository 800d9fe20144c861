"""The kinds of objects that the operator deals with, and where the API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from inferbench_operator.core.names import LABEL_BENCHMARK
from inferbench_operator.models.base import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    group: str
    version: str
    plural: str
    selector: str = ""
    """Label selector of the objects that concern the operator; empty means all."""

    def path(self, namespace: str | None, name: str = "") -> str:
        """Return the URL path of an object, or of the collection in one namespace or (None) in all."""
        where = f"/namespaces/{namespace}" if namespace is not None else ""
        return f"{self.root}{where}/{self.plural}" + (f"/{name}" if name else "")

    @property
    def root(self) -> str:
        """The URL path of its version of its group, at which the API server tells what it serves of that."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


BENCHMARK = Kind(GROUP, VERSION, "inferencebenchmarks")
RESULT = Kind(GROUP, VERSION, "inferencebenchmarkresults")
JOB = Kind("batch", "v1", "jobs", LABEL_BENCHMARK)
POD = Kind("", "v1", "pods", LABEL_BENCHMARK)
EVENT = Kind("", "v1", "events")
CONFIG_MAP = Kind("", "v1", "configmaps")
NODE = Kind("", "v1", "nodes")
NODE_POOL = Kind("karpenter.sh", "v1", "nodepools")
"""What nodes Karpenter may bring; of EKS Auto Mode as well."""
WORKLOADS = (Kind("kueue.x-k8s.io", "v1beta2", "workloads"), Kind("kueue.x-k8s.io", "v1beta1", "workloads"))
"""What Kueue makes for a Job that it holds, in the versions of its API that are in use, newest first."""
KUEUE_JOB_LABEL = "kueue.x-k8s.io/job-uid"
"""On a Workload: the Job that it stands for."""

WATCHED = (BENCHMARK, RESULT, JOB, POD)
