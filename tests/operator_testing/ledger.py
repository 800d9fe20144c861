"""Keeps account of what is written to the API server, and asserts that no later write contradicts an earlier one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from inferbench_operator.core.names import (
    DISRUPTIONS,
    LABEL_ATTEMPT,
    LABEL_BENCHMARK,
    LABEL_PLAN,
    LABEL_RUN,
    Reason,
)
from inferbench_operator.kube.kinds import BENCHMARK, JOB, RESULT, Kind
from inferbench_operator.models.status import BenchmarkStatus, CellState, CellStatus
from operator_testing.builders import NAME
from operator_testing.hand_cluster import HandCluster, cells_of
from operator_testing.server import Json

_JOB_NAME: Final = re.compile(rf"^{NAME}-[0-9a-f]{{10}}-([1-9][0-9]*)$")
_STOPS: Final = frozenset({Reason.STOPPED, Reason.CANCELLED, Reason.INVALID_SCHEDULE})
_EXCUSED: Final = DISRUPTIONS | _STOPS | {Reason.OTHER_CELL_FAILED}
_HOPELESS: Final = frozenset({"SequenceTooLong"})

Of = tuple[str, str]
"""A run and a cell."""


@dataclass(eq=False)
class Ledger:
    """The account of one benchmark, whatever becomes of it."""

    cluster: HandCluster
    max_parallel_jobs: int
    disruption_retries: int
    owners: list[str] = field(default_factory=list)
    """UIDs of the benchmarks that there were of the name; the last one counts."""
    names: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    given: Counter[Of] = field(default_factory=Counter)
    """Jobs that a cell was given."""
    stored: Counter[Of] = field(default_factory=Counter)
    """Results that were written for a cell."""
    excess: Counter[Of] = field(default_factory=Counter)
    """Jobs that others removed before a status had spoken of them: their number is given once more."""
    deleted: Counter[Of] = field(default_factory=Counter)
    """Results that people have deleted."""
    told: defaultdict[Of, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """Why each attempt at a cell failed, as the status told it."""
    retries: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The fewest and the most retries that a run was allowed."""
    _figures: dict[str, tuple[str, int]] = field(default_factory=dict)
    _entries: dict[Of, CellStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Watch every write."""
        self.cluster.server.watchers.append(self._saw)

    def _saw(self, kind: Kind, event: str, raw: Json) -> None:
        if kind is BENCHMARK and event != "DELETED":
            self._benchmark(event, raw)
        elif kind is RESULT and event != "DELETED":
            self._result(raw)
        elif kind is RESULT:
            self._figures.pop(raw["metadata"]["name"], None)
        elif kind is JOB and event == "ADDED":
            self._job(raw)
        elif kind is JOB and event == "DELETED":
            number = int(raw["metadata"]["labels"][LABEL_ATTEMPT])
            for of in _of_job(raw):
                known = self._entries.get(of)
                self.excess[of] += known is None or known.attempts < number

    def _job(self, raw: Json) -> None:
        metadata, labels = raw["metadata"], raw["metadata"]["labels"]
        assert [owner["controller"] for owner in metadata["ownerReferences"]] == [True]
        assert _owner(raw) in self.owners
        assert labels[LABEL_BENCHMARK] == NAME
        found = _JOB_NAME.match(metadata["name"])
        assert found
        assert found[1] == labels[LABEL_ATTEMPT]
        identity = (labels[LABEL_RUN], labels[LABEL_PLAN], labels[LABEL_ATTEMPT])
        assert self.names.setdefault(metadata["name"], identity) == identity, "a name stands for one attempt"
        assert list(self.names.values()).count(identity) == 1, "an attempt has one name"
        self.given.update(_of_job(raw))

    def _result(self, raw: Json) -> None:
        status, cell = raw["status"], raw["spec"]["cell"]
        of, p95 = (status["run"], cell), p95_of(raw)
        before = self._figures.get(raw["metadata"]["name"])
        assert before is None or before[0] != status["run"], "a figure is overwritten in its own run"
        self._figures[raw["metadata"]["name"]] = status["run"], p95
        self.stored[of] += 1
        assert self.stored[of] <= 1 + self.deleted[of], "a cell is stored twice in one run"
        assert p95 in self.cluster.figures, "nobody has measured this to the end"
        pod = self.cluster.figures[p95]
        assert cell in cells_of(pod)
        labels = pod["metadata"]["labels"]
        assert (labels[LABEL_RUN], labels[LABEL_ATTEMPT]) == (status["run"], str(status["attempt"]))

    def _benchmark(self, event: str, raw: Json) -> None:
        if event == "ADDED":
            self.owners.append(raw["metadata"]["uid"])
        status = BenchmarkStatus.model_validate(raw["status"])
        if status.run is None:
            return
        retries = raw["spec"]["execution"]["retries"]
        least, most = self.retries.get(status.run.id, (retries, retries))
        self.retries[status.run.id] = min(least, retries), max(most, retries)
        for entry in status.results:
            self._cell((status.run.id, entry.cell), entry)

    def _cell(self, of: Of, entry: CellStatus) -> None:
        told, before = self.told[of], self._entries.get(of)
        self._entries[of] = entry
        if entry.state.goes_on:
            # A stop that was told of, and then did not happen.
            told.pop(entry.attempts, None)
        elif entry.has_failed:
            known = told.setdefault(entry.attempts, entry.reason)
            assert known == entry.reason or known in _STOPS, "another reason is told of the same attempt"
            self._assert_fair(of, entry)
        elif entry.state is CellState.SKIPPED and (entry.stops or 0) > (before.stops or 0 if before else 0):
            told.setdefault(entry.attempts, entry.reason)

    def _assert_fair(self, of: Of, entry: CellStatus) -> None:
        """Assert that a cell is given up just when its attempts are used up, not counting those that were cut short."""
        told = [reason for number, reason in self.told[of].items() if number <= entry.attempts]
        final = entry.state is CellState.FAILED
        if entry.reason in DISRUPTIONS:
            assert final == (sum(reason in DISRUPTIONS for reason in told) > self.disruption_retries)
        elif entry.reason in _EXCUSED:
            assert not final
        elif entry.reason not in _HOPELESS:
            charged = entry.attempts - sum(reason in _EXCUSED for reason in told)
            least, most = self.retries[of[0]]
            assert charged > least if final else charged <= most

    def assert_bounded(self) -> None:
        """Assert that no cell was tried, or is being tried, more often than it may be."""
        for of, times in self.given.items():
            told = self.told[of].values()
            cut_short = sum(reason in _EXCUSED - DISRUPTIONS for reason in told)
            allowed = 1 + self.retries.get(of[0], (0, 0))[1] + self.disruption_retries
            assert times <= allowed + cut_short + self.excess[of] + self.deleted[of]
        active = [job for job in self.cluster.jobs(self.cluster.is_active) if _owner(job) == self.owners[-1]]
        cells = Counter(cell for job in active for cell in cells_of(job))
        assert set(cells.values()) <= {1}, "two Jobs measure the same cell"
        assert len(active) <= self.max_parallel_jobs


def p95_of(result: Json) -> int:
    """Return the headline figure of a result, in microseconds."""
    p95: int = result["status"]["latency"]["call"]["p95"]["valueMicroseconds"]
    return p95


def _owner(job: Json) -> str:
    uid: str = job["metadata"]["ownerReferences"][0]["uid"]
    return uid


def _of_job(job: Json) -> list[Of]:
    run: str = job["metadata"]["labels"][LABEL_RUN]
    return [(run, cell) for cell in cells_of(job)]
