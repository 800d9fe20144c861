"""One number over all that must be equal for two figures to be comparable, and what differs where it is not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PLACES: Final = frozenset({"affinity"})
"""Facts that say where on a machine it ran and change from pod to pod: they are told, and not hashed."""


@dataclass(frozen=True)
class Difference:
    """One field in which two provenances differ; None where one of them lacks it."""

    field: str
    left: str | None
    right: str | None


def provenance_hash(facts: Mapping[str, str]) -> str:
    """Return the first 16 hex digits of SHA-256 over the facts' canonical JSON, without those that are places."""
    kept = {name: value for name, value in facts.items() if name not in PLACES}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def provenance_differences(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return the fields in which two provenances differ, by name: why two numbers may not be comparable."""
    names = sorted({*left, *right})
    return tuple(
        Difference(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)
    )
