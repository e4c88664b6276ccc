"""The mixed load: what one client process does while the cluster is hurt, all of it recorded.

Each process has two metaray clients (each with its own sequences) and a handful of tasks on them.
It ends when its standard input does, so none outlives the run that started it. Keys change every
few seconds, so that many tasks meet at the same key and yet no key's history grows beyond what a
checker can search.

    register    put, put at an expected revision, get                   metadata-0
    append      an element more, by get and compare-and-set             metadata-0
    counter     an offset commit: the row counts its commits            offset-0, -1
    offset      batches of three partitions, fetched as a whole         offset-0, -1
    session     takeover, close with an epoch, get                      mqtt-0
    watch       every change of the key-value table                     metadata-0

What a counter counts is not idempotent: a commit that is applied twice is seen. A key's name begins
with its model (`tests/history/models.py`).
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final, TextIO

from metaray import Client, MetarayError, NoQuorum, connect
from state_machines.errors import Compacted, Unavailable
from state_machines.metadata.kv import KV
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from state_machines.mqtt.sessions import NEVER_S
from state_machines.offset.offset import OffsetCommit
from tests.history.operation import Recorder

CALL_MS: Final = 8_000  #: the deadline of every call
SLOT_SECONDS: Final = 2.0  #: how long a key is in use
KEYS: Final = 2  #: in use at a time, of each kind
PAUSE_MS: Final = 120  #: the longest pause of a task between two calls
PARTITIONS: Final = 3
MARK_SECONDS: Final = 30.0  #: at the end, until a watcher must have been told of the last write

Step = Callable[["Task"], Awaitable[None]]


class Task:
    """One caller: makes one call at a time, and records it."""

    def __init__(
        self, name: str, client: Client, recorder: Recorder, rng: Random, tenant: str
    ) -> None:
        self.name = name
        self.client = client
        self.recorder = recorder
        self.rng = rng
        self.tenant = tenant
        self.made = 0  #: values this task has written: each is unique
        self.slowest = 0.0

    async def call(self, kind: str, key: str, asked: Any, work: Awaitable[Any]) -> Any:
        """Await `work`, with invocation and outcome on record. Its value; None unless it is ok."""
        ticket = self.recorder.invoke(self.name, kind, key, asked)
        begun = time.monotonic()
        try:
            value = await work
        except MetarayError as error:
            self.recorder.raised(ticket, error)
            return None
        finally:
            self.slowest = max(self.slowest, time.monotonic() - begun)
        self.recorder.ok(ticket, value)
        return value

    def key(self, kind: str) -> str:
        """One of the keys in use: the same for every process of this machine."""
        return f"{kind}.{int(time.monotonic() / SLOT_SECONDS)}.{self.rng.randrange(KEYS)}"

    def fresh(self) -> str:
        """A value that nobody else writes."""
        self.made += 1
        return f"{self.name}#{self.made}"


async def register(task: Task) -> None:
    """Put, or get, or get and put at the revision that was got."""
    key, client, tenant = task.key("register"), task.client, task.tenant
    choice = task.rng.randrange(4)
    if choice == 0:
        value = task.fresh()
        work = client.put(key, value.encode(), tenant=tenant)
        await task.call("put", key, (value, None), work)
        return
    read = await task.call("get", key, None, pair(client, key, tenant))
    if choice == 1 or read is None:
        return
    value, expected = task.fresh(), read[1]
    work = client.put(key, value.encode(), expected_revision=expected, tenant=tenant)
    await task.call("put", key, (value, expected), work)


async def pair(client: Client, key: str, tenant: str) -> tuple[str, int] | None:
    """Value and revision."""
    entry = await client.get(key, tenant=tenant)
    return None if entry is None else (entry.value.decode(), entry.revision)


async def append(task: Task) -> None:
    """An element more at the end of a list, unless somebody is faster; or a look at it."""
    key, client, tenant = task.key("append"), task.client, task.tenant
    if task.rng.randrange(3) == 0:
        await task.call("read", key, None, items(client, key, tenant))
        return
    item = task.fresh()
    await task.call("append", key, item, _append(client, key, tenant, item))


async def _append(client: Client, key: str, tenant: str, item: str) -> int:
    """The list's length with the item. Conflict when others were faster."""
    try:
        found = await client.get(key, tenant=tenant)
    except MetarayError as error:
        raise NoQuorum(f"nothing was written: {error}") from error
    text, revision = (found.value.decode(), found.revision) if found is not None else ("", 0)
    longer = f"{text} {item}".strip()
    await client.put(key, longer.encode(), expected_revision=revision, tenant=tenant)
    return len(longer.split())


async def items(client: Client, key: str, tenant: str) -> tuple[str, ...]:
    """The list."""
    found = await client.get(key, tenant=tenant)
    return tuple(found.value.decode().split()) if found is not None else ()


async def counter(task: Task) -> None:
    """Add one to a counter that all tasks share, or read it."""
    key, client, tenant = task.key("counter"), task.client, task.tenant
    if task.rng.randrange(3) == 0:
        await task.call("get", key, None, counted(client, key, tenant))
        return
    await task.call("add", key, None, _add(client, key, tenant))


async def _add(client: Client, key: str, tenant: str) -> None:
    commit = OffsetCommit(group=key, topic="t", partition=0, offset=1)
    await client.commit_offsets([commit], tenant=tenant)


async def counted(client: Client, key: str, tenant: str) -> int:
    """The counter."""
    row = await client.fetch_offset(key, "t", 0, tenant=tenant)
    return row.commits if row is not None else 0


async def offset(task: Task) -> None:
    """Commit some partitions of a consumer group in a batch, or fetch all of it."""
    key, client, tenant = task.key("offset"), task.client, task.tenant
    if task.rng.randrange(3) == 0:
        await task.call("fetch", key, None, fetched(client, key, tenant))
        return
    task.made += 1
    batch = tuple(
        ("t", task.rng.randrange(PARTITIONS), task.made, task.name) for _ in range(PARTITIONS)
    )
    await task.call("commit", key, batch, _commit(client, key, tenant, batch))


async def _commit(
    client: Client, key: str, tenant: str, batch: tuple[tuple[str, int, int, str], ...]
) -> int:
    commits = [
        OffsetCommit(group=key, topic=topic, partition=partition, offset=number, metadata=note)
        for topic, partition, number, note in batch
    ]
    return (await client.commit_offsets(commits, tenant=tenant)).committed


async def fetched(client: Client, key: str, tenant: str) -> tuple[Any, ...]:
    """All of a consumer group's rows."""
    rows = await client.fetch_offsets(key, tenant=tenant)
    return tuple(
        [(row.topic, row.partition, row.offset, row.metadata, row.commits) for row in rows]
    )


async def session(task: Task) -> None:
    """Take a session over, close it with the epoch got, or look."""
    key, client, tenant = task.key("session"), task.client, task.tenant
    if task.rng.randrange(3) == 0:
        await task.call("get", key, None, held(client, key, tenant))
        return
    opening = OpenSession(tenant=tenant, client_id=key, broker=task.name, expiry_s=NEVER_S)
    opened = await task.call("open", key, (task.name, NEVER_S, False), _open(client, opening))
    if opened is None or task.rng.randrange(2):
        return
    await asyncio.sleep(task.rng.randrange(PAUSE_MS) / 1000)  # somebody may take it over
    closing = CloseSession(tenant=tenant, client_id=key, epoch=opened[0])
    await task.call("close", key, (opened[0], False, None), client.call(closing))


async def _open(client: Client, opening: OpenSession) -> tuple[int, bool]:
    opened = await client.call(opening)
    return opened.epoch, opened.present


async def held(client: Client, key: str, tenant: str) -> tuple[Any, ...] | None:
    """Who holds the session."""
    row = await client.call(GetSession(tenant=tenant, client_id=key))
    if row is None:
        return None
    return row.broker, row.epoch, row.connected, row.expiry_s, row.subscriptions


STEPS: Final[tuple[Step, ...]] = (register, append, counter, offset, session)
FINAL: Final[dict[str, tuple[str, Callable[[Client, str, str], Awaitable[Any]]]]] = {
    "register": ("get", pair),
    "append": ("read", items),
    "counter": ("get", counted),
    "offset": ("fetch", fetched),
    "session": ("get", held),
}
"""How a key of each model is read at the end."""


async def _loop(task: Task, step: Step, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await step(task)
        await asyncio.sleep(task.rng.randrange(PAUSE_MS) / 1000)


async def _watch(client: Client, file: TextIO, tenant: str, mark: str) -> None:
    """Every change of our tenant's pairs until that of the key `mark`; where it begins, and where
    it begins anew because what came between was compacted."""
    revision: int | None = None
    while True:
        try:
            if revision is None:
                revision = await client.revision("metadata-0")
                file.write(json.dumps([revision]) + "\n")
            async for change in client.watch(KV, from_revision=revision):
                if change.key[0] == tenant:
                    value = change.row.value.decode() if change.row is not None else None
                    file.write(json.dumps([change.revision, change.key[1], value]) + "\n")
                revision = change.revision
                if change.key == (tenant, mark):
                    return
        except Compacted:
            revision = None
        except (NoQuorum, Unavailable):
            await asyncio.sleep(0.1)


def _when_input_ends(stop: asyncio.Event) -> None:
    """Set `stop` when standard input ends, also if whoever started us is no more."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait, daemon=True, name="until input ends").start()


async def work(name: str, tenant: str, seed: int, folder: Path) -> None:
    """One client process, until standard input ends. Makes `<name>.ready` once it works."""
    stop, mark = asyncio.Event(), f"mark.{name}"
    with (
        Recorder(folder / f"{name}.history") as recorder,
        (folder / f"{name}.watch").open("w", buffering=1) as told,
    ):
        async with connect(timeout_ms=CALL_MS) as first, connect(timeout_ms=CALL_MS) as second:
            tasks = [
                Task(
                    f"{name}.{number}.{step.__name__}",
                    client,
                    recorder,
                    Random(f"{seed} {name} {number} {step.__name__}"),
                    tenant,
                )
                for number, client in enumerate((first, second))
                for step in STEPS
            ]
            _when_input_ends(stop)
            watching = asyncio.create_task(_watch(first, told, tenant, mark))
            steps = zip(tasks, STEPS * 2, strict=True)
            loops = [asyncio.create_task(_loop(task, step, stop)) for task, step in steps]
            ended: list[asyncio.Future[Any]] = [asyncio.create_task(stop.wait()), watching, *loops]
            (folder / f"{name}.ready").touch()
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await asyncio.gather(*loops)
            async with asyncio.timeout(MARK_SECONDS):
                while not watching.done():  # it may have to begin anew after a mark
                    await first.put(mark, b"", tenant=tenant)
                    await asyncio.wait([watching], timeout=1.0)
            watching.result()  # it was told of the mark, so of all before
    slowest = max(task.slowest for task in tasks)
    (folder / f"{name}.slowest").write_text(f"{slowest:.3f}")
