"""The queue holds each benchmark once, and knows when to come back; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inferbench_operator.kube.parse import Key
from inferbench_operator.kube.workqueue import WorkQueue
from operator_testing.world import run_here

A, B = Key("n", "a"), Key("n", "b")


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in a loop whose clock jumps."""

    def run() -> None:
        run_here(test())

    run.__doc__ = test.__doc__
    return run


async def _due(queue: WorkQueue) -> float:
    """Return after how many seconds the next key comes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    queue.done(await queue.get())
    return round(loop.time() - began, 3)


async def _empty(queue: WorkQueue, seconds: float = 3600) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await queue.get()
    except TimeoutError:
        return True
    return False


@on_virtual_time
async def test_keys_come_in_order_and_once() -> None:
    """Adding a key that waits already changes nothing."""
    queue = WorkQueue()
    for key in (A, B, A, A):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == [A, B]
    assert await _empty(queue)


@on_virtual_time
async def test_a_key_in_work_is_not_handed_out_twice() -> None:
    """Added meanwhile, it comes once more, after it was given back."""
    queue = WorkQueue()
    queue.add(A)
    key = await queue.get()
    queue.add(A)
    queue.add(A)
    assert await _empty(queue)
    queue.done(key)
    assert await queue.get() == A
    queue.done(A)
    assert await _empty(queue)


@on_virtual_time
async def test_a_worker_that_waits_is_woken() -> None:
    """Two workers, two keys, one each."""
    queue = WorkQueue()
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(1)
    queue.add(A)
    queue.add(B)
    await asyncio.sleep(1)
    assert sorted((task.result() for task in workers if task.done()), key=str) == [A, B]
    workers[2].cancel()


@on_virtual_time
async def test_a_key_comes_when_it_is_due() -> None:
    """Neither before nor after."""
    queue = WorkQueue()
    queue.add_later(A, 30)
    assert await _due(queue) == 30
    assert await _empty(queue)


@pytest.mark.parametrize("delays", [(30, 10), (10, 30)])
def test_the_earlier_of_two_times_counts(delays: tuple[int, int]) -> None:
    """In whichever order they are asked for, and only once."""

    async def test() -> None:
        queue = WorkQueue()
        for delay in delays:
            queue.add_later(A, delay)
        assert await _due(queue) == 10
        assert await _empty(queue)

    run_here(test())


@on_virtual_time
async def test_a_pass_now_replaces_one_later() -> None:
    """The pass finds out by itself when to look again."""
    queue = WorkQueue()
    queue.add_later(A, 30)
    queue.add(A)
    assert await _due(queue) == 0
    assert await _empty(queue)


@on_virtual_time
async def test_failures_in_a_row_wait_longer_and_longer() -> None:
    """From a fifth of a second to a minute, and from the start again after a success."""
    queue = WorkQueue()
    waits = []
    for _ in range(11):
        queue.failed(A)
        waits.append(await _due(queue))
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    queue.succeeded(A)
    queue.failed(A)
    assert await _due(queue) == 0.2


@on_virtual_time
async def test_one_benchmarks_failures_are_not_anothers() -> None:
    """Each key has its own row."""
    queue = WorkQueue()
    for _ in range(5):
        queue.failed(A)
    queue.failed(B)
    assert await _due(queue) == 0.2


@on_virtual_time
async def test_a_key_that_becomes_due_while_in_work_comes_afterwards() -> None:
    """No time is lost that was asked for."""
    queue = WorkQueue()
    queue.add(A)
    key = await queue.get()
    queue.add_later(A, 5)
    await asyncio.sleep(10)
    queue.done(key)
    assert await _due(queue) == 0
