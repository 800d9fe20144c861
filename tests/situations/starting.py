"""Rows about a pod that has a node and does not start: images, configuration, volumes, a kubelet that refuses it."""

from __future__ import annotations

from typing import Final

from cluster import create_container_failure, image_pull_failure, never_starts
from cluster.outcomes import invalid_image_name, out_of, unhealthy_device
from situations.acts import allow, create, drain
from situations.placing import NEURON, NVIDIA
from situations.rows import Cells, Row, on
from situations.waits import pod, shows

_WITH_TOKEN: Final = {
    "runner": {"env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]}
}
_MISSING: Final = 'secret "hub" not found'

ROWS: Final = (
    Row(
        id="an image that is not there",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        pods=(image_pull_failure(),),
        meanwhile=(
            shows("waiting", "ImagePullBackOff", "not found", capacity="True", ready="Waiting"),
            allow(startDeadlineSeconds=1),
        ),
        end=(Cells(state="failed", reason="ImagePullBackOff", words=("(1 s)", "runner-neuronx")),),
        jobs=1,
    ),
    Row(
        id="an image that may not be pulled",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        pods=(image_pull_failure("pull access denied, repository does not exist or may require authorization"),),
        meanwhile=(shows("waiting", "ImagePullBackOff", "require authorization"), allow(startDeadlineSeconds=1)),
        end=(Cells(state="failed", reason="ImagePullBackOff", words=("(1 s)",)),),
        jobs=1,
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
        is_killed_before_acts=True,
    ),
    Row(
        id="a secret that is missing, until the deadline",
        nodes={"a": "inf2.xlarge"},
        spec={**on("inf2.xlarge"), **_WITH_TOKEN},
        meanwhile=(shows("waiting", "CreateContainerConfigError"), allow(startDeadlineSeconds=1)),
        end=(Cells(state="failed", reason="CreateContainerConfigError", words=("(1 s)", _MISSING)),),
        jobs=1,
    ),
    Row(
        id="a container that can't be created",
        nodes={"a": "g6e.xlarge"},
        spec=on("g6e.xlarge"),
        execution={"retries": 0},
        pods=(create_container_failure("nvidia-container-cli: initialization error: nvml error: driver not loaded"),),
        meanwhile=(shows("waiting", "CreateContainerError", "driver not loaded"), allow(startDeadlineSeconds=1)),
        end=(Cells(state="failed", reason="CreateContainerError", words=("driver not loaded",)),),
    ),
    Row(
        id="a volume that does not come, without a word",
        nodes={"a": "g5.xlarge"},
        spec=on("g5.xlarge"),
        execution={"retries": 0},
        pods=(never_starts(),),
        meanwhile=(shows("waiting", "ContainerCreating", ready="Waiting"), allow(startDeadlineSeconds=1)),
        end=(Cells(state="failed", reason="StartDeadlineExceeded", words=("startDeadlineSeconds (1 s)",)),),
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
