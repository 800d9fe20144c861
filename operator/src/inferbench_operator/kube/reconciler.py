"""The operator's engine: watch events in, passes over benchmarks out.

watch events ──> cache, queue ──> gather ──> decide (pure) ──> apply
                         ^                                       │
                         └──────────── look again at ────────────┘
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from inferbench_operator.core import preflight
from inferbench_operator.core.assessment import compared_benchmarks
from inferbench_operator.core.decide import decide
from inferbench_operator.core.settings import Settings
from inferbench_operator.kube import metrics, parse
from inferbench_operator.kube.apply import Applier
from inferbench_operator.kube.cache import Cache
from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import AlreadyExistsError, ConflictError, KubernetesError
from inferbench_operator.kube.gather import gather
from inferbench_operator.kube.kinds import Kind
from inferbench_operator.kube.listings import RETRY_SECONDS, Listings
from inferbench_operator.kube.parse import Json, Key
from inferbench_operator.kube.supply import SupplyReader
from inferbench_operator.kube.table_file import TableFile
from inferbench_operator.kube.turns import Turns
from inferbench_operator.kube.workqueue import WorkQueue

RESYNC_SECONDS: Final = 300.0
"""How often everything is listed, in case a watch has missed something."""
TABLE_SECONDS: Final = 5.0
"""How often the operator's own table of instance types is looked at; the kubelet takes a minute to bring it."""
_WORKERS: Final = 8
_CONFLICT_DELAY_SECONDS: Final = 0.05

_logger = logging.getLogger(__name__)


class Reconciler:
    """Keeps every benchmark on its way."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        namespaces: tuple[str | None, ...],
        table: TableFile | None = None,
    ) -> None:
        """Watch over the namespaces; (None,) means all."""
        self._client = client
        self._table = table
        self._settings = settings
        self._queue = WorkQueue()
        self._workers = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self.cache = Cache()
        self._listings = Listings(client, self.cache, namespaces)
        self._applier = Applier(client, self.cache, settings)
        self._turns = Turns(settings.max_parallel_jobs)
        self._supply = SupplyReader(client)

    async def __aenter__(self) -> Self:
        """List everything once, then start the workers."""
        if self._table:
            await self._read_table(self._table)
        await self._listings.until_installed()
        self._look_at(await self._listings.list_all())
        await self._workers.__aenter__()
        self._tasks = [self._workers.create_task(self._work(), name=f"worker-{number}") for number in range(_WORKERS)]
        self._tasks.append(self._workers.create_task(self._resync_for_ever(), name="resync"))
        if self._table:
            self._tasks.append(self._workers.create_task(self._follow_table(self._table), name="table"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the workers. A pass that is cut off in the middle is taken up by the next start."""
        for task in self._tasks:
            task.cancel()
        await self._workers.__aexit__(kind, error, trace)

    def saw(self, kind: Kind, raw: Json, *, deleted: bool) -> None:
        """Take in a watch event."""
        key = parse.key_of(raw)
        if deleted and key:
            key = self.cache.remove(kind, key, raw["metadata"]["uid"])
        elif key:
            key = self.cache.put(kind, raw)
        if key:
            self._queue.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._pass(key)
            finally:
                self._queue.done(key)

    async def _pass(self, key: Key) -> None:
        began = time.monotonic()
        outcome = "success"
        try:
            await self._reconcile(key)
            self._queue.succeeded(key)
        except (ConflictError, AlreadyExistsError):
            # The cache lags behind; the event that brings the newer version comes by itself, this is for its loss.
            outcome = "conflict"
            self._queue.add_later(key, _CONFLICT_DELAY_SECONDS)
        except KubernetesError as error:
            outcome = "error"
            _logger.warning("%s/%s: %s", key.namespace, key.name, error)
            self._queue.failed(key)
        except Exception:
            # A fault in our own code must not stop the other benchmarks; the queue slows its repetition down.
            outcome = "error"
            _logger.exception("%s/%s: the pass failed", key.namespace, key.name)
            self._queue.failed(key)
        finally:
            self._turns.done(key)
            if outcome == "error":
                # Whoever can't use a place must not keep it from others.
                self._turns.forget(key)
            for waiting in self._turns.next(self.cache.active_jobs()):
                if waiting != key:
                    self._queue.add(waiting)
            metrics.reconciled(outcome, time.monotonic() - began)

    async def _reconcile(self, key: Key) -> None:
        observed = self.cache.observe(key) if self._listings.is_complete(key) else None
        if observed is None:
            self._applier.forget(key)
            self._turns.forget(key)
            return
        siblings = {name: self.cache.observe(Key(key.namespace, name)) for name in compared_benchmarks(observed)}
        observed = replace(observed, siblings={name: found for name, found in siblings.items() if found})
        refusals = self._applier.refusals(observed.benchmark)
        now = datetime.now(UTC).replace(microsecond=0)
        observed, ask_again = await gather(observed, self._client, now)
        if preflight.is_due(observed, now):
            observed = replace(observed, supply=await self._supply.read(now))
        observed = replace(observed, refusals=refusals, blocked=self._applier.blocked(key))
        # Nothing is awaited from here until the places are taken, so that no two passes take the same one.
        run = observed.benchmark.status.run
        started = run.start_time if run else None
        observed = replace(observed, slots=self._turns.slots(key, started, self.cache.active_jobs()))
        decision = decide(observed, now, self._settings)
        self._turns.take(key, started, creates=len(decision.create_jobs), held=decision.held)
        put_off = await self._applier.apply(key, observed, decision, datetime.now(UTC))
        due = [time for time in (decision.look_again_at, put_off, ask_again) if time]
        if due:
            self._queue.add_later(key, max((min(due) - datetime.now(UTC)).total_seconds(), 0))

    async def _follow_table(self, table: TableFile) -> None:
        while True:
            await asyncio.sleep(TABLE_SECONDS)
            if await self._read_table(table):
                self._look_at(self.cache.known())

    async def _read_table(self, table: TableFile) -> bool:
        """Take over the instance types of the operator's own table; whether it has changed."""
        try:
            # In a thread: a large one takes seconds.
            catalogue = await asyncio.to_thread(table.news)
        except Exception:
            # A fault in our own code, as in a pass: what is known so far stands.
            _logger.exception("Reading the table of instance types failed")
            return False
        if catalogue is None:
            return False
        self._settings = replace(self._settings, catalogue=catalogue)
        return True

    async def _resync_for_ever(self) -> None:
        while True:
            for _ in range(int(RESYNC_SECONDS / RETRY_SECONDS)):
                await asyncio.sleep(RETRY_SECONDS)
                self._look_at(await self._listings.list_failed())
            self._look_at(await self._listings.list_all())

    def _look_at(self, keys: list[Key]) -> None:
        for key in keys:
            self._queue.add(key)
