"""Common ground of all API models: naming, strictness, and the string formats that several of them share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints
from pydantic.alias_generators import to_camel

GROUP = "inferbench.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class ApiModel(BaseModel):
    """Base of everything in the custom resources: camelCase in YAML, immutable in code.

    Unknown fields are dropped, not refused: the API server has already checked the object against the schema, and an
    object that a newer version of the schema let in must not stop this operator.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        frozen=True,
        extra="ignore",
    )


def rule(expression: str, message: str, *, field_path: str | None = None) -> dict[str, str]:
    """Return one CEL validation rule for `x-kubernetes-validations`, with a message that names the fix."""
    found = {"rule": expression, "message": message}
    return found | {"fieldPath": field_path} if field_path else found


def schema_extra(**extensions: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """Return `json_schema_extra` with the Kubernetes extensions named as keywords, such as `validations=[...]`."""
    return {f"x-kubernetes-{name.replace('_', '-')}": value for name, value in extensions.items()}


ShortName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
"""A name that also serves as a label value and a metric label: lower-case letters, digits, '-' and '.'."""

DnsName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
"""Name of another Kubernetes object."""

Decimals = Annotated[str, StringConstraints(max_length=20, pattern=r"^[0-9]+(\.[0-9]+)?$")]
"""A non-negative fraction as a decimal string, since the API has no floats."""

RunId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]

SequenceLength = Annotated[int, Field(ge=1, le=131_072)]
BatchSize = Annotated[int, Field(ge=1, le=4096)]

Microseconds = Annotated[int, Field(ge=0, le=86_400_000_000)]

PodFragment = Annotated[dict[str, JsonValue], Field(max_length=32)]
"""A piece of a pod's specification in Kubernetes' own words; the API server checks it when the pod is made."""

LabelMap = Annotated[
    dict[Annotated[str, StringConstraints(max_length=317)], Annotated[str, StringConstraints(max_length=4096)]],
    Field(max_length=64),
]
