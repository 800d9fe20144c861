"""From a pydantic model to the structural OpenAPI v3 schema that a CustomResourceDefinition takes.

Pydantic writes JSON Schema; Kubernetes accepts a smaller language. What differs:

- No references: each `$ref` is replaced by what it points at, and the field's own description wins over the class's.
- No unions. An optional field (`T | None`) becomes plain `T` that is not required and not nullable: the API server
  drops an explicit null, or puts the default in its place, so that CEL's `has()` means "the user gave a value".
- Defaults are written even where they come from a factory, but not where they are empty (`""`, `[]`, `{}`, None):
  an empty value says no more than an absent one, and `runner.env: []` filled in by the server would look like a wish.
  A default object is written out in full, because the API server holds it against the CEL rules as it stands, before
  it fills in the defaults of its fields.
- An integer says its format: int32 where both bounds fit, otherwise int64.
- A value of any type is `x-kubernetes-preserve-unknown-fields`. Rules for a map's keys cannot be expressed; they are
  left to the models.

Any other keyword is refused, so that a model that the API server would not understand fails here, by name.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

Schema = dict[str, Any]

_INT32: Final = range(-(2**31), 2**31)
_ANY_VALUE: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
_KEPT: Final = (
    "description",
    "type",
    "format",
    "enum",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
)
"""Keywords that are taken over as they are, in the order in which they are written."""

_DROPPED: Final = frozenset({"title", "propertyNames"})
_TRANSLATED: Final = frozenset({"properties", "items", "additionalProperties"})


class UnstructuralSchemaError(ValueError):
    """A model uses something that a custom resource's schema cannot say. Never worth a retry."""

    def __init__(self, path: str, keywords: list[str]) -> None:
        """Name the place in the model and the keywords that have no counterpart."""
        super().__init__(f"{path}: the schema of a custom resource has no {', '.join(keywords)}")


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of `model`, under the names that it has in YAML."""
    raw = model.model_json_schema(by_alias=True, schema_generator=_Generator, mode="validation")
    return _node(raw, raw.get("$defs", {}), model.__name__)


def with_defaults_named(schema: Schema) -> Schema:
    """Return `schema` with each default in words in its field's description, as `kubectl explain` shows no others."""
    found = dict(schema)
    if "properties" in found:
        found["properties"] = {name: with_defaults_named(field) for name, field in found["properties"].items()}
    if "items" in found:
        found["items"] = with_defaults_named(found["items"])
    default = found.get("default")
    if default is not None and not isinstance(default, dict):
        words = default if isinstance(default, str) else json.dumps(default)
        found["description"] += f" Default: {words}."
    return found


def unwrapped(text: str) -> str:
    """Return `text` with each paragraph on one line, for readers that wrap by themselves; indented lines stay."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.splitlines()) for paragraph in paragraphs
    )


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, without null branches and with the defaults that factories make."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:  # noqa: ANN401 - any default
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            return schema["default_factory"]()  # type: ignore[call-arg]
        return super().get_default_value(schema)

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - any default
        if isinstance(dft, BaseModel):
            return _without_empty_values(dft.model_dump(mode="json", by_alias=True))
        return super().encode_default(dft)


def _node(raw: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    """Translate one node and all below it."""
    raw = _resolved(raw, definitions)
    extensions = {key: value for key, value in raw.items() if key.startswith("x-kubernetes-")}
    unknown = raw.keys() - set(_KEPT) - _DROPPED - _TRANSLATED - extensions.keys()
    if unknown:
        raise UnstructuralSchemaError(path, sorted(unknown))
    found = {key: raw[key] for key in _KEPT if key in raw} | extensions
    if raw.get("type") == "integer":
        found["format"] = _integer_format(raw)
    if properties := raw.get("properties"):
        found["properties"] = {name: _node(field, definitions, f"{path}.{name}") for name, field in properties.items()}
    if "items" in raw:
        found["items"] = _node(raw["items"], definitions, f"{path}[]")
    if "additionalProperties" in raw:
        values = _node(raw["additionalProperties"], definitions, f"{path}{{}}")
        # A map of values of any type is written without additionalProperties: CEL would not see the field at all.
        found |= _ANY_VALUE if values == _ANY_VALUE else {"additionalProperties": values}
    if "default" in found and _is_empty(found["default"]):
        del found["default"]
    if "description" in found:
        found["description"] = unwrapped(found["description"])
    if "type" not in found:
        found |= _ANY_VALUE
    return found


def _resolved(raw: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" not in raw:
        return {key: value for key, value in raw.items() if key != "$defs"}
    target = definitions[raw["$ref"].removeprefix("#/$defs/")]
    if "enum" in target:
        # The class's docstring speaks to programmers; the field's description lists and explains the values.
        target = {key: value for key, value in target.items() if key != "description"}
    return target | {key: value for key, value in raw.items() if key != "$ref"}


def _integer_format(raw: Schema) -> str:
    return "int32" if raw.get("minimum", -(2**63)) in _INT32 and raw.get("maximum", 2**63) in _INT32 else "int64"


def _without_empty_values(values: Schema) -> Schema:
    """Return a default object without what is empty in it, at any depth."""
    inner = {name: _without_empty_values(value) if isinstance(value, dict) else value for name, value in values.items()}
    return {name: value for name, value in inner.items() if not _is_empty(value)}


def _is_empty(value: object) -> bool:
    return value is None or value in ("", [], {})
