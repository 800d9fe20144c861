"""Objects as an API server sends them, kept as files beside the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

_FOLDER: Final = Path(__file__).parents[1] / "test_operator" / "recorded"


def recorded(name: str, /, **metadata: Any) -> Json:  # noqa: ANN401 - any JSON value
    """Return a recorded object, with `metadata` over its own."""
    raw: Json = json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
    raw["metadata"] |= metadata
    return raw
