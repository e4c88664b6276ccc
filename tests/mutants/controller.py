"""Bugs of the controller: one that is not fenced, and plans that lose a replica."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

DUTIES: Final = "actors.duties"

CONTROLLER: Final = (
    Mutant(
        "an-older-controller-is-not-fenced",
        "law 20",
        "state_machines.fence",
        "    if epoch < seen:\n",
        "    if epoch < 0:\n",
    ),
    Mutant(
        "the-fence-does-not-rise",
        "law 20",
        "state_machines.fence",
        "    if epoch > seen:\n",
        "    if epoch > seen and row is None:\n",
    ),
    Mutant(
        "a-fenced-controller-goes-on",
        "law 20",
        "actors.controller",
        "                self.fenced = error.detail\n",
        "                duty.last_error = error.detail\n",
    ),
    Mutant(
        "an-older-slot-map-replaces-a-newer-one",
        "design 5.15",
        "state_machines.slots",
        "        if old is not None and old.version > self.version:\n",
        "        if old is not None and old.version < 0:\n",
    ),
    Mutant(
        "a-silent-replica-is-taken-for-lost",
        "law 1",
        DUTIES,
        "    lost = sorted(voters - holds) if complete else []\n",
        "    lost = sorted(voters - holds)\n",
    ),
    Mutant(
        "a-replica-is-added-while-a-change-is-under-way",
        "Raft 6",
        DUTIES,
        '    if leader["outgoing"]:\n',
        '    if leader["outgoing"] is None:\n',
    ),
    Mutant(
        "the-controller-promotes-a-learner-that-is-behind",
        "law 1",
        DUTIES,
        'if complete and leader["last_index"] - match <= CAUGHT_UP_ENTRIES:',
        "if complete:",
    ),
    Mutant(
        "the-controller-believes-an-older-leader",
        "law 20",
        "actors.controller",
        'return max(leaders, key=lambda each: int(each["term"])) if leaders else None',
        "return leaders[0] if leaders else None",
    ),
    Mutant(
        "a-call-of-the-controller-has-no-deadline",
        "law 13",
        "actors.controller",
        "return await asyncio.wait_for(self._calls.call(seat, method, *args), CALL_SECONDS)",
        "return await self._calls.call(seat, method, *args)",
    ),
    Mutant(
        "a-broker-that-comes-back-gets-an-old-epoch",
        "design 1",
        "state_machines.metadata.node",
        "        last = db.get(EPOCHS, self.node_id)\n",
        "        last = db.get(NODES, self.node_id)\n",
    ),
    Mutant(
        "an-older-life-of-a-broker-is-not-fenced",
        "design 1",
        "state_machines.metadata.node",
        "    if epoch != node.epoch:\n",
        "    if epoch > node.epoch:\n",
    ),
)
