"""What the operator knows of the cluster: parsed facts of all watched objects, by benchmark.

Filled from three sides: watch events, full listings, and the operator's own writes. All three may come late or twice,
so an object is replaced only by a newer version of itself, and one that was deleted does not come back.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from inferbench_operator.core.facts import Attempt, Benchmark, Observed, Pod, Result
from inferbench_operator.kube import parse
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT, Kind
from inferbench_operator.kube.parse import Json, Key

Fact = TypeVar("Fact")

_REMEMBERED_DELETIONS: Final = 20_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Fact]):
    version: int
    owner: str
    fact: Fact


@dataclass(slots=True)
class _Family:
    """One benchmark and its children, each by UID."""

    benchmarks: dict[str, _Entry[Benchmark]] = field(default_factory=dict)
    results: dict[str, _Entry[Result]] = field(default_factory=dict)
    attempts: dict[str, _Entry[Attempt]] = field(default_factory=dict)
    pods: dict[str, _Entry[Pod]] = field(default_factory=dict)

    def of(self, kind: Kind) -> dict[str, Any]:
        entries: dict[Kind, dict[str, Any]] = {
            BENCHMARK: self.benchmarks,
            RESULT: self.results,
            JOB: self.attempts,
            POD: self.pods,
        }
        return entries[kind]

    @property
    def benchmark(self) -> Benchmark | None:
        """The newest benchmark of the name; an older one is about to be forgotten."""
        return max(self.benchmarks.values(), key=lambda entry: entry.version).fact if self.benchmarks else None

    @property
    def empty(self) -> bool:
        return not (self.benchmarks or self.results or self.attempts or self.pods)


_PARSERS: Final = {BENCHMARK: parse.benchmark, RESULT: parse.result, JOB: parse.attempt, POD: parse.pod}


def _entry(kind: Kind, version: int, raw: Json) -> _Entry[Any] | None:
    """Parse an object, or return None: one that nobody can read must not stop the operator for all others."""
    try:
        fact = _PARSERS[kind](raw)
        return _Entry(version, parse.owner_uid(raw), fact) if fact else None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        name = raw["metadata"].get("name")
        _logger.exception("%s %s can't be read and is left out", kind.plural, name)
        return None


class Cache:
    """The facts by benchmark."""

    def __init__(self) -> None:
        """Start empty."""
        self._families: defaultdict[Key, _Family] = defaultdict(_Family)
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def put(self, kind: Kind, raw: Json) -> Key | None:
        """Take in an object as the API server sent it; return the benchmark that it concerns, if it is news."""
        key, uid = parse.key_of(raw), raw["metadata"]["uid"]
        version = int(raw["metadata"]["resourceVersion"])
        if key is None or uid in self._deleted:
            return None
        entries = self._families[key].of(kind)
        known = entries.get(uid)
        if known and known.version >= version:
            return None
        entry = _entry(kind, version, raw)
        if entry is None:
            entries.pop(uid, None)
        else:
            entries[uid] = entry
        return key

    def remove(self, kind: Kind, key: Key, uid: str) -> Key | None:
        """Forget an object that is deleted; return the benchmark that it concerned, if it was known."""
        self._deleted[uid] = None
        while len(self._deleted) > _REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)
        if key not in self._families:
            return None
        family = self._families[key]
        known = family.of(kind).pop(uid, None)
        if family.empty:
            del self._families[key]
        return key if known else None

    def replace_all(self, kind: Kind, raws: Iterable[Json], version: int, namespace: str | None) -> None:
        """Take in a full listing of a kind in one namespace or (None) in all.

        What the listing lacks is gone, unless it is younger than the listing.
        """
        listed = set()
        for raw in raws:
            # Items of a list carry no kind of their own.
            self.put(kind, {"kind": "InferenceBenchmark", **raw} if kind is BENCHMARK else raw)
            listed.add(raw["metadata"]["uid"])
        for key, family in list(self._families.items()):
            if namespace not in {None, key.namespace}:
                continue
            gone = [uid for uid, entry in family.of(kind).items() if uid not in listed and entry.version <= version]
            for uid in gone:
                self.remove(kind, key, uid)

    def known(self) -> list[Key]:
        """Return all benchmarks that something is known of."""
        return list(self._families)

    def observe(self, key: Key) -> Observed | None:
        """Return the facts of one benchmark, or None where it does not exist.

        Children of an earlier benchmark of the same name are left out: the garbage collector is about to remove them.
        """
        family = self._families.get(key)
        benchmark = family.benchmark if family else None
        if family is None or benchmark is None:
            return None
        # By UID of the Job, not by name: a Job made anew must not be judged by the pod of the one before.
        pods: dict[str, Pod] = {}
        for entry in sorted(family.pods.values(), key=lambda entry: entry.fact.created_at):
            pods[entry.owner] = entry.fact
        return Observed(
            benchmark=benchmark,
            attempts=tuple(
                replace(entry.fact, pod=pods.get(entry.fact.uid))
                for entry in family.attempts.values()
                if entry.owner == benchmark.uid
            ),
            results=tuple(entry.fact for entry in family.results.values() if entry.owner == benchmark.uid),
        )

    def results(self, key: Key) -> dict[str, Result]:
        """Return the stored results of a benchmark by cell."""
        family = self._families.get(key)
        of = family.benchmark.uid if family and family.benchmark else ""
        entries = family.results.values() if family else ()
        return {entry.fact.spec.cell: entry.fact for entry in entries if entry.owner == of}

    def active_jobs(self) -> int:
        """Return how many Jobs of all benchmarks have devices or wait for them; those that a queue holds do not."""
        return sum(
            not (entry.fact.finished_at or entry.fact.suspended or entry.fact.deleting)
            for family in self._families.values()
            for entry in family.attempts.values()
        )

    def benchmarks(self) -> list[Benchmark]:
        """Return all benchmarks."""
        return [family.benchmark for family in self._families.values() if family.benchmark]
