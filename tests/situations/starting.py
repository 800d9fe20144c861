"""Rows about a pod that has a node and does not start: images, configuration, volumes, a kubelet that refuses it."""

from __future__ import annotations

from typing import Final

from cluster import create_container_failure, image_pull_failure, measured, never_starts
from cluster.outcomes import invalid_image_name, out_of, unhealthy_device
from situations.acts import create, drain, pod, shows
from situations.placing import NEURON, NVIDIA
from situations.rows import Cells, Row, on

_QUICK: Final = {"startDeadlineSeconds": 4}
_WITH_TOKEN: Final = {
    "runner": {"env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]}
}
_MISSING: Final = 'secret "hub" not found'

ROWS: Final = (
    Row(
        id="an image that is not there",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution=_QUICK,
        pods=(image_pull_failure(),),
        meanwhile=(shows("waiting", "ImagePullBackOff", "not found", capacity="True", ready="Waiting"),),
        end=(Cells(state="failed", reason="ImagePullBackOff", words=("(4 s)", "runner-neuronx")),),
        jobs=1,
    ),
    Row(
        id="an image that may not be pulled",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution=_QUICK,
        pods=(image_pull_failure("pull access denied, repository does not exist or may require authorization"),),
        end=(Cells(state="failed", reason="ImagePullBackOff", words=("(4 s)",)),),
        jobs=1,
    ),
    Row(
        id="a registry that does not answer, once",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution=_QUICK,
        pods=(image_pull_failure("dial tcp 10.0.0.1:443: i/o timeout"),),
        meanwhile=(shows("waiting", "ImagePullBackOff", "Back-off pulling image"),),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="a registry that does not answer, twice",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution=_QUICK,
        pods=(image_pull_failure("i/o timeout"), image_pull_failure("i/o timeout")),
        end=(Cells(state="failed", reason="ImagePullBackOff", attempts=2),),
        jobs=2,
    ),
    Row(
        id="an image whose name is none",
        nodes={"a": "inf2.48xlarge"},
        spec={**on("inf2.48xlarge"), "runner": {"image": "Runner:Latest"}},
        pods=(invalid_image_name(),),
        end=(Cells(state="failed", reason="InvalidImageName", words=("Runner:Latest",)),),
        jobs=1,
    ),
    Row(
        id="a secret that is missing, until it is made",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), **_WITH_TOKEN},
        meanwhile=(
            shows("waiting", "CreateContainerConfigError", _MISSING, capacity="True", ready="Waiting"),
            create("secret", "generic", "hub", "--from-literal=token=x"),
        ),
        jobs=1,
        with_kill=True,
    ),
    Row(
        id="a secret that is missing, until the deadline",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), **_WITH_TOKEN},
        execution=_QUICK,
        end=(Cells(state="failed", reason="CreateContainerConfigError", words=("(4 s)", _MISSING)),),
        jobs=1,
    ),
    Row(
        id="a container that can't be created, once",
        nodes={"a": "trn1.32xlarge"},
        spec=on("trn1.32xlarge"),
        execution=_QUICK,
        pods=(create_container_failure("failed to create shim task: OCI runtime create failed: no device neuron0"),),
        meanwhile=(shows("waiting", "CreateContainerError", "no device neuron0"),),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="a container that can't be created",
        nodes={"a": "g6e.xlarge"},
        spec=on("g6e.xlarge"),
        execution={**_QUICK, "retries": 0},
        pods=(create_container_failure("nvidia-container-cli: initialization error: nvml error: driver not loaded"),),
        end=(Cells(state="failed", reason="CreateContainerError", words=("driver not loaded",)),),
    ),
    Row(
        id="a volume that does not come, without a word",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution={**_QUICK, "retries": 0},
        pods=(never_starts(),),
        meanwhile=(shows("waiting", "ContainerCreating"),),
        end=(Cells(state="failed", reason="StartDeadlineExceeded", words=("startDeadlineSeconds (4 s)",)),),
    ),
    Row(
        id="a container that takes its time",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        pods=(measured(start_delay=1),),
        meanwhile=(shows("waiting", "ContainerCreating", capacity="True", ready="Waiting"),),
    ),
    Row(
        id="no healthy device when the pod comes, once",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(unhealthy_device(NEURON),),
        end=(Cells(attempts=2),),
        jobs=2,
    ),
    Row(
        id="no healthy device when the pod comes",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"retries": 0},
        pods=(unhealthy_device(NEURON),),
        end=(
            Cells(
                state="failed",
                reason="UnexpectedAdmissionError",
                words=("Pod was rejected", "cannot allocate unhealthy devices"),
            ),
        ),
    ),
    Row(
        id="a kubelet that knows of fewer devices than the scheduler",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution={"retries": 0},
        pods=(out_of(NVIDIA, 1),),
        end=(Cells(state="failed", reason="OutOfnvidiacomgpu", words=("Node didn't have enough resource",)),),
    ),
    Row(
        id="a drain while the image is pulled",
        nodes={"a": "g5g.xlarge"},
        spec=on("g5g.xlarge"),
        pods=(never_starts(),),
        meanwhile=(pod("starting"), drain()),
        end=(Cells(attempts=2, disruptions=1),),
        jobs=2,
    ),
)
