"""The largest message that the contract lets a runner send, made from the contract's own bounds."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import BaseModel

Message = TypeVar("Message", bound=BaseModel)

_LAST: Final = -1
# One letter that takes six bytes where JSON is written in ASCII, more than any other takes in UTF-8.
_LETTER: Final = "\u00e9"
_OF_PATTERN: Final = {
    r"^[0-9a-f]{10}$": "f" * 10,
    r"^[0-9a-f]{16}$": "f" * 16,
    r"^-?[0-9]{1,9}(\.[0-9]{1,9})?$": f"-{'9' * 9}.{'9' * 9}",
    r"^[0-9]{1,12}(\.[0-9]{1,6})?$": f"{'9' * 12}.{'9' * 6}",
    r"^[A-Za-z0-9+/]*={0,2}$": "A" * 8192,
}


def largest(message: type[Message], **given: Any) -> Message:  # noqa: ANN401 - any JSON value
    """Return a message with every field filled up to its bound, except for the fields that are `given`."""
    schema = message.model_json_schema()
    definitions = schema.get("$defs", {})
    fields = {name: _value(field, definitions, _LAST) for name, field in schema["properties"].items()}
    return message.model_validate(fields | given)


def _value(node: dict[str, Any], definitions: dict[str, Any], index: int) -> Any:  # noqa: ANN401 - any JSON value
    """Return the largest value; `index` tells those apart that lie side by side in a list."""
    node = _resolved(node, definitions)
    if "enum" in node:
        return node["enum"][index % len(node["enum"])]
    match node["type"]:
        case "integer":
            return node["maximum"]
        case "string":
            return _OF_PATTERN[node["pattern"]] if "pattern" in node else _LETTER * node["maxLength"]
        case "array":
            return [_value(node["items"], definitions, number) for number in range(node["maxItems"])]
        case _:
            return _object(node, definitions, index)


def _object(node: dict[str, Any], definitions: dict[str, Any], index: int) -> dict[str, Any]:
    if "properties" in node:
        return {name: _value(field, definitions, index) for name, field in node["properties"].items()}
    names = _resolved(node["propertyNames"], definitions)
    keys = names.get("enum") or [
        f"{number:03}".ljust(names["maxLength"], _LETTER) for number in range(node["maxProperties"])
    ]
    return {key: _value(node["additionalProperties"], definitions, index) for key in keys}


def _resolved(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Follow references, and into the value of an optional field."""
    while "$ref" in node or "anyOf" in node:
        node = definitions[node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else node["anyOf"][0]
    return node
