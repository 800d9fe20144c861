"""The models that can be built without downloading anything: those of the published study, with their configurations.

The figures are those of each model's own config.json on the hub; a test compares the number of parameters that follows
from them with the published one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TypedDict

from pydantic import JsonValue

from inferbench_runner.errors import ModelNotFoundError
from inferbench_runner.words import listed


class Entry(TypedDict):
    """One model of the package's data file."""

    aliases: list[str]
    """Ids that the hub still redirects to this one."""
    config: dict[str, JsonValue]


@cache
def entries() -> Mapping[str, Entry]:
    """Return the catalogue by current hub id."""
    loaded: dict[str, Entry] = json.loads(files(__package__).joinpath("catalogue.json").read_text(encoding="utf-8"))
    return loaded


def known_configuration(model_id: str) -> dict[str, JsonValue]:
    """Return a copy of the model's configuration, by its current or its former id."""
    for current, entry in entries().items():
        if model_id in {current, *entry["aliases"]}:
            return dict(entry["config"])
    known = [name for current, entry in entries().items() for name in (current, *entry["aliases"])]
    nearest = difflib.get_close_matches(model_id, known, n=2) or list(entries())
    msg = (
        f"model.id: {model_id} is not in the catalogue of models with random weights; use {listed(nearest)}, "
        "a path of a directory with a config.json, or weights: Pretrained."
    )
    raise ModelNotFoundError(msg)
