"""Bugs of the controller: one that is not fenced, and plans that lose a replica."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

REPAIR: Final = "actors.planners.repair"

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
        "                record.last_error = error.detail\n",
    ),
    Mutant(
        "what-else-is-under-way-outlives-the-fence",
        "law 20",
        "actors.controller",
        "            task.cancel()\n",
        "            task.done()\n",
    ),
    Mutant(
        "the-fence-of-a-row-ends-the-controller",
        "law 20",
        "actors.controller",
        "isinstance(error, Fenced) and is_of_controller(error)",
        "isinstance(error, Fenced)",
    ),
    Mutant(
        "a-duty-has-no-deadline",
        "law 13",
        "actors.controller",
        "        deadline = asyncio.timeout(limit)\n",
        "        deadline = asyncio.timeout(None)\n",
    ),
    Mutant(
        "a-duty-runs-twice-at-a-time",
        "design 5.7",
        "actors.controller",
        "        if self.fenced or record.task is not None:\n",
        "        if self.fenced:\n",
    ),
    Mutant(
        "a-new-controller-does-what-is-paused",
        "design 5.7",
        "actors.controller",
        "        heard = self._orders.read and",
        "        heard =",
    ),
    Mutant(
        "a-pause-has-no-end",
        "design 5.8",
        "state_machines.metadata.duty",
        "    return 0 < pause.until_ms <= now_ms\n",
        "    return pause.until_ms < 0\n",
    ),
    Mutant(
        "what-is-set-while-it-runs-is-not-heeded",
        "design 5.7",
        "actors.duties.duty",
        "        if found is not None and fits(declared, found):\n",
        "        if found is None and fits(declared, found):\n",
    ),
    Mutant(
        "a-lost-broker-wakes-no-other-duty",
        "design 5.7",
        "actors.duties.liveness",
        "                context.wake(duty)\n",
        "                continue\n",
    ),
    Mutant(
        "a-lease-of-a-group-that-was-away-gets-no-grace",
        "design 5.8",
        "actors.duties.leases",
        "            self._back_ms[group] = context.clock.now_ms()\n",
        "            self._back_ms[group] = 1\n",
    ),
    Mutant(
        "a-tenant-is-forgotten-by-the-retention-of-the-others",
        "design 5.8",
        "actors.duties.offsets",
        "        return max(retention_ms, *(each or 0 for each in wanted), 0)\n",
        "        return retention_ms\n",
    ),
    Mutant(
        "a-purged-segment-leaves-its-places",
        "law 8",
        "state_machines.metadata.segments",
        "    remove_segment(db, segment)\n",
        "    db.delete(SEGMENTS, segment.tenant, segment.shard, segment.sequence)\n",
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
        REPAIR,
        "    lost = sorted(voters - holds) if complete else []\n",
        "    lost = sorted(voters - holds)\n",
    ),
    Mutant(
        "a-replica-is-added-while-a-change-is-under-way",
        "Raft 6",
        REPAIR,
        '    if leader["outgoing"]:\n',
        '    if leader["outgoing"] is None:\n',
    ),
    Mutant(
        "the-controller-promotes-a-learner-that-is-behind",
        "law 1",
        REPAIR,
        'if complete and leader["last_index"] - match <= CAUGHT_UP_ENTRIES:',
        "if complete:",
    ),
    Mutant(
        "the-controller-believes-an-older-leader",
        "law 20",
        "actors.status",
        'return max(leaders, key=lambda each: int(each["term"])) if leaders else None',
        "return leaders[0] if leaders else None",
    ),
    Mutant(
        "a-call-of-the-controller-has-no-deadline",
        "law 13",
        "actors.duties.duty",
        "return await asyncio.wait_for(self.calls.call(seat, method, *args), CALL_SECONDS)",
        "return await self.calls.call(seat, method, *args)",
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
    Mutant(
        "a-tenant-goes-while-groups-are-not-there-yet",
        "law 11",
        "actors.duties.tenants",
        "await context.every_group() if marked else ()",
        "context.groups.groups()",
    ),
    Mutant(
        "a-vacant-seat-waits-for-a-loss",
        "law 1",
        "actors.planners.repair",
        "short = bool(lost) or len(voters) < wanted",
        "short = bool(lost)",
    ),
    Mutant(
        "a-group-is-founded-beside-its-data",
        "law 1",
        "actors.directories",
        "        if each.replica not in own\n",
        "        if False\n",
    ),
    Mutant(
        "silence-counts-that-nobody-could-hear",
        "design 5.7",
        "state_machines.metadata.node",
        "max(node.heartbeat_ms, since_ms)",
        "node.heartbeat_ms",
    ),
)
