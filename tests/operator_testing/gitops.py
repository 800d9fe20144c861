"""What Argo CD and Flux make of a benchmark with the files in `charts/inferbench/files`.

The interpreters are others than theirs; the rules are those of Argo CD's `util/lua` and of Flux's `runtime/cel`: which
libraries there are, in which order expressions are evaluated, and what counts where none is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import cel
import yaml
from lupa.lua51 import LuaRuntime, lua_type

Json = dict[str, Any]

FILES: Final = Path(__file__).parents[2] / "charts" / "inferbench" / "files"
RERUN: Final = "inferbench.dev/rerun"

_KEY: Final = "resource.customizations.{}.inferbench.dev_InferenceBenchmark"
_IN_KSTATUS: Final = {
    "Healthy": "Current",
    "Degraded": "Failed",
    "Progressing": "InProgress",
    "Suspended": "InProgress",
}
# Argo CD opens the base library, tables, and of the operating system's these two; strings have no methods.
_RESTRICT: Final = """
getmetatable("").__index = nil
os = {time = os.time, date = os.date}
for _, name in ipairs({"coroutine", "debug", "io", "math", "package", "python", "require", "string"}) do
  _G[name] = nil
end
"""


@dataclass(frozen=True, slots=True)
class Health:
    """What Argo CD shows."""

    status: str
    message: str


@dataclass(frozen=True, slots=True)
class Customization:
    """The scripts of one kind of object, as the ConfigMap argocd-cm holds them."""

    health_script: str
    discovery_script: str
    action_scripts: Mapping[str, str]

    def health(self, raw: Json) -> Health:
        """Return the health of an object."""
        answer = _run(self.health_script, raw)
        return Health(answer["status"], answer.get("message", ""))

    def enabled_actions(self, raw: Json) -> set[str]:
        """Return the actions that a person can choose."""
        found = _run(self.discovery_script, raw)
        return {name for name, action in found.items() if not action.get("disabled", False)}

    def act(self, name: str, raw: Json) -> Json:
        """Return the object after an action."""
        changed: Json = _run(self.action_scripts[name], raw)
        return changed


@cache
def argo_customization() -> Customization:
    """Return what `argocd-cm.yaml` says."""
    data = yaml.safe_load((FILES / "argocd" / "argocd-cm.yaml").read_text(encoding="utf-8"))["data"]
    actions = yaml.safe_load(data[_KEY.format("actions")])
    scripts = {action["name"]: action["action.lua"] for action in actions["definitions"]}
    return Customization(data[_KEY.format("health")], actions["discovery.lua"], scripts)


def flux_status(raw: Json) -> str:
    """Return InProgress, Failed or Current."""
    status, generation = raw.get("status", {}), raw["metadata"]["generation"]
    if status.get("observedGeneration", generation) != generation:
        return "InProgress"
    for name, word in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        try:
            holds = _expressions()[name].execute(raw)
        except RuntimeError:
            # Flux has no variable for a field that the object lacks. It looks again until its timeout.
            if "status" in raw:
                raise
            return "InProgress"
        if holds is True:
            return word
    return "InProgress"


def disagreements(objects: Iterable[Json], kstatuses: Iterable[str]) -> list[str]:
    """Return where Argo CD, Flux and kstatus don't say the same, in sentences.

    Of a rerun that is asked for and was not started yet kstatus can't know; the others have to wait for it.
    """
    return [
        sentence
        for raw, kstatus in zip(objects, kstatuses, strict=True)
        # Something that is being deleted is looked at by none of them.
        if kstatus != "Terminating" and (sentence := _disagreement(raw, kstatus))
    ]


def _disagreement(raw: Json, kstatus: str) -> str:
    health, flux = argo_customization().health(raw), flux_status(raw)
    wanted = "InProgress" if _rerun_is_due(raw) else kstatus
    if {_IN_KSTATUS[health.status], flux} == {wanted} and health.message:
        return ""
    return f"{health} for Argo CD, {flux} for Flux and {kstatus} for kstatus: {raw}"


def _rerun_is_due(raw: Json) -> bool:
    status = raw.get("status", {})
    asked = raw["metadata"].get("annotations", {}).get(RERUN, "")
    refused = any((one["type"], one["status"]) == ("Accepted", "False") for one in status.get("conditions", []))
    return asked not in {"", status.get("run", {}).get("rerun", "")} and len(asked) <= 64 and not refused


@cache
def _expressions() -> dict[str, cel.Program]:
    text = (FILES / "flux" / "health-checks.yaml").read_text(encoding="utf-8")
    (check,) = yaml.safe_load(text)["spec"]["healthCheckExprs"]
    return {name: cel.compile(check[name]) for name in ("inProgress", "failed", "current")}


def _run(script: str, raw: Json) -> Any:  # noqa: ANN401 - whatever the script returns
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    lua.execute(_RESTRICT)
    lua.globals().obj = lua.table_from(raw, recursive=True)
    return _plain(lua.execute(script))


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of Lua
    if lua_type(value) != "table":
        return value
    found = {key: _plain(item) for key, item in value.items()}
    # As in Argo CD, an empty table is an empty list.
    return list(found.values()) if set(found) == set(range(1, len(found) + 1)) else found
