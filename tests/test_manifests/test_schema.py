"""The translation from pydantic models to structural schemas, on models of one field."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, JsonValue

from inferbench_operator.models.base import ApiModel
from inferbench_operator.models.schema import UnstructuralSchemaError, structural_schema, unwrapped, with_defaults_named


class Colour(StrEnum):
    """For programmers only."""

    RED = "Red"


class Part(ApiModel):
    """A part."""

    size: int = Field(default=3, ge=0, le=9, description="Size.")
    names: list[str] = Field(default_factory=list, description="Names.")


class Whole(ApiModel):
    """A part of parts."""

    part: Part = Field(default_factory=Part, description="Part.")
    maybe: int | None = Field(default=None, description="Maybe.")


class Silent(ApiModel):
    """Nothing in it has a default worth saying."""

    names: list[str] = Field(default_factory=list, description="Names.")


class Everything(ApiModel):
    """One field of every sort."""

    optional: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Maybe.")
    small: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(description="Fits.")
    large: Annotated[int, Field(ge=0, le=2**31)] = Field(description="Does not fit.")
    colour: Colour = Field(default=Colour.RED, description="Colour.")
    plain_colour: list[Colour] = Field(default_factory=lambda: [Colour.RED], description="Colours.")
    part: Part = Field(default_factory=Part, description="The field's words.")
    parts: list[Part] = Field(default_factory=list, description="Parts.")
    whole: Whole = Field(default_factory=Whole, description="Whole.")
    silent: Silent = Field(default_factory=Silent, description="Silent.")
    values: dict[str, JsonValue] = Field(default_factory=dict, max_length=4, description="Anything.")
    labels: dict[Annotated[str, Field(max_length=9)], str] = Field(default_factory=dict, description="Labels.")
    time: datetime = Field(description="Time.")
    zero: int = Field(default=0, ge=0, le=9, description="Zero.")
    off: bool = Field(default=False, description="Off.")


@pytest.fixture(scope="module")
def fields() -> dict[str, Any]:
    """Schemas of the fields of `Everything`."""
    found: dict[str, Any] = structural_schema(Everything)["properties"]
    return found


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        pytest.param(
            "optional",
            {"description": "Maybe.", "type": "integer", "format": "int64", "minimum": 1},
            id="an optional field is the plain type, neither nullable nor defaulted",
        ),
        pytest.param(
            "small",
            {"description": "Fits.", "type": "integer", "format": "int32", "minimum": 0, "maximum": 2**31 - 1},
            id="an integer whose bounds fit into 32 bits says so",
        ),
        pytest.param(
            "large",
            {"description": "Does not fit.", "type": "integer", "format": "int64", "minimum": 0, "maximum": 2**31},
            id="an integer whose bounds do not fit into 32 bits is of 64",
        ),
        pytest.param(
            "colour",
            {"description": "Colour.", "type": "string", "enum": ["Red"], "default": "Red"},
            id="a reference is resolved and the field's description wins",
        ),
        pytest.param(
            "plainColour",
            {
                "description": "Colours.",
                "type": "array",
                "default": ["Red"],
                "items": {"type": "string", "enum": ["Red"]},
            },
            id="a factory is called for its default, and an enum's docstring stays in the code",
        ),
        pytest.param(
            "silent",
            {
                "description": "Silent.",
                "type": "object",
                "properties": {"names": {"description": "Names.", "type": "array", "items": {"type": "string"}}},
            },
            id="an empty default, also an object of empty defaults, is left out",
        ),
        pytest.param(
            "values",
            {
                "description": "Anything.",
                "type": "object",
                "maxProperties": 4,
                "x-kubernetes-preserve-unknown-fields": True,
            },
            id="a map of any values keeps unknown fields",
        ),
        pytest.param(
            "labels",
            {"description": "Labels.", "type": "object", "additionalProperties": {"type": "string"}},
            id="a map is additionalProperties, and its keys' bounds are left to the model",
        ),
        pytest.param(
            "time", {"description": "Time.", "type": "string", "format": "date-time"}, id="a time is a date-time string"
        ),
        pytest.param(
            "zero",
            {"description": "Zero.", "type": "integer", "format": "int32", "default": 0, "minimum": 0, "maximum": 9},
            id="zero is a default",
        ),
        pytest.param("off", {"description": "Off.", "type": "boolean", "default": False}, id="false is a default"),
    ],
)
def test_field(fields: dict[str, Any], field: str, expected: dict[str, Any]) -> None:
    """Each sort of field has one translation."""
    assert fields[field] == expected


def test_default_object_is_written_out(fields: dict[str, Any]) -> None:
    """The API server checks a default against the rules before it fills in what is missing in it."""
    assert fields["part"]["default"] == {"size": 3}
    assert fields["part"]["description"] == "The field's words."


def test_default_object_in_a_default_object_is_written_out(fields: dict[str, Any]) -> None:
    """Without what is empty in it, at any depth: a null in a default would be refused."""
    assert fields["whole"]["default"] == {"part": {"size": 3}}
    assert fields["whole"]["properties"]["part"]["default"] == {"size": 3}


def test_items_are_described_by_their_class(fields: dict[str, Any]) -> None:
    """Where no field speaks, the class's docstring does."""
    assert fields["parts"]["items"]["description"] == "A part."


def test_required_fields_have_no_default() -> None:
    """Required is what has neither a default nor a None."""
    assert structural_schema(Everything)["required"] == ["small", "large", "time"]


class Union(BaseModel):
    """Two types in one field."""

    value: int | str


class Exclusive(BaseModel):
    """A bound that the API server refuses."""

    value: Annotated[int, Field(gt=0)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        pytest.param(Union, r"Union\.value: .* has no anyOf", id="a union"),
        pytest.param(Exclusive, r"Exclusive\.value: .* has no exclusiveMinimum", id="an exclusive bound"),
    ],
)
def test_unstructural_model_is_refused(model: type[BaseModel], message: str) -> None:
    """What a custom resource's schema cannot say is refused by name, instead of being left out."""
    with pytest.raises(UnstructuralSchemaError, match=message):
        structural_schema(model)


def test_defaults_are_named_in_words() -> None:
    """`kubectl explain` prints descriptions and no defaults, so the descriptions name them."""
    schema = structural_schema(Everything)
    fields = with_defaults_named(schema)["properties"]
    assert fields["colour"]["description"] == "Colour. Default: Red."
    assert fields["plainColour"]["description"] == 'Colours. Default: ["Red"].'
    assert fields["parts"]["items"]["properties"]["size"]["description"] == "Size. Default: 3."
    assert fields["off"]["description"] == "Off. Default: false."
    assert fields["part"]["description"] == "The field's words."
    assert schema == structural_schema(Everything)


def test_paragraphs_are_unwrapped_and_examples_are_not() -> None:
    """A reader wraps paragraphs by itself, but an indented example keeps its lines."""
    assert unwrapped("One\ntwo.\n\n  a:\n    b\n\nThree.\n") == "One two.\n\n  a:\n    b\n\nThree."
