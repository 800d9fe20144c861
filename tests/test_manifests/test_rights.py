"""The roles as they are written; whether the operator needs all of it, and no more, is tested end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

FILES = ("rbac.yaml", "rbac-namespaced.yaml")

Json = dict[str, Any]


def _objects(root: Path, file: str) -> dict[str, Json]:
    return {found["kind"]: found for found in yaml.safe_load_all((root / "charts" / "inferbench" / file).read_text())}


def _rights(role: Json) -> list[tuple[str, str, str]]:
    """Return the group, resource and verb of each right."""
    return [
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def test_in_one_namespace_it_may_do_what_it_may_do_in_all(root: Path) -> None:
    """Nothing of it is about objects outside of namespaces."""
    everywhere, here = (_objects(root, file) for file in FILES)
    assert sorted(_rights(everywhere["ClusterRole"])) == sorted(_rights(here["Role"]))


@pytest.mark.parametrize("file", FILES)
def test_every_right_is_named_once_and_in_full(root: Path, file: str) -> None:
    """No wildcard, nothing said twice, and no rule with other fields, such as names of objects."""
    objects = _objects(root, file)
    role = objects.get("ClusterRole") or objects["Role"]
    rights = _rights(role)
    assert len(rights) == len(set(rights))
    assert not [right for right in rights if "*" in right]
    assert all(rule.keys() == {"apiGroups", "resources", "verbs"} for rule in role["rules"])


def test_the_namespaced_role_goes_where_kubectl_is_told(root: Path) -> None:
    """It names no namespace but that of the operator, whose account it is bound to."""
    everywhere, here = (_objects(root, file) for file in FILES)
    assert here.keys() == {"Role", "RoleBinding"}
    assert not [kind for kind, found in here.items() if "namespace" in found["metadata"]]
    role, binding, account = here["Role"], here["RoleBinding"], everywhere["ServiceAccount"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account["metadata"]}]
    assert binding["subjects"] == everywhere["ClusterRoleBinding"]["subjects"]
