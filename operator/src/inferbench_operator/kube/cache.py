"""What the operator knows of the cluster: parsed facts of all watched objects, by benchmark.

Filled from three sides: watch events, full listings, and the operator's own writes. All three may come late or twice,
so an object is replaced only by a newer version of itself, and one that was deleted does not come back.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from inferbench_operator.core.facts import Attempt, Benchmark, Observed, Result
from inferbench_operator.kube import parse
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT, Kind
from inferbench_operator.kube.parse import Json, Key, OwnedPod

Fact = TypeVar("Fact")

_REMEMBERED_DELETIONS: Final = 20_000


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
    pods: dict[str, _Entry[OwnedPod]] = field(default_factory=dict)

    def of(self, kind: Kind) -> dict[str, Any]:
        entries: dict[Kind, dict[str, Any]] = {
            BENCHMARK: self.benchmarks,
            RESULT: self.results,
            JOB: self.attempts,
            POD: self.pods,
        }
        return entries[kind]

    @property
    def empty(self) -> bool:
        return not (self.benchmarks or self.results or self.attempts or self.pods)


_PARSERS: Final = {BENCHMARK: parse.benchmark, RESULT: parse.result, JOB: parse.attempt, POD: parse.pod}


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
        fact = _PARSERS[kind](raw)
        if fact is None:
            entries.pop(uid, None)
        else:
            entries[uid] = _Entry(version, parse.owner_uid(raw), fact)
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
        if family is None or not family.benchmarks:
            return None
        benchmark = max(family.benchmarks.values(), key=lambda entry: entry.version).fact
        pods: dict[str, OwnedPod] = {}
        for entry in family.pods.values():
            other = pods.get(entry.fact.job)
            if other is None or other.pod.created_at <= entry.fact.pod.created_at:
                pods[entry.fact.job] = entry.fact
        return Observed(
            benchmark=benchmark,
            attempts=tuple(
                replace(entry.fact, pod=pods[entry.fact.name].pod if entry.fact.name in pods else None)
                for entry in family.attempts.values()
                if entry.owner == benchmark.uid
            ),
            results=tuple(entry.fact for entry in family.results.values() if entry.owner == benchmark.uid),
        )

    def benchmarks(self) -> list[Benchmark]:
        """Return all benchmarks."""
        return [entry.fact for family in self._families.values() for entry in family.benchmarks.values()]
