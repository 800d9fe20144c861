"""How kstatus, and so Flux, kpt and Argo CD's generic check, reads an object of a kind that it does not know.

Written from the published rules, not from the operator: deletion first, then the generation, then the conditions in
the order in which they are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def kstatus(raw: Mapping[str, Any]) -> str:
    """Return Terminating, InProgress, Failed or Current."""
    metadata, status = raw["metadata"], raw.get("status", {})
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if "observedGeneration" in status and status["observedGeneration"] != metadata["generation"]:
        return "InProgress"
    conditions = status.get("conditions", [])
    for condition in conditions:
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    for condition in conditions:
        if condition["type"] == "Ready":
            return "Current" if condition["status"] == "True" else "InProgress"
    return "Current"
