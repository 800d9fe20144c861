"""What a run costs, and that it never costs more than it may."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest

from inferbench_operator.core import cost
from inferbench_operator.core.attempts import Judgement, Stage
from inferbench_operator.core.facts import Attempt, Pod
from inferbench_operator.kube.kinds import BENCHMARK, POD, Kind
from inferbench_operator.models.execution import ExecutionPolicy
from inferbench_operator.models.status import Cost
from operator_testing.builders import NOW, ago, attempt_of, benchmark, ended, pod, running, spec_json
from operator_testing.cluster import Ending, Outcome
from operator_testing.kstatus import kstatus
from operator_testing.server import Json
from operator_testing.world import NAME, Act, Script, World, play

HOURLY: Final = Decimal("0.7582")
"""Price of inf2.xlarge in the catalogue, in US dollars per hour."""
AN_HOUR: Final = {"startDeadlineSeconds": 40, "measureDeadlineSeconds": 3500}
"""With the minute that the operator grants a runner that hangs, a Job may take an hour."""


def _attempt(of: Pod | None, **changes: Any) -> Attempt:  # noqa: ANN401 - any field
    return attempt_of(benchmark(), pod=of, **changes)


def _spent(before: Cost | None, *attempts: Attempt, now: datetime = NOW, price: str = "3.6") -> Cost:
    """Return the cost where a second costs a tenth of a cent, if nothing else is said."""
    return cost.spent(before, [(attempt, Decimal(price)) for attempt in attempts], ago(1000), now)


@pytest.mark.parametrize(
    ("holding", "usd"),
    [
        (None, "0"),
        (pod(), "0"),
        (pod(scheduled_at=ago(40)), "0.04"),
        (running(), "0.05"),
        # From the node, 50 seconds ago, to the end, five seconds ago.
        (ended(), "0.045"),
    ],
    ids=["no pod", "no node", "starting", "running", "ended"],
)
def test_a_pod_costs_from_its_node_to_its_end(holding: Pod | None, usd: str) -> None:
    """Waiting for a node costs nothing."""
    assert _spent(None, _attempt(holding)).spent_usd == usd


def test_no_second_counts_twice_and_none_is_lost_with_its_job() -> None:
    """However often it is looked at, and whatever has been removed since."""
    at_once = _spent(None, _attempt(running()))
    assert _spent(at_once, _attempt(running())) == at_once
    in_steps: Cost | None = None
    for seconds in (60, 45, 31, 30, 2, 0):
        in_steps = _spent(in_steps, _attempt(running()), now=ago(seconds))
    assert in_steps == at_once
    assert _spent(at_once).spent_usd == at_once.spent_usd
    later = _spent(at_once, _attempt(running(scheduled_at=NOW)), now=NOW + timedelta(seconds=10))
    assert later.spent_usd == "0.06"


def test_two_pods_cost_twice_as_much_as_one() -> None:
    """Each has a node of its own."""
    assert _spent(None, _attempt(running()), _attempt(running(), number=2)).spent_usd == "0.1"


def test_a_jobs_end_counts_where_its_pod_has_none() -> None:
    """The pod of a lost node never says that it has ended."""
    assert _spent(None, _attempt(running(), finished_at=ago(20))).spent_usd == "0.03"


@pytest.mark.parametrize(
    ("holding", "stage", "seconds"),
    [
        (None, Stage.WAITING, 3600),
        (pod(), Stage.WAITING, 3600),
        (pod(scheduled_at=ago(30)), Stage.WAITING, 3570),
        (running(started_at=ago(100)), Stage.RUNNING, 3460),
        (running(started_at=ago(9000)), Stage.RUNNING, 0),
        (ended(), Stage.ENDED, 0),
    ],
)
def test_what_goes_on_may_cost_until_its_deadlines(holding: Pod | None, stage: Stage, seconds: int) -> None:
    """A new Job its whole time, one that runs what is left of it."""
    policy = ExecutionPolicy.model_validate(AN_HOUR)
    found = cost.committed(Judgement(_attempt(holding), stage), policy, Decimal("3.6"), NOW)
    assert found == Decimal(seconds) / 1000
    assert cost.commitment(policy, Decimal("3.6")) == Decimal("3.6")


def _spec(limit: str, **execution: Any) -> Json:  # noqa: ANN401 - any field
    """Return a specification of eight cells in four plans, each on inf2.xlarge."""
    return spec_json(
        models=[{"name": name, "id": name} for name in "abcd"],
        accelerators=[{"name": "inf2", "instanceTypes": ["inf2.xlarge"]}],
        sequenceLengths=[8, 16],
        execution={"retries": 0, "ttlSecondsAfterFinished": 30, "maxCostUSD": limit} | AN_HOUR | execution,
    )


def _limit(usd: str) -> Act:
    return lambda world: world.server.change(
        BENCHMARK, NAME, lambda raw: raw["spec"]["execution"].update(maxCostUSD=usd)
    )


def _ready(world: World) -> tuple[str, str, str]:
    found = next(one for one in world.status["conditions"] if one["type"] == "Ready")
    return found["status"], found["reason"], found["message"]


@dataclass
class _Meter:
    """Counts, beside the operator, for how long nodes were held and how many pods there were at once."""

    most: int = 0
    seconds: float = 0.0
    _since: dict[str, float] = field(default_factory=dict)

    def __call__(self, world: World) -> None:
        """Begin to watch."""

        def saw(kind: Kind, event: str, raw: Json) -> None:
            going = [pod for pod in world.server.all(POD) if pod["status"]["phase"] in {"Pending", "Running"}]
            self.most = max(self.most, len(going))
            if kind is POD:
                self._saw_pod(event, raw, asyncio.get_running_loop().time())

        world.server.watchers.append(saw)

    def _saw_pod(self, event: str, raw: Json, now: float) -> None:
        uid = raw["metadata"]["uid"]
        over = event == "DELETED" or raw["status"].get("phase") in {"Failed", "Succeeded"}
        if over:
            self.seconds += now - self._since.pop(uid, now)
        elif raw["spec"].get("nodeName"):
            self._since.setdefault(uid, now)


@pytest.mark.parametrize(("limit", "at_once"), [("9", 4), ("2.9", 3), ("1.6", 2), ("0.8", 1)])
def test_jobs_start_as_long_as_their_whole_time_can_be_paid(limit: str, at_once: int) -> None:
    """Each may take an hour, so that 1.60 USD are enough for two at once; what they leave over pays for others."""
    meter = _Meter()
    world = play(Script(_spec(limit), nodes=8, acts=[(0.0, meter)]))
    assert Counter(world.states.values()) == {"succeeded": 8}
    assert meter.most == at_once
    # Times are in whole seconds.
    assert float(world.status["cost"]["spentUSD"]) == pytest.approx(meter.seconds * float(HOURLY) / 3600, abs=0.002)


def test_a_limit_below_one_job_starts_none_and_says_so() -> None:
    """A failure for every tool, and nothing is spent."""
    world = play(Script(_spec("0.7")))
    assert world.jobs == []
    assert Counter(world.states.values()) == {"skipped": 8}
    status, reason, message = _ready(world)
    assert (status, reason) == ("False", "CostLimitReached")
    assert "8 of 8 cells were not measured" in message
    assert "may cost up to 0.758 USD, and 0.000 of execution.maxCostUSD 0.7 are spent" in message
    assert kstatus(world.benchmark) == "Failed"


def test_jobs_that_use_up_their_time_end_the_run_before_the_limit_is_passed() -> None:
    """Two runners hang for their whole hour, two more measure; nothing more is tried, and what was measured stands."""
    outcomes = [Outcome(Ending.HANGS), Outcome(Ending.HANGS)]
    world = play(Script(_spec("2.25", maxParallelJobs=1), outcomes=outcomes))
    assert Counter(world.states.values()) == {"failed": 4, "skipped": 4}
    assert Decimal("1.4") < Decimal(world.status["cost"]["spentUSD"]) < Decimal("2.25")
    assert _ready(world)[1] == "CostLimitReached"


def test_a_higher_limit_takes_the_run_up_again() -> None:
    """It is the same run, with what it has spent; and the retries of a cell are as many as before."""
    outcomes = [Outcome(Ending.SEGFAULT, 0)]
    spec = _spec("0.76", maxParallelJobs=1, retries=1)
    # The first attempt has cost some seconds, so that 0.76 USD are not enough for another one of an hour.
    world = play(Script(spec, outcomes=outcomes, acts=[(900.0, _limit("5"))]))
    assert Counter(world.states.values()) == {"succeeded": 8}
    assert len({run for run, _ in world.cluster.measured}) == 1
    assert len(world.jobs) > len({job["metadata"]["labels"]["inferbench.dev/plan"] for job in world.jobs})


def test_a_limit_needs_a_price() -> None:
    """Nothing can be promised of a node that nobody knows the price of."""
    spec = _spec("5") | {"accelerators": [{"name": "anything", "kind": "CPU"}]}
    world = play(Script(spec))
    status, reason, message = _ready(world)
    assert (status, reason) == ("False", "PriceUnknown")
    assert "accelerator anything" in message
    assert world.jobs == []


def test_without_a_price_nothing_is_said_of_cost() -> None:
    """Zero would be a lie."""
    world = play(Script(spec_json(execution={"ttlSecondsAfterFinished": 30})))
    assert "cost" not in world.status


def test_cost_alone_is_not_written_more_than_once_a_minute() -> None:
    """A benchmark of an hour must not be written at every look."""
    versions: set[str] = set()

    def watch(world: World) -> None:
        def saw(kind: Kind, event: str, raw: Json) -> None:
            del event
            if kind is BENCHMARK and raw["status"].get("cost", {}).get("spentUSD", "0") != "0":
                versions.add(raw["metadata"]["resourceVersion"])

        world.server.watchers.append(saw)

    world = play(Script(_spec("9", maxParallelJobs=1), outcomes=[Outcome(Ending.HANGS)], acts=[(0.0, watch)]))
    assert Counter(world.states.values()) == {"failed": 2, "succeeded": 6}
    assert len(versions) < 40
