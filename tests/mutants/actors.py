"""Bugs of the replica's shell: callers left waiting or told wrongly, and a loop that waits."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

REPLICA: Final = "actors.replica"
PENDING: Final = "actors.pending"
QUEUE_LANE: Final = "actors.queue_lane"
TRANSPORT: Final = "actors.transport"

ACTORS: Final = (
    Mutant(
        "a-stale-reader-stays-with-one-replica",
        "design 5.18",
        "actors.spread",
        "        if now >= self._until:\n",
        "        if not self._until:\n",
    ),
    Mutant(
        "a-stale-reader-asks-again-who-gave-no-answer",
        "design 5.11",
        "actors.attempts",
        "        self._spread.leave(failed)\n",
        "",
    ),
    Mutant(
        "calls-that-ended-count-as-under-way",
        "design 5.11",
        "actors.spread",
        "        self._under_way[seat] -= 1\n",
        "        self._under_way[seat] -= 0\n",
    ),
    Mutant(
        "writes-wait-on-when-the-lead-is-lost",
        "design 3",
        REPLICA,
        "            self.writes.fail(error)\n            self.reads.fail(error, safe_too=False)",
        "            self.reads.fail(error, safe_too=False)",
    ),
    Mutant(
        "reads-wait-on-when-the-lead-is-lost",
        "design 3",
        REPLICA,
        "            self.reads.fail(error, safe_too=False)",
        "            pass",
    ),
    Mutant(
        "long-reads-wait-on-when-the-replica-stops",
        "law 8",
        REPLICA,
        "        self.answers.fail(error)\n",
        "",
    ),
    Mutant(
        "rows-are-walked-over-for-who-gave-up",
        "design 5.11",
        "actors.answers",
        "gone = read.reply.done()",
        "gone = False",
    ),
    Mutant(
        "long-reads-are-answered-as-they-came",
        "design 6",
        "actors.answers",
        "            read.tenant = self._tenant_of(read)\n",
        "",
    ),
    Mutant(
        "another-leaders-entry-answers-a-write",
        "design 5.11",
        PENDING,
        "        if slot.term != term:\n",
        "        if len(replies) != len(slot.writes):\n",
    ),
    Mutant(
        "who-does-not-lead-says-ok",
        "design 5.11",
        PENDING,
        "reply = api.Reply(code=error.code, detail=error.detail)",
        "code = api.OK if isinstance(error, NotLeader) else error.code\n"
        "    reply = api.Reply(code=code, detail=error.detail)",
    ),
    Mutant(
        "a-write-is-answered-when-it-is-saved-here",
        "law 4",
        PENDING,
        "                slot.saved_at = now\n",
        "                slot.saved_at = now\n"
        "                for write in slot.writes:\n"
        "                    if not write.reply.done():\n"
        "                        write.reply.set_result(api.Reply().SerializeToString())\n",
    ),
    Mutant(
        "a-caller-has-no-deadline",
        "law 13",
        "actors.deadlines",
        "                reply.set_result(said.SerializeToString())\n",
        "                said.Clear()\n",
    ),
    Mutant(
        "a-call-to-a-peer-has-no-deadline",
        "law 13",
        TRANSPORT,
        "            answer = await asyncio.wait_for(\n"
        "                self._calls.deliver(seat, self._encoder.envelope(batch)), CALL_SECONDS\n"
        "            )\n",
        "            answer = await self._calls.deliver(seat, self._encoder.envelope(batch))\n",
    ),
    Mutant(
        "messages-for-a-frozen-peer-have-no-limit",
        "design 6",
        TRANSPORT,
        "            while len(lane.waiting) > BUFFER_MAX:\n",
        "            while len(lane.waiting) < 0:\n",
    ),
    Mutant(
        "waiting-proposals-have-no-limit",
        "design 6",
        "actors.admission",
        "        if rest.calls >= PROPOSALS_MAX:\n",
        "        if rest.calls < 0:\n",
    ),
    Mutant(
        "who-comes-with-many-is-served-first",
        "design 6",
        "actors.fair_queue",
        "            ends[tenant] = begin + operations + size // OPERATION_BYTES\n",
        "            ends[tenant] = begin\n",
    ),
    Mutant(
        "what-a-tenant-did-not-use-is-saved-up",
        "design 6",
        "actors.fair_queue",
        "        ends, begin, tenants = self._ends, self._now, each.charge.tenants\n",
        "        ends, begin, tenants = self._ends, 0, each.charge.tenants\n",
    ),
    Mutant(
        "an-entry-has-all-operations-that-wait",
        "design 6",
        PENDING,
        "                and operations < turn\n",
        "",
    ),
    Mutant(
        "a-client-sends-first-who-came-first",
        "design 6",
        "actors.crowd",
        "                lines[tenant] = line\n",
        "                lines[tenant] = line\n                lines.move_to_end(tenant, False)\n",
    ),
    Mutant(
        "a-client-lets-everybody-wait",
        "design 6",
        QUEUE_LANE,
        "if crowded and not self._crowd.admits(tenant, WAITING_MAX - len(self._waiting)):",
        "if crowded and self._closed:",
    ),
    Mutant(
        "one-tenant-fills-a-client",
        "design 6",
        "actors.crowd",
        "        return len(line) < ROOM_TIMES * (limit - self._size)\n",
        "        return line is not None and self._size < limit\n",
    ),
    Mutant(
        "all-that-wait-are-looked-at-for-each-deadline",
        "design 6",
        QUEUE_LANE,
        "        self._rests_until = now + LOOK_SECONDS * max(1.0, count / LOOKED_AT)\n",
        "        self._rests_until = now if count else 0.0\n",
    ),
    Mutant(
        "who-waits-in-a-crowd-has-no-deadline",
        "design 6",
        QUEUE_LANE,
        "        waits = itertools.chain(self._waiting, self._crowd)\n",
        "        waits = iter(self._waiting)\n",
    ),
    Mutant(
        "who-was-told-that-it-is-late-keeps-its-place",
        "design 6",
        QUEUE_LANE,
        "        self._crowd.let_go()\n",
        "        pass\n",
    ),
    Mutant(
        "few-that-are-heavy-are-no-crowd",
        "design 6",
        QUEUE_LANE,
        "            self._crowd.put_back([*rest, *self._waiting])\n"
        "            self._waiting.clear()\n",
        "            self._waiting.extendleft(reversed(rest))\n",
    ),
    Mutant(
        "all-that-are-late-are-told-at-once",
        "design 6",
        QUEUE_LANE,
        "                elif told < TOLD_MAX:\n",
        "                elif told >= 0:\n",
    ),
    Mutant(
        "who-is-cancelled-when-time-is-up-goes-on",
        "law 13",
        "actors.within",
        "        if late and task.cancelling() == asked:\n",
        "        if late:\n",
    ),
    Mutant(
        "what-a-snapshot-brings-is-not-told-to-who-waits-for-it",
        "law 10",
        "actors.replica",
        "                self._serve_reads()\n            self._steps",
        "            self._steps",
    ),
    Mutant(
        "those-who-gave-up-fill-a-call",
        "design 6",
        QUEUE_LANE,
        "            if head.result.done():  # its caller has given up\n",
        "            count -= head.result.done()\n            if head.result.done():\n",
    ),
    Mutant(
        "waiting-reads-have-no-limit",
        "design 6",
        PENDING,
        "        if len(self.waiting) + self._asked >= READS_MAX:\n",
        "        if len(self.waiting) + self._asked < 0:\n",
    ),
    Mutant(
        "the-loop-waits-for-the-disk",
        "law 15",
        "actors.storage_thread",
        "waited.acquire(timeout=PATIENCE_SECONDS)",
        "waited.acquire()",
    ),
    Mutant(
        "saves-wait-for-a-flush",
        "law 15",
        "actors.storage_thread",
        "self._threads[on][0].put(made)",
        "self._threads[On.STORAGE][0].put(made)",
    ),
    Mutant(
        "heartbeats-queue-behind-a-long-append",
        "law 15",
        TRANSPORT,
        "            if type(batch[0]) is Heartbeat and len(batch) == 1 and lane.calls:\n",
        "            if type(batch[0]) is Heartbeat and len(batch) == 0 and lane.calls:\n",
    ),
    Mutant(
        "an-envelope-of-another-cluster-is-taken",
        "law 12",
        TRANSPORT,
        "        if envelope.cluster != self._cluster:\n",
        "        if not envelope.cluster:\n",
    ),
    Mutant(
        "an-envelope-of-another-group-is-taken",
        "law 12",
        TRANSPORT,
        "        if envelope.group != self._group:\n",
        "        if not envelope.group:\n",
    ),
    Mutant(
        "a-removed-replica-goes-on-speaking",
        "law 1",
        REPLICA,
        '            self._stop("removed from its group")\n',
        "",
    ),
    Mutant(
        "a-stopped-replica-takes-turns",
        "law 8",
        REPLICA,
        "        self._turn_scheduled = False\n        if self.stopped_because:\n",
        "        self._turn_scheduled = False\n        if not self.seat:\n",
    ),
    Mutant(
        "a-replica-whose-apply-failed-serves-on",
        "law 8",
        REPLICA,
        '        self._stop(f"{type(error).__name__}: {error}")\n',
        "",
    ),
    Mutant(
        "a-watch-over-the-leader-that-has-ended-is-not-renewed",
        "liveness",
        REPLICA,
        "        self.transport.attend(0 if self.leads else self.core.leader)\n"
        "        self.transport.meet(",
        "        self.transport.meet(",
    ),
    Mutant(
        "a-call-waits-for-an-answer-that-goes-by-the-link",
        "liveness",
        "actors.transport",
        "if sender == 0 or self._linked(sender):",
        "if sender == 0:",
    ),
    Mutant(
        "who-comes-back-waits-for-the-next-attempt-at-a-link",
        "liveness",
        "actors.transport",
        "            self._calls.expect(seat)\n",
        "            self._calls.linked(seat)\n",
    ),
    Mutant(
        "a-long-poll-counts-as-any-other-call",
        "liveness",
        "actors.direct.listener",
        "                and len(self._under_way) - len(self._polls) < CALLS_MAX\n",
        "                and len(self._under_way) < CALLS_MAX\n",
    ),
    Mutant(
        "a-caller-is-held-though-there-is-a-leader",
        "liveness",
        "actors.leadership",
        "for reply in tuple(self._held) if leader else ():",
        "for reply in ():",
    ),
    Mutant(
        "a-caller-is-held-for-all-the-time-it-has",
        "law 13",
        "actors.leadership",
        "min(HELD_SECONDS, timeout_ms / 2_000)",
        "timeout_ms / 1_000",
    ),
    Mutant(
        "a-replica-starts-without-assertions",
        "law 8",
        REPLICA,
        "        if not __debug__:",
        "        if __debug__ is None:",
    ),
)
