"""What a run costs, and that it never costs more than it may."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest

from inferbench_operator.core import cost
from inferbench_operator.core.attempts import Judgement, Stage
from inferbench_operator.core.decide import decide
from inferbench_operator.core.facts import Attempt, Benchmark, Pod
from inferbench_operator.core.instance_table import with_table
from inferbench_operator.core.matrix import expand
from inferbench_operator.kube.kinds import BENCHMARK, POD, Kind
from inferbench_operator.models.execution import ExecutionPolicy
from inferbench_operator.models.status import Cost
from operator_testing.builders import (
    NOW,
    SETTINGS,
    ago,
    attempt_of,
    benchmark,
    ended,
    observed,
    pod,
    result_of,
    run_of,
    running,
    spec,
    spec_json,
)
from operator_testing.cluster import Ending, Outcome
from operator_testing.kstatus import kstatus
from operator_testing.server import Json
from operator_testing.world import NAME, Act, Script, World, play

HOURLY: Final = Decimal("0.7582")
"""Price of inf2.xlarge in the catalogue, in US dollars per hour."""
AN_HOUR: Final = {"startDeadlineSeconds": 40, "measureDeadlineSeconds": 3500}
"""With the minute that the operator grants a runner that hangs, a Job may take an hour."""


def _attempt(of: Pod | None, **changes: Any) -> Attempt:  # noqa: ANN401 - any field
    """Return an attempt of which a second costs a tenth of a cent."""
    return attempt_of(benchmark(), pod=of, **{"usd_per_hour": Decimal("3.6"), **changes})


def _spent(before: Cost | None, *attempts: Attempt, now: datetime = NOW) -> Cost:
    return cost.spent(before, attempts, ago(1000), now)


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
    found = cost.committed(Judgement(_attempt(holding), stage), policy, NOW)
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
    assert "may cost 0.758 USD; 0.000 of execution.maxCostUSD 0.7 are spent" in message
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


def _running_inf2(limit: str = "100", **fields: Any) -> tuple[Benchmark, Attempt]:  # noqa: ANN401 - any field
    """Return a benchmark whose one Job has held an inf2.xlarge for an hour, and what the status told at its start."""
    wanted = spec(
        accelerators=[{"name": "inf2", "instanceTypes": ["inf2.xlarge"]}], execution={"maxCostUSD": limit}, **fields
    )
    of = benchmark(wanted)
    status = decide(observed(of), ago(3700), SETTINGS).status
    assert status
    job = attempt_of(of, pod=running(scheduled_at=ago(3600), started_at=ago(3600)), usd_per_hour=HOURLY)
    return replace(of, status=status), job


def test_a_refusal_counts_what_its_jobs_have_cost() -> None:
    """They are removed, and their time would be forgotten with them."""
    of, job = _running_inf2()
    refused = decide(observed(replace(of, spec=None, spec_error="wrong"), job), NOW, SETTINGS)
    assert refused.delete_jobs == (job,)
    assert refused.status
    assert refused.status.cost
    assert Decimal(refused.status.cost.spent_usd) == HOURLY


def test_a_new_run_leaves_what_the_one_before_has_cost() -> None:
    """To the moment at which its Jobs are removed."""
    of, job = _running_inf2()
    status = decide(observed(replace(of, rerun="again"), job), NOW, SETTINGS).status
    assert status
    assert [past.spent_usd for past in status.history] == [str(HOURLY)]
    assert status.cost
    assert status.cost.spent_usd == "0"


def test_a_job_costs_what_it_did_when_it_was_made() -> None:
    """Whatever the operator's table says by now, or whether it knows the type at all."""
    of, job = _running_inf2()
    made = decide(observed(of), NOW, SETTINGS).create_jobs[0]
    assert made["metadata"]["annotations"]["inferbench.dev/usd-per-hour"] == str(HOURLY)
    table = with_table(SETTINGS.catalogue, b'inf2.xlarge: {usdPerHour: "99"}')
    status = decide(observed(of, job), NOW, replace(SETTINGS, catalogue=table)).status
    assert status
    assert status.cost
    assert Decimal(status.cost.spent_usd) == HOURLY


def test_a_suspended_run_is_not_over_for_want_of_money() -> None:
    """Nothing is wanted until it is resumed."""
    of, _ = _running_inf2("0.1", suspend=True)
    status = decide(observed(of), NOW, SETTINGS).status
    assert status
    assert [entry.state for entry in status.results] == ["pending"]


def test_a_failure_is_told_beside_the_money_that_is_missing_for_a_retry() -> None:
    """A higher limit would buy the same failure again; it stays in sight when the Job is gone."""
    of, job = _running_inf2("0.9")
    over = replace(job, pod=ended(exit_code=137, reason="OOMKilled"))
    status = decide(observed(of, over), NOW, SETTINGS).status
    assert status
    (entry,) = status.results
    assert (entry.state, entry.reason) == ("skipped", "CostLimitReached")
    assert "OutOfMemory: The kernel killed" in entry.message
    assert entry.message.endswith("raise it, or lower measureDeadlineSeconds.")
    later = decide(observed(replace(of, status=status)), NOW, SETTINGS).status
    assert later
    assert later.results == status.results


def test_a_finished_run_stays_what_it_is_when_a_price_goes() -> None:
    """The table of instance types starts and stops no run."""
    of, _ = _running_inf2()
    assert of.spec
    result = result_of(of, expand(of.spec)[0], run=run_of(of))
    status = decide(observed(of, result), NOW, SETTINGS).status
    assert status
    unpriced = replace(SETTINGS.catalogue.types["inf2.xlarge"], usd_per_hour=None)
    catalogue = replace(SETTINGS.catalogue, types={"inf2.xlarge": unpriced})
    after = decide(observed(replace(of, status=status), result), NOW, replace(SETTINGS, catalogue=catalogue)).status
    assert after
    assert after.conditions == status.conditions


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
