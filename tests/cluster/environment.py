"""The environment and the command of a container, resolved as the kubelet does.

A local process sees the host's file system, so a path below a mount path means something else there: `Mounts` rewrites
such paths in the command, the arguments and the environment to the folder that stands for the volume.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster.pods import Container, Json, Pod

Fetch = Callable[[str, str], Awaitable[Mapping[str, str] | None]]
"""Gives the data of a ConfigMap or a Secret, by `configmap` or `secret` and name; None when there is none."""

Report = Callable[[str], Awaitable[None]]
"""Is told why a container cannot be made for now."""

_RETRY_SECONDS = 1.0
_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """The container's environment cannot be made now; it may be later, when the missing object is there."""


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable's value; unknown names stay, and `$$` is one dollar sign."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else env.get(match[2], match[0])

    return _REFERENCE.sub(replace, text)


async def resolve(pod: Pod, container: Container, fetch: Fetch) -> dict[str, str]:
    """All variables that the pod's manifest sets.

    Raises:
        ConfigError: A ConfigMap, a Secret or a key is missing, or a source is of a kind that is not supported.
    """
    env: dict[str, str] = {}
    for source in container.env_from:
        env |= await _from_object(source, fetch)
    for entry in container.env:
        value = await _value(pod, entry, env, fetch)
        if value is not None:
            env[entry["name"]] = value
    return env


async def resolve_in_time(
    pod: Pod, container: Container, fetch: Fetch, report: Report, stopping: asyncio.Event
) -> dict[str, str] | None:
    """All variables that the pod's manifest sets, as soon as they are there; None when the pod is to end before that.

    What is missing is told once, and again only in other words.
    """
    told = ""
    while not stopping.is_set():
        try:
            return await resolve(pod, container, fetch)
        except ConfigError as error:
            if str(error) != told:
                told = str(error)
                await report(told)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _RETRY_SECONDS)
    return None


async def _value(pod: Pod, entry: Json, env: Mapping[str, str], fetch: Fetch) -> str | None:
    match entry.get("valueFrom"):
        case None:
            return expand(entry.get("value", ""), env)
        case {"fieldRef": {"fieldPath": str(path)}}:
            return _field(pod, path)
        case {"configMapKeyRef": reference}:
            return await _key(pod, "configmap", reference, fetch)
        case {"secretKeyRef": reference}:
            return await _key(pod, "secret", reference, fetch)
        case other:
            text = f"the node agent does not support the source of {entry['name']}: {', '.join(other)}"
            raise ConfigError(text)


def _field(pod: Pod, path: str) -> str:
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.node,
        "spec.serviceAccountName": pod.service_account,
        "status.hostIP": "127.0.0.1",
        "status.hostIPs": "127.0.0.1",
        "status.podIP": "127.0.0.1",
        "status.podIPs": "127.0.0.1",
    }
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript:
        return (pod.labels if subscript[1] == "labels" else pod.annotations).get(subscript[2], "")
    if path not in fields:
        text = f"the node agent does not support the field {path}"
        raise ConfigError(text)
    return fields[path]


async def _key(pod: Pod, kind: str, reference: Json, fetch: Fetch) -> str | None:
    name, key, optional = reference["name"], reference["key"], reference.get("optional", False)
    data = await fetch(kind, name)
    if data is not None and key in data:
        return data[key]
    if optional:
        return None
    shown = {"configmap": "ConfigMap", "secret": "Secret"}[kind]
    absent, keyless = f'{kind} "{name}" not found', f"couldn't find key {key} in {shown} {pod.namespace}/{name}"
    raise ConfigError(absent if data is None else keyless)


async def _from_object(source: Json, fetch: Fetch) -> dict[str, str]:
    kind, reference = (
        ("configmap", source["configMapRef"]) if "configMapRef" in source else ("secret", source["secretRef"])
    )
    data = await fetch(kind, reference["name"])
    if data is None:
        if reference.get("optional", False):
            return {}
        text = f'{kind} "{reference["name"]}" not found'
        raise ConfigError(text)
    return {f"{source.get('prefix', '')}{key}": value for key, value in data.items()}


def decode_data(kind: str, manifest: Json) -> dict[str, str]:
    """The data of a ConfigMap or Secret as text."""
    data: Mapping[str, str] = manifest.get("data") or {}
    if kind == "secret":
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
    return dict(data)


@dataclass(frozen=True, slots=True)
class Mounts:
    """Folders that stand for a container's mount paths."""

    folders: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def create(cls, pod: Pod, container: Container, folder: Path) -> Mounts:
        """Make a folder below `folder` for each emptyDir; a hostPath is its own."""
        folders = {}
        for path, volume in container.mounts.items():
            if volume in pod.volumes:
                host_path = pod.volumes[volume]
                folders[path.rstrip("/")] = Path(host_path) if host_path else folder / volume
                if not host_path:
                    (folder / volume).mkdir(parents=True, exist_ok=True)
        return cls(folders)

    def translate(self, text: str) -> str:
        """Rewrite a path at or below a mount path; any other text stays as it is."""
        for path in sorted(self.folders, key=len, reverse=True):
            if text == path or text.startswith(f"{path}/"):
                return f"{self.folders[path]}{text.removeprefix(path)}"
        return text
