"""Pods as the node agent sees them: parsed once, where they come from the API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = Mapping[str, Any]
"""A JSON object from the API server."""

DEFAULT_GRACE_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Container:
    """What the agent heeds of a container's specification."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[Json, ...] = ()
    """Entries as in the manifest, in order: later ones may refer to earlier ones."""
    env_from: tuple[Json, ...] = ()
    working_dir: str | None = None
    message_from_logs: bool = False
    """Whether terminationMessagePolicy is FallbackToLogsOnError."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Name of the volume by mount path."""


@dataclass(frozen=True, slots=True)
class Pod:
    """What the agent heeds of a pod."""

    namespace: str
    name: str
    uid: str
    node: str
    containers: tuple[Container, ...]
    init_containers: int = 0
    generation: int = 1
    phase: str = "Pending"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    service_account: str = "default"
    volumes: Mapping[str, str | None] = field(default_factory=dict)
    """Host path of each hostPath volume by name; None for an emptyDir. Other kinds are not provided."""
    grace_seconds: int = DEFAULT_GRACE_SECONDS
    active_deadline_seconds: int | None = None
    deletion_grace_seconds: int | None = None
    """Set once the pod is being deleted."""

    @property
    def finished(self) -> bool:
        """Whether the pod has reached its last phase."""
        return self.phase in {"Succeeded", "Failed"}

    def variable(self, name: str) -> str | None:
        """Literal value of an environment variable of the first container."""
        return next((entry.get("value") for entry in self.containers[0].env if entry["name"] == name), None)

    @classmethod
    def parse(cls, manifest: Json) -> Pod:
        """Read the object that the API server sent."""
        metadata, spec = manifest["metadata"], manifest["spec"]
        deletion_grace = metadata.get("deletionGracePeriodSeconds", 0) if "deletionTimestamp" in metadata else None
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            node=spec.get("nodeName", ""),
            containers=tuple(_container(container) for container in spec["containers"]),
            init_containers=len(spec.get("initContainers", ())),
            generation=metadata.get("generation", 1),
            phase=manifest.get("status", {}).get("phase", "Pending"),
            labels=metadata.get("labels", {}),
            annotations=metadata.get("annotations", {}),
            service_account=spec.get("serviceAccountName", "default"),
            volumes={
                volume["name"]: volume.get("hostPath", {}).get("path")
                for volume in spec.get("volumes", ())
                if "emptyDir" in volume or "hostPath" in volume
            },
            grace_seconds=spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS),
            active_deadline_seconds=spec.get("activeDeadlineSeconds"),
            deletion_grace_seconds=deletion_grace,
        )


def _container(spec: Json) -> Container:
    return Container(
        name=spec["name"],
        image=spec.get("image", ""),
        command=tuple(spec.get("command", ())),
        args=tuple(spec.get("args", ())),
        env=tuple(spec.get("env", ())),
        env_from=tuple(spec.get("envFrom", ())),
        working_dir=spec.get("workingDir"),
        message_from_logs=spec.get("terminationMessagePolicy") == "FallbackToLogsOnError",
        mounts={mount["mountPath"]: mount["name"] for mount in spec.get("volumeMounts", ())},
    )
