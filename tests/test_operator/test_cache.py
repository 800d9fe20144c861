"""The cache takes events in any order and tells one consistent story."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferbench_operator.core.facts import Observed
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.kinds import BENCHMARK, JOB, POD, RESULT, Kind
from inferbench_operator.kube.parse import Key
from operator_testing.recorded import Json, recorded

KEY = Key("team", "study")
UID = "11111111-1111-1111-1111-111111111111"
JOB_UID = "0c9b7d0e-0d0c-4a54-8f0f-1c8d5d1f2a33"


def _filled() -> Cache:
    cache = Cache()
    for kind, name in ((BENCHMARK, "benchmark"), (JOB, "job_failed"), (POD, "pod_running"), (RESULT, "result")):
        assert cache.put(kind, recorded(name)) == KEY
    return cache


def _observed(cache: Cache) -> Observed:
    found = cache.observe(KEY)
    assert found
    return found


def _benchmark(version: int, uid: str = UID) -> Json:
    return recorded("benchmark", resourceVersion=str(version), generation=version, uid=uid)


def test_everything_of_one_benchmark_is_found_together() -> None:
    """The Job with its pod, and the result."""
    seen = _observed(_filled())
    assert seen.benchmark.name == "study"
    (attempt,) = seen.attempts
    assert attempt.pod
    assert attempt.pod.name == "study-3a47f1a22c-1-x7k2p"
    assert [result.spec.cell for result in seen.results] == ["0123456789"]


def test_an_unknown_benchmark_is_none() -> None:
    """Even when its children are known."""
    cache = Cache()
    assert cache.observe(KEY) is None
    cache.put(JOB, recorded("job_failed"))
    assert cache.observe(KEY) is None
    assert cache.known() == [KEY]


@settings(deadline=None)
@given(st.permutations([1, 2, 3, 4]))
def test_the_newest_version_wins_in_any_order(versions: list[int]) -> None:
    """Late events change nothing, and are no news."""
    cache = Cache()
    newest = 0
    for version in versions:
        news = cache.put(BENCHMARK, _benchmark(version))
        assert news == (KEY if version > newest else None)
        newest = max(newest, version)
    assert _observed(cache).benchmark.generation == 4


def test_versions_are_compared_as_numbers() -> None:
    """10 is newer than 9."""
    cache = Cache()
    cache.put(BENCHMARK, _benchmark(9))
    assert cache.put(BENCHMARK, _benchmark(10)) == KEY


def test_what_was_deleted_does_not_come_back() -> None:
    """An event that was overtaken by the deletion is ignored; an object of the same name is another one."""
    cache = _filled()
    assert cache.remove(JOB, KEY, JOB_UID) == KEY
    assert cache.remove(JOB, KEY, JOB_UID) is None
    assert cache.put(JOB, recorded("job_failed", resourceVersion="9999")) is None
    assert _observed(cache).attempts == ()
    assert cache.put(JOB, recorded("job_failed", uid="another")) == KEY
    assert [attempt.uid for attempt in _observed(cache).attempts] == ["another"]


def test_a_deletion_may_come_before_the_object_was_ever_seen() -> None:
    """It stays unseen."""
    cache = Cache()
    assert cache.remove(BENCHMARK, KEY, UID) is None
    assert cache.put(BENCHMARK, recorded("benchmark")) is None


def test_a_family_that_is_gone_takes_no_memory() -> None:
    """Nothing is known of the name any more."""
    cache = _filled()
    for kind, uid in (
        (BENCHMARK, UID),
        (JOB, JOB_UID),
        (POD, recorded("pod_running")["metadata"]["uid"]),
        (RESULT, recorded("result")["metadata"]["uid"]),
    ):
        cache.remove(kind, KEY, uid)
    assert cache.known() == []


def test_the_children_of_an_earlier_benchmark_are_left_out() -> None:
    """A benchmark that was deleted and made again starts from nothing."""
    cache = _filled()
    cache.remove(BENCHMARK, KEY, UID)
    cache.put(BENCHMARK, _benchmark(9000, uid="second"))
    seen = _observed(cache)
    assert seen.benchmark.uid == "second"
    assert not seen.attempts
    assert not seen.results


def test_the_newer_of_two_benchmarks_of_one_name_counts() -> None:
    """The deletion of the first may be seen last; metrics have one series of each, too."""
    cache = Cache()
    cache.put(BENCHMARK, _benchmark(20, uid="second"))
    cache.put(BENCHMARK, _benchmark(10, uid="first"))
    assert _observed(cache).benchmark.uid == "second"
    assert [of.uid for of in cache.benchmarks()] == ["second"]


def test_a_job_made_anew_is_not_judged_by_the_pod_of_the_one_before() -> None:
    """Both pods bear the Job's name; each belongs to its own Job."""
    cache = _filled()
    cache.remove(JOB, KEY, JOB_UID)
    cache.put(JOB, recorded("job_failed", uid="second"))
    (attempt,) = _observed(cache).attempts
    assert attempt.pod is None


def test_the_younger_pod_of_a_job_counts() -> None:
    """Should a Job ever have two."""
    cache = _filled()
    younger = {"uid": "p2", "name": "younger", "creationTimestamp": "2026-01-05T12:00:30Z"}
    cache.put(POD, recorded("pod_running", **younger))
    (attempt,) = _observed(cache).attempts
    assert attempt.pod
    assert attempt.pod.name == "younger"


def test_an_object_without_the_label_is_nobodys() -> None:
    """It is not kept."""
    cache = Cache()
    assert cache.put(JOB, recorded("job_failed", labels={})) is None
    assert cache.known() == []


def test_a_result_that_does_not_fit_any_more_is_forgotten() -> None:
    """It counts as not measured, and that is news."""
    cache = _filled()
    broken = recorded("result", resourceVersion="5400")
    broken["status"] = {}
    assert cache.put(RESULT, broken) == KEY
    assert _observed(cache).results == ()


def test_an_unreadable_object_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is left out, and the log names it."""
    cache = _filled()
    broken = recorded("job_failed", uid="broken", name="broken-job")
    broken["spec"] = {}
    cache.put(JOB, broken)
    assert len(_observed(cache).attempts) == 1
    assert "broken-job" in caplog.text


def _listed(raw: Json) -> Json:
    """Return an object as a listing has it."""
    return {key: value for key, value in raw.items() if key not in {"kind", "apiVersion"}}


@pytest.mark.parametrize(
    ("kind", "name"), [(BENCHMARK, "benchmark"), (JOB, "job_failed"), (POD, "pod_running"), (RESULT, "result")]
)
def test_a_listing_brings_what_is_new_and_takes_what_is_gone(kind: Kind, name: str) -> None:
    """For each kind, though items of a list do not name theirs."""
    cache = _filled()
    fresh = recorded(name, uid="fresh", resourceVersion="6000")
    cache.replace_all(kind, [_listed(fresh)], 7000, None)
    seen = cache.observe(KEY)
    assert seen
    uids = {
        BENCHMARK: [seen.benchmark.uid],
        JOB: [attempt.uid for attempt in seen.attempts],
        POD: ["fresh"],
        RESULT: [result.uid for result in seen.results],
    }
    if kind is not BENCHMARK:
        assert uids[kind] == ["fresh"]
    assert uids[BENCHMARK] == ["fresh" if kind is BENCHMARK else UID]


def test_a_listing_does_not_take_what_is_younger() -> None:
    """A Job that was made while the list was read is not in it, and stays."""
    cache = _filled()
    cache.replace_all(JOB, [], 5199, None)
    assert len(_observed(cache).attempts) == 1
    cache.replace_all(JOB, [], 5200, None)
    assert _observed(cache).attempts == ()


def test_a_listing_of_one_namespace_leaves_the_others_alone() -> None:
    """And so does one of a namespace that nobody knows."""
    cache = _filled()
    cache.replace_all(JOB, [], 9999, "other")
    assert len(_observed(cache).attempts) == 1
    cache.replace_all(JOB, [], 9999, "team")
    assert _observed(cache).attempts == ()


def test_a_stale_listing_does_not_overwrite() -> None:
    """A watch event may be faster than a list."""
    cache = _filled()
    cache.put(BENCHMARK, _benchmark(8000))
    cache.replace_all(BENCHMARK, [_listed(_benchmark(7000))], 7500, None)
    assert _observed(cache).benchmark.generation == 8000
