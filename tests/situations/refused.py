"""Rows about an API server that does not take a Job or a pod for now: quotas, policies, things that are missing."""

from __future__ import annotations

from typing import Final

from situations.acts import label_namespace, lift_limit, limit, set_spec
from situations.placing import CPU
from situations.rows import Cells, Row, on
from situations.waits import condition

ROWS: Final = (
    Row(
        id="a quota that allows no Job, until it is lifted",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        before=(limit("count/jobs.batch"),),
        meanwhile=(condition("Ready", "False", "QuotaExceeded", "Raise the quota"), lift_limit()),
        jobs=1,
        is_killed_before_acts=True,
    ),
    Row(
        id="a quota that allows no Job, for good",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        execution={"schedulingDeadlineSeconds": 3},
        before=(limit("count/jobs.batch"),),
        end=(Cells(state="failed", reason="JobRefused", attempts=0, words=("schedulingDeadlineSeconds (3 s)",)),),
        capacity="",
        jobs=0,
    ),
    Row(
        id="a namespace under the restricted Pod Security Standard",
        nodes={"a": "inf2.xlarge"},
        spec=on("inf2.xlarge"),
        before=(label_namespace("pod-security.kubernetes.io/enforce=restricted"),),
        jobs=1,
    ),
    Row(
        id="a Job that the API server refuses, and its correction",
        nodes={"a": CPU},
        spec={"runner": {"tolerations": [{"key": "a", "operator": "Sometimes"}]}},
        meanwhile=(
            condition("Stalled", "True", "CellsFailed", "JobRefused"),
            set_spec(runner={"tolerations": [{"key": "a", "operator": "Exists"}]}),
            condition("Ready", "True", "RunSucceeded"),
        ),
        jobs=1,
    ),
    Row(
        id="a Job that the API server refuses",
        nodes={"a": CPU},
        spec={"runner": {"volumes": [{"name": "tmp", "hostPath": {"path": "/data"}}]}},
        end=(Cells(state="failed", reason="JobRefused", attempts=0, words=("volumes",)),),
        capacity="",
        jobs=0,
    ),
)
