"""What becomes of those who wait: nobody is answered too soon, by another's entry, or never."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from actors.pending import Slot, Writes
from state_machines.machine import Applied
from state_machines.raft.messages import Entry
from state_machines.wire import api_pb2 as api
from tests.actors.fake_groups import VACANT, Fakes, leading, made, status
from tests.actors.test_pending import code, write
from tests.actors.virtual_time import in_virtual_time


@in_virtual_time
async def test_another_leaders_entry_with_as_many_proposals_answers_nobody() -> None:
    writes, waiting = Writes("s", 1.0, Random(1)), write()
    writes.proposed(7, Slot(term=1, writes=[waiting], proposed_at=0.0))
    foreign = Applied(client=9, sequence=9, reply=api.Reply(revision=7).SerializeToString())
    writes.applied(7, 2, [foreign], now=0.0)
    assert code(waiting.reply) == api.NOT_LEADER


@in_virtual_time
async def test_what_is_saved_or_committed_is_not_answered_yet() -> None:
    writes, waiting = Writes("s", 1.0, Random(1)), write()
    writes.proposed(7, Slot(term=1, writes=[waiting], proposed_at=0.0))
    entries = [Entry(1, 7, b"x")]
    writes.saved(entries, now=0.0)
    assert not waiting.reply.done(), "others may not have it, and it may be lost"
    writes.committed(entries, now=0.0)
    assert not waiting.reply.done(), "what it comes to shows when it is applied"
    done = Applied(client=1, sequence=1, reply=api.Reply(revision=7).SerializeToString())
    writes.applied(7, 1, [done], now=0.0)
    assert code(waiting.reply) == api.OK


@dataclass
class Silent(Fakes):
    """A vacant seat that never answers when it is asked to take a replica."""

    async def call(self, first: Any, *rest: Any, group: str = "") -> Any:
        if rest and rest[0] == "reserve":
            self.acted.append((first, *rest))
            await asyncio.get_running_loop().create_future()
        return await super().call(first, *rest, group=group)


@in_virtual_time
async def test_a_seat_that_never_answers_holds_the_controller_up_for_a_while_only() -> None:
    fakes = Silent(statuses={"g-0/0": leading(), "g-0/1": status(2), "g-0/2": VACANT})
    controller = made(fakes)
    await controller.step()
    assert [each[1] for each in fakes.acted] == ["reserve"]
    await asyncio.sleep(6)
    await controller.step()
    assert "TimeoutError" in controller.status()["duties"]["repair"]["last_error"]
    assert [each[1] for each in fakes.acted] == ["reserve"] * 2, "and it is asked again"
    await controller.context.close()
