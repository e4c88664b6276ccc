"""A table knows the slot of its rows: the one that the commands which write them are routed by.

A compare and a lease name a row and no command, so they are routed by what its table says. If the
two differed, they would look for the row in a group that does not have it.
"""

from __future__ import annotations

from random import Random

import pytest

from state_machines import op, slots
from state_machines.machine import Machine
from state_machines.raft.messages import Entry
from state_machines.tables import TABLES
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.machine.operations import KINDS
from tests.machine.plausible import history

SEEDS = range(4)


REACHING = {"mqtt.session.open": "mqtt.share_", "mqtt.session.delete": "mqtt.share_"}
"""Commands that reach rows of other slots: those that their own group has."""


def strays(kind: str, seed: int) -> set[tuple[str, str]]:
    """Tables, and commands that write rows of them to other slots than the tables say."""
    machine = Machine(kind, f"{kind}-0", MemoryKeyValue())
    found: set[tuple[str, str]] = set()
    index = client = 0
    for batch in history(kind, Random(seed), 120):
        for command in [each for proposal in batch.proposals for each in proposal.commands]:
            index += 1
            alone = api.Proposal(client=client, sequence=index, acked=index, commands=[command])
            one = api.Batch(now_ms=batch.now_ms, proposals=[alone])
            (done,) = machine.apply(Entry(1, index, one.SerializeToString()))
            client = client or api.Reply.FromString(done.reply).client
            routed = slots.slot_keys(op.decode(op.COMMANDS, command.tag, command.body))
            for name, key, _ in machine.take_changes():
                own = TABLES[name].slot_key(key) if TABLES[name].kind else None
                known = command.tag in REACHING and name.startswith(REACHING[command.tag])
                if routed and own is not None and own not in routed and not known:
                    found.add((name, command.tag))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_lies_in_the_slot_of_the_command_that_writes_it(kind: str) -> None:
    assert set().union(*(strays(kind, seed) for seed in SEEDS)) == set()
