"""Text that leaves the runner: one line, no control characters, of bounded length."""

from __future__ import annotations

import unicodedata
from typing import Final

ELLIPSIS: Final = "…"


def one_line(text: str, limit: int) -> str:
    """Return the text on one line of at most `limit` characters.

    Control characters, lone surrogates and unassigned code points become blanks, and runs of blanks become one: the
    text may come from a library or from a model's files, and it ends in terminals, logs and the cluster's API.
    """
    # A library's message can be megabytes long; what is cut here could never be shown.
    head = text[: 8 * limit]
    visible = "".join(" " if unicodedata.category(character).startswith("C") else character for character in head)
    line = " ".join(visible.split())
    if len(line) <= limit:
        return line
    return line[: max(limit - 1, 0)].rstrip() + ELLIPSIS[:limit]


def listed(names: list[str], word: str = "or") -> str:
    """Return "a, b or c"."""
    if len(names) < 2:  # noqa: PLR2004
        return "".join(names)
    return f"{', '.join(names[:-1])} {word} {names[-1]}"
