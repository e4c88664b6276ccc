"""Bugs of brokers, and of the segments that they keep."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

FLEET: Final = (
    Mutant(
        "a-shard-is-looked-through-for-each-segment-that-goes",
        "design 5.10",
        "state_machines.metadata.segment",
        "in dict.fromkeys([(item.tenant, item.shard) for item in self.items]):",
        "in [(item.tenant, item.shard) for item in self.items]:",
    ),
    Mutant(
        "a-shard-that-was-swept-empty-keeps-its-name",
        "design 5.10",
        "state_machines.metadata.shard",
        "if not told and not db.has_any(SEGMENTS, shard.tenant, shard.name):",
        "if False:",
    ),
    Mutant(
        "a-duty-takes-what-was-cut-off-for-not-there",
        "design 5.7",
        "actors.duties.duty",
        "if len(rows) > ROWS_MAX:",
        "if False:",
    ),
    Mutant(
        "a-leader-that-registered-again-leads-on",
        "design 5.7",
        "actors.planners.engine",
        'next(iter(others or alive), "")',
        'next(iter(alive), "")',
    ),
    Mutant(
        "a-leader-that-registered-again-stays-in-sync",
        "design 5.7",
        "state_machines.metadata.leadership",
        "[each for each in alive if each != left_out]",
        "alive",
    ),
    Mutant(
        "a-leader-that-is-offline-leaves-others-out",
        "design 5.7",
        "state_machines.metadata.leadership",
        "        if not node.online:\n            raise Conflict",
        "        if False:\n            raise Conflict",
    ),
    Mutant(
        "a-group-is-kept-by-who-does-not-hold-it",
        "design 5.8",
        "state_machines.offset.group",
        "if self.generation != group.generation:",
        "if self.generation > group.generation:",
    ),
    Mutant(
        "loads-are-those-of-before",
        "design 5.10",
        "state_machines.metadata.segments",
        "    db.memo.pop(FLEET, None)\n",
        "    pass\n",
    ),
    Mutant(
        "too-few-copies-are-enough",
        "design 5.10",
        "state_machines.metadata.segments",
        "(segment.copies or len(segment.replicas))",
        "len(segment.replicas)",
    ),
    Mutant(
        "a-sealed-segment-is-under-its-min-isr",
        "design 5.10",
        "state_machines.metadata.segments",
        "if segment.status == WRITE and in_sync < segment.min_isr:",
        "if in_sync < segment.min_isr:",
    ),
    Mutant(
        "a-replica-is-forced-though-one-in-sync-is-online",
        "design 5.7",
        "state_machines.metadata.leadership",
        "        if alive and self.leader not in able:\n",
        "        if not able:\n",
    ),
    Mutant(
        "nobody-is-told-what-ails-when-nobody-can-be-elected",
        "design 5.7",
        "actors.duties.failover",
        "            await self._look(context)  # the more so if nobody can be elected\n",
        "",
    ),
    Mutant(
        "engines-that-are-away-are-no-engines",
        "design 5.7",
        "state_machines.metadata.node",
        "    return [each for each in nodes if role in each.roles] or nodes\n",
        "    return [each for each in nodes if role in each.roles and each.online] or nodes\n",
    ),
    Mutant(
        "connectors-run-wherever-there-is-room",
        "design 5.7",
        "actors.duties.connectors",
        "context.live_nodes(CONNECTORS)",
        "context.live_nodes()",
    ),
    Mutant(
        "a-broker-that-is-back-loses-what-its-clients-open",
        "A35",
        "actors.duties.sessions",
        "            if page.sessions:\n",
        "            if False:\n",
    ),
    Mutant(
        "a-broker-that-is-only-away-is-said-not-to-be-registered",
        "design 5.16",
        "actors.duties.failover",
        "        repr(each) if each in registered else f",
        "        f",
    ),
    Mutant(
        "a-broker-that-is-back-loses-what-its-clients-join",
        "A18",
        "actors.duties.share_groups",
        "        if not await _gone(context, [broker]):\n            return\n",
        "",
    ),
)
