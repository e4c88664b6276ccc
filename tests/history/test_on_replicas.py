"""Real replicas under trouble: what clients and watchers were told is what every log says.

Storage, machine, core, transport and client engine are the product's; only the wires are ours, and
they are bad ones (`tests/actors/wires.py`). Clients meet at a few keys, a leader is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from actors.caller import Caller
from state_machines.errors import Compacted, MetarayError
from state_machines.metadata.kv import KV
from tests.actors.wires import QUICK, Group, eventually
from tests.history import linearizable, replay, watch
from tests.history.commands import request, told
from tests.history.logged import agreed, changes_in, commands_in, compare, placed, read_log
from tests.history.models import MODELS
from tests.history.operation import Recorder
from tests.history.servers import SERVERS
from tests.history.validation import KEYS, asked_of

CLIENTS = 4
CALLS = 40
WATCHERS = 2
GROUP = "metadata-0"


async def client(group: Group, recorder: Recorder, name: str, seed: int) -> None:
    """One who asks for this and that, at the same keys as the others."""
    caller = Caller(group.wires, timeout_ms=2_000, rng=Random(seed))
    luck, server = Random(seed), SERVERS["register"]()
    try:
        for number in range(CALLS):
            key = luck.choice(KEYS)
            kind, input = server.draw(luck, key)
            if kind == "put":
                input = (f"{name}.{number}", input[1])
            ticket = recorder.invoke(name, kind, key, input)
            try:
                reply = await caller.call(request("register", kind, key, input))
            except MetarayError as error:
                recorder.raised(ticket, error)
                continue
            output = told("register", kind, reply)
            recorder.ok(ticket, output)
            if isinstance(output, tuple):
                server.rows[key] = output
    finally:
        await caller.close()


class Watcher:
    """Polls for ever, and keeps what it was told. Where it is refused it begins anew."""

    def __init__(self, group: Group, seed: int) -> None:
        self.caller = Caller(group.wires, timeout_ms=2_000, rng=Random(seed))
        self.chains: list[list[watch.Delivery | watch.Compaction]] = [[]]
        self.upto = 0

    async def run(self) -> None:
        while True:
            try:
                reply = await self.caller.watch(GROUP, (KV.name,), self.upto)
            except Compacted:
                self.chains[-1].append(watch.Compaction(self.upto))
                self.chains.append([])
                self.upto = (await self.caller.watch(GROUP, (), None)).revision
            except MetarayError:
                continue  # nobody leads: the caller has waited, and asks again
            else:
                self.chains[-1].append(watch.delivery(self.upto, reply, KV))
                self.upto = reply.revision


async def story(group: Group, recorder: Recorder, watchers: Sequence[Watcher]) -> None:
    """Founded, troubled, robbed of its leader, and calm in the end."""
    await group.found()
    await group.leader()
    group.wires.trouble = Random(5)
    watching = [asyncio.create_task(each.run()) for each in watchers]
    clients = [
        asyncio.create_task(client(group, recorder, f"c{seed}", seed)) for seed in range(CLIENTS)
    ]
    await eventually(lambda: len(recorder.operations()) > CLIENTS * CALLS // 4)
    leader = await group.leader()
    await group.crash(leader.spec.seat)
    await group.sit(leader.spec.seat)
    await asyncio.gather(*clients)
    group.wires.trouble = None
    last = (await watchers[0].caller.watch(GROUP, (), None)).revision
    await eventually(lambda: all(each.upto >= last for each in watchers))
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    for each in watchers:
        await each.caller.close()


def test_what_was_told_is_what_the_logs_say(tmp_path: Path) -> None:
    recorder = Recorder()
    watchers: list[Watcher] = []

    async def run() -> None:
        group = Group(tmp_path, settings=replace(QUICK, log_keep_entries=10_000))
        try:
            watchers.extend(Watcher(group, seed) for seed in range(WATCHERS))
            await story(group, recorder, watchers)
        finally:
            await group.close()

    asyncio.run(run())
    operations = recorder.operations()
    assert len(operations) > CLIENTS * CALLS * 3 // 4
    verdict = linearizable.check(operations, MODELS["register"])
    assert verdict.legal, str(verdict)

    logs = [read_log(path.parent) for path in tmp_path.glob("*/*/*/log")]
    assert [log.base for log in logs] == [0, 0, 0]
    entries = agreed(logs)
    commands, asked = commands_in(entries), asked_of("register")
    assert compare(operations, commands, asked) == []
    found = placed(operations, commands, asked, group=GROUP)
    replayed = replay.check(found, MODELS["register"], reads=("get",))
    assert replayed.legal, str(replayed)
    assert replayed.left == []

    chains = [chain for each in watchers for chain in each.chains]
    committed = changes_in(entries, "metadata", KV)
    assert watch.check(chains, committed) == []
    assert sum(len(getattr(x, "events", ())) for chain in chains for x in chain) > CALLS

    # And each of the witnesses would have noticed.
    put = next(each for each in commands if each.tag == "metadata.kv.put")
    assert compare(operations, [each for each in commands if each is not put], asked)
    write = next(each for each in operations if each.kind == "put")
    assert compare([each for each in operations if each is not write], commands, asked)
    assert watch.check(chains, committed[1:])
