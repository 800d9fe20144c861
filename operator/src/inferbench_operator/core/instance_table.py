"""The operator's own table of instance types: other prices and sizes than the package's, and types that it lacks.

    inf2.xlarge: {usdPerHour: "0.61"}
    g6x.large: {kind: NVIDIA, devices: 1, architecture: amd64, processors: 4, memoryGiB: "16", usdPerHour: "1.10"}

People write it, so nothing in it may stop the operator: what is wrong with it is a sentence, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import yaml
from pydantic import TypeAdapter, ValidationError
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from inferbench_operator.core.names import shortened
from inferbench_operator.models.benchmark import InstanceTypeName
from inferbench_operator.models.instances import RESOURCES, Catalogue, InstanceType, InstanceTypeEntry
from inferbench_runner.contract import AcceleratorKind

MAX_BYTES: Final = 1024 * 1024
"""Largest table; a ConfigMap holds no more."""

_TABLE: Final = "The operator's table of instance types (INFERBENCH_INSTANCE_TYPES)"
_SOURCE: Final = "the operator's own table"
_NAME: Final = TypeAdapter(InstanceTypeName)
_FIELDS: Final = {info.alias or name: info for name, info in InstanceTypeEntry.model_fields.items()}
_SHOWN: Final = 60
"""Most characters of a foreign text in a sentence."""


class _EntryError(ValueError):
    """An entry can't be used; retrying does not help."""


def with_table(base: Catalogue, content: bytes) -> Catalogue:
    """Return a catalogue with the entries of a table over it, and a sentence for each that can't be used."""
    try:
        entries = _entries(content)
    except ValueError as error:
        return without_table(base, str(error))
    types, problems = dict(base.types), {}
    for name, fields in entries.items():
        try:
            types[name] = _instance_type(name, fields, base.types.get(name))
        except _EntryError as error:
            problems[name] = f"{_TABLE}: {error}. Until it is corrected, the entry changes nothing."
    return Catalogue(MappingProxyType(types), MappingProxyType(problems))


def without_table(base: Catalogue, why: str) -> Catalogue:
    """Return a catalogue that says why there is no table over it."""
    return Catalogue(base.types, problem=f"{_TABLE} changes nothing: {why}.")


class _Loader(yaml.BaseLoader):
    """Takes every value as the text that it is written as, so that a price stays what it was; no value is shared."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401 - PyYAML's own
        """Refuse aliases, of which a short text can make a huge value."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # not in its stubs
            raise ComposerError(None, None, "aliases can't be used here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's own
        """Refuse what is there twice, of which one would be passed over in silence."""
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise ConstructorError(None, None, f"{_shown(key.value)} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _entries(content: bytes) -> dict[str, Any]:
    """Return what a table says by name of instance type.

    Raises:
        ValueError: It is no table; the message says why.
    """
    if len(content) > MAX_BYTES:
        message = f"it is larger than {MAX_BYTES} bytes"
        raise ValueError(message)
    try:
        # It is the safest of all: BaseLoader knows nothing but texts, lists and mappings.
        found = yaml.load(content.decode("utf-8-sig"), Loader=_Loader)  # noqa: S506
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        message = f"it is no YAML ({_short(_reason(error))})"
        raise ValueError(message) from error
    if found in (None, ""):
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        message = "it must be a mapping of instance types to their fields"
        raise ValueError(message)
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _instance_type(name: str, fields: Any, known: InstanceType | None) -> InstanceType:  # noqa: ANN401 - whatever is there
    """Return the type that an entry makes of the known one.

    Raises:
        _EntryError: It makes no sense; the message names the type, the field and the value.
    """
    entry = _entry(name, fields)
    kind = entry.kind or (known.kind if known else None)
    if kind is None:
        message = f"{name}: kind is missing, and the catalogue doesn't know this type; add it"
        raise _EntryError(message)
    same = known if known and known.kind is kind else None
    resource, devices = _devices(name, entry, kind, same)
    unchanged = same if same and (same.resource, same.devices) == (resource, devices) else None
    cpu = _allocatable_cpu(entry.processors) if entry.processors else None
    memory = _allocatable_memory(Decimal(entry.memory_gib)) if entry.memory_gib else None
    return InstanceType(
        name=name,
        architecture=entry.architecture or (known.architecture if known else None),
        vcpus=entry.processors or (known.vcpus if known else None),
        memory_gib=Decimal(entry.memory_gib) if entry.memory_gib else (known.memory_gib if known else None),
        kind=kind,
        accelerator_name=same.accelerator_name if same else "",
        resource=resource,
        devices=devices,
        neuron_cores=unchanged.neuron_cores if unchanged else None,
        allocatable_cpu=cpu or (known.allocatable_cpu if known else None),
        allocatable_memory=memory or (known.allocatable_memory if known else None),
        **_prices(entry, known),
    )


def _prices(entry: InstanceTypeEntry, known: InstanceType | None) -> dict[str, Any]:
    """Return the prices of an entry over those that are known: whose source and day do not speak for a new one."""
    own = {
        name: Decimal(price)
        for name, price in (
            ("usd_per_hour", entry.usd_per_hour),
            ("usd_per_hour_reserved", entry.usd_per_hour_reserved),
            ("usd_per_hour_spot", entry.usd_per_hour_spot),
        )
        if price
    }
    found: dict[str, Any] = {"usd_per_hour": known.usd_per_hour if known else None} | own
    if own or not known:
        return found | {"price_source": entry.price_source or _SOURCE, "price_date": entry.price_date or ""}
    return found | {"price_source": known.price_source, "price_date": known.price_date}


def _entry(name: str, fields: Any) -> InstanceTypeEntry:  # noqa: ANN401 - whatever is there
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        message = f"{_shown(name)} must be the name of an instance type, such as inf2.xlarge"
        raise _EntryError(message) from error
    if not isinstance(fields, dict):
        message = f'{name} is {_shown(fields)}, but must be a mapping of fields, such as {{usdPerHour: "0.61"}}'
        raise _EntryError(message)
    try:
        return InstanceTypeEntry.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0])
    if field not in _FIELDS:
        message = f"{name}: {_shown(field)} is none of the fields {', '.join(_FIELDS)}; correct or remove it"
    else:
        message = f"{name}: {field} is {_shown(fields[field])}, but must be {_FIELDS[field].description}"
    raise _EntryError(message)


def _devices(
    name: str, entry: InstanceTypeEntry, kind: AcceleratorKind, same: InstanceType | None
) -> tuple[str | None, int]:
    """Return the extended resource of a type, and how many of it there are."""
    if kind is AcceleratorKind.CPU:
        for field, value in (("resourceName", entry.resource_name), ("devices", entry.devices)):
            if value is not None:
                message = f"{name}: {field} is {_shown(value)}, but a type of kind CPU has none; remove it"
                raise _EntryError(message)
        return None, 0
    resource = entry.resource_name or (same.resource if same else None) or RESOURCES[kind]
    domain = RESOURCES[kind].partition("/")[0]
    if resource.partition("/")[0] != domain:
        message = f"{name}: resourceName is {_shown(resource)}, but must begin with {domain}/ for the kind {kind}"
        raise _EntryError(message)
    devices = entry.devices or (same.devices if same and same.resource == resource else 0)
    if not devices:
        message = f"{name}: devices is missing; say how many of {resource} a node of this type has"
        raise _EntryError(message)
    return resource, devices


def _allocatable_cpu(processors: int) -> str:
    """Return what EKS leaves of so many processors: it keeps 80 thousandths of four, and 2.5 of each one more."""
    return f"{processors * 1000 - 80 - max(processors - 4, 0) * 5 // 2}m"


def _allocatable_memory(gib: Decimal) -> str:
    """Return what is left in any case: what is kept depends on how many pods fit, and is nowhere more than this."""
    return f"{max(int(gib * 1024) * 3 // 4 - 300, 0)}Mi"


def _shown(value: Any) -> str:  # noqa: ANN401 - whatever is there
    return shortened(repr(value), _SHOWN)


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), 2 * _SHOWN)
