"""Reads a plan, and turns what is wrong with it into sentences that name the field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from inferbench_runner.contract import MAX_SHAPES, PLAN_VARIABLE, CellHash, Plan, Weights
from inferbench_runner.errors import random_only
from inferbench_runner.words import one_line

SHOWN_INPUT: Final = 60
"""Characters of a refused value that a sentence repeats."""

_CELL: Final = TypeAdapter(CellHash)


class PlanError(Exception):
    """Retry: no. What was given is no plan."""

    def __init__(self, sentences: list[str], cells: tuple[str, ...] = ()) -> None:
        """Hold the sentences, and the hashes of those cells that could be read all the same."""
        self.sentences = sentences
        self.cells = cells
        super().__init__(" ".join(sentences))


def plan_text(path: Path | None, environment: Mapping[str, str]) -> str:
    """Return the plan's JSON: the file's where one is named, else the environment variable's."""
    if path is not None:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError([f"--plan: {path} can't be read ({error}); name a JSON file in UTF-8."]) from error
    text = environment.get(PLAN_VARIABLE, "")
    if not text.strip():
        raise PlanError([f"There is no plan; name a file with --plan, or put the plan's JSON into {PLAN_VARIABLE}."])
    return text


def parse_plan(text: str) -> Plan:
    """Return the plan, or raise `PlanError` with one sentence per fault."""
    try:
        plan = Plan.model_validate_json(text)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        raise PlanError([_sentence(detail) for detail in details], _recovered_cells(text)) from error
    if plan.model.config and plan.model.weights is not Weights.RANDOM:
        raise PlanError([str(random_only(plan.model.weights))], tuple(shape.cell for shape in plan.shapes))
    return plan


def _sentence(detail: ErrorDetails) -> str:
    field = re.sub(r"\.(\d+)", r"[\1]", ".".join(str(part) for part in detail["loc"])) or "plan"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in {"missing", "json_invalid", "value_error"}:
        return f"{field}: {message}."
    return f"{field}: {message}, not {one_line(repr(detail['input']), SHOWN_INPUT)}."


def _recovered_cells(text: str) -> tuple[str, ...]:
    """Return the hashes of the cells that a broken plan asks for, as far as they can be made out."""
    try:
        found = [_CELL.validate_python(shape["cell"]) for shape in json.loads(text)["shapes"]]
    except (ValueError, TypeError, LookupError, RecursionError):
        return ()
    return tuple(dict.fromkeys(found))[:MAX_SHAPES]
