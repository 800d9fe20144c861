"""Plans that can't be used, and the sentences about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferbench_runner.contract import PLAN_VARIABLE
from inferbench_runner.planfile import PlanError, parse_plan, plan_text
from test_runner.builders import cell, plan_dict


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"shapes": ()}, "shapes: Tuple should have at least 1 item"),
        ({"precision": "fp64"}, "precision: Input should be 'fp32', 'tf32', 'bf16' or 'fp16', not 'fp64'."),
        ({"shapes": ((0, 1),)}, "shapes[0].sequenceLength: Input should be greater than or equal to 1, not 0."),
        ({"extra": 1}, "extra: Extra inputs are not permitted, not 1."),
        (
            {"model": {"weights": "Pretrained"}},
            "model.config: overrides have no effect with Pretrained weights; leave them out, or set weights: Random.",
        ),
    ],
)
def test_a_fault_is_named_with_its_field(fields: dict[str, Any], sentence: str) -> None:
    """Each fault becomes a sentence that begins with the field."""
    with pytest.raises(PlanError) as caught:
        parse_plan(json.dumps(plan_dict(**fields)))
    assert caught.value.sentences[0].startswith(sentence)


def test_cells_are_recovered_from_a_broken_plan() -> None:
    """Cells whose hashes can be read are known, so that each can be reported as failed."""
    with pytest.raises(PlanError) as caught:
        parse_plan(json.dumps(plan_dict(shapes=((8, 1), (16, 1)), version=2)))
    assert caught.value.cells == (cell(0), cell(1))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"shapes": [{"cell": "../x"}]}', '{"shapes": 3}', "[" * 100_000])
def test_no_cells_come_from_what_is_no_plan(text: str) -> None:
    """Nothing is taken from text that has no valid cell hash."""
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert caught.value.cells == ()


def test_a_plan_comes_from_the_file_or_else_from_the_environment(tmp_path: Path) -> None:
    """A named file wins over the variable; neither is an error that says what to give."""
    file = tmp_path / "plan.json"
    file.write_text("from file", encoding="utf-8")
    assert plan_text(file, {PLAN_VARIABLE: "from variable"}) == "from file"
    assert plan_text(None, {PLAN_VARIABLE: "from variable"}) == "from variable"
    with pytest.raises(PlanError, match="--plan"):
        plan_text(None, {})
    with pytest.raises(PlanError, match="can't be read"):
        plan_text(tmp_path / "absent", {})
