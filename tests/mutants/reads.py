"""Bugs of reads and watches: answers older than the question allows."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "state_machines.raft.core"
PENDING: Final = "actors.pending"
WATCHES: Final = "actors.watches"
STREAM: Final = "actors.cache_stream"
NODE_CACHE: Final = "actors.node_cache"

READS: Final = (
    Mutant(
        "a-read-round-has-the-number-of-an-earlier-one",
        "law 10",
        CORE,
        "            self._rounds += 1\n",
        "            self._rounds = 1\n",
    ),
    Mutant(
        "a-leader-is-vouched-for-before-it-committed-in-its-term",
        "law 10",
        "actors.vouching",
        " or applied_term != core.term:",
        ":",
    ),
    Mutant(
        "two-vouch-where-they-are-no-majority",
        "law 10",
        "actors.vouching",
        "if not others or not all(has_quorum(configuration, (core.id, each)) for each in others):",
        "if not others:",
    ),
    Mutant(
        "a-late-answer-counts-for-a-younger-round",
        "law 10",
        "state_machines.raft.reads",
        "if self.round is None or number != self.round.number:",
        "if self.round is None:",
    ),
    Mutant(
        "a-read-joins-the-round-under-way",
        "law 10",
        CORE,
        "reads.waiting.append(context)",
        "(reads.round.contexts if reads.round else reads.waiting).append(context)",
    ),
    Mutant(
        "reads-before-the-first-commit-of-the-term",
        "law 10",
        CORE,
        "if reads.round is None and reads.waiting and self._log.commit >= leader.noop_index:",
        "if reads.round is None and reads.waiting:",
    ),
    Mutant(
        "a-leader-answers-reads-without-asking-anybody",
        "law 10",
        CORE,
        "if reads.round is not None and has_quorum(configuration, reads.round.acks):",
        "if reads.round is not None:",
    ),
    Mutant(
        "a-read-round-waits-for-one-that-is-silent",
        "design 3",
        CORE,
        "            self._ask_the_silent(leader)\n\n    def _hears_quorum",
        "\n    def _hears_quorum",
    ),
    Mutant(
        "a-read-round-waits-for-one-whose-connection-broke",
        "design 3",
        CORE,
        "                leader.reads.broken(peer)\n                self._ask_the_silent(leader)\n",
        "",
    ),
    Mutant(
        "a-read-round-relies-on-one-that-left",
        "law 10",
        "state_machines.raft.reads",
        "[peer for peer in self.quick if configuration.has_vote(peer)]",
        "[*self.quick]",
    ),
    Mutant(
        "a-read-does-not-wait-until-its-index-is-applied",
        "law 10",
        PENDING,
        "            if index <= applied:\n",
        "            if index >= 0:\n",
    ),
    Mutant(
        "an-answer-made-ahead-counts-however-late-its-round-ends",
        "law 10",
        PENDING,
        "if not self.ahead or index > self.ahead_at:",
        "if not self.ahead:",
    ),
    Mutant(
        "a-long-read-does-not-wait-for-its-turn",
        "law 10",
        "actors.answers",
        "            self.storage.hand(partial(_reading, self.state), job, lost)\n",
        "            job(_reading(self.state))\n",
    ),
    Mutant(
        "many-single-rows-are-answered-in-one-job",
        "law 15",
        "actors.answers",
        "        if not self._short and self._rows + rows <= ROWS_MAX:\n",
        "        if not self._short:\n",
    ),
    Mutant(
        "a-piece-of-single-rows-takes-all-that-wait",
        "law 15",
        "actors.answers",
        "            while self._short and rows < ROWS_MAX:\n",
        "            while self._short:\n",
    ),
    Mutant(
        "the-next-piece-does-not-wait-for-the-one-before",
        "law 15",
        "actors.answers",
        "        while self._short and not self._rows:\n",
        "        while self._short:\n",
    ),
    Mutant(
        "single-rows-that-wait-cost-their-tenant-nothing",
        "design 6",
        "actors.answers",
        "            read.charge = Charge.of(self._asked(read), size)\n",
        "            read.charge = Charge(False, rows, size, {})\n",
    ),
    Mutant(
        "lists-are-columns-for-who-did-not-ask-for-them",
        "api.proto",
        "state_machines.machine",
        "pack = columnar.pack if columns else packing.pack\n",
        "pack = columnar.pack\n",
    ),
    Mutant(
        "columns-of-different-lengths-are-taken-for-rows",
        "law 18",
        "state_machines.columnar",
        "        if type(column) is not list or len(column) != count:\n",
        "        if type(column) is not list:\n",
    ),
    Mutant(
        "a-column-that-is-missing-is-made-up",
        "law 18",
        "state_machines.columnar",
        "            if default is dataclasses.MISSING:\n",
        "            if default is NoneType:\n",
    ),
    Mutant(
        "columns-are-not-looked-at",
        "law 18",
        "state_machines.columnar",
        "            check(column, scalars, name)\n",
        "            pass\n",
    ),
    Mutant(
        "a-page-has-names-that-do-not-begin-as-asked",
        "design 3",
        "state_machines.tables",
        "        if not all(fits):\n",
        "        if not any(fits):\n",
    ),
    Mutant(
        "single-rows-that-wait-are-told-nothing-when-the-replica-stops",
        "law 8",
        "actors.answers",
        "for read in (*self._short, *self._walk_of, *self._long)]",
        "for read in (*self._walk_of, *self._long)]",
    ),
    Mutant(
        "single-rows-that-waited-are-counted-as-waiting-for-ever",
        "design 6",
        "actors.answers",
        "                self.admission.leave(read.charge, self.clock.monotonic())\n",
        "",
    ),
    Mutant(
        "offsets-of-a-group-that-is-being-deleted-are-told-in-runs",
        "design 3",
        "state_machines.offset.get",
        "[:_TOLD] if there[whose] else None)\n",
        "[:_TOLD])\n",
    ),
    Mutant(
        "a-stale-read-does-not-wait-for-its-revision",
        "design 3",
        "actors.replica",
        "self.core.commit if read.partners else request.min_revision)",
        "self.core.commit if read.partners else 0)",
    ),
    Mutant(
        "a-follower-answers-linearizable-reads",
        "law 10",
        "actors.replica",
        "            if not request.stale:\n                self._must_lead()\n"
        "                read.partners = self._vouching.partners(request, self.applied.term)\n"
        "            if request.stale or read.partners:\n",
        "            if self.leads and not request.stale:\n"
        "                read.partners = self._vouching.partners(request, self.applied.term)\n"
        "            if request.stale or read.partners or not self.leads:\n",
    ),
    Mutant(
        "a-read-is-answered-from-what-is-flushed",
        "law 10",
        "storage.state",
        "            found: bytes | None = layer.rows.get(encoded, ABSENT)\n",
        "            found: bytes | None = ABSENT\n",
    ),
    Mutant(
        "a-watch-loses-the-change-after-a-full-page",
        "design 5.18",
        WATCHES,
        "                return found, entry.revision - 1",
        "                return found, entry.revision",
    ),
    Mutant(
        "a-watch-gets-the-last-revision-again",
        "design 5.18",
        WATCHES,
        "bisect_right(self._entries, revision, lo",
        "bisect_right(self._entries, revision - 1, lo",
    ),
    Mutant(
        "a-compacted-revision-is-answered-by-silence",
        "design 5.18",
        WATCHES,
        "        if revision < self.floor:",
        "        if revision < 0:",
    ),
    Mutant(
        "a-snapshot-leaves-a-gap-in-the-history-unsaid",
        "design 5.18",
        WATCHES,
        "        self.floor = self.revision = floor\n        for future",
        "        self.revision = floor\n        for future",
    ),
    Mutant(
        "a-watch-hears-of-a-revision-before-its-changes",
        "design 5.18",
        "actors.replica",
        "            begun, outcomes, self.applied = result\n",
        "            begun, outcomes, _ = result\n"
        "            self.applied = self.stores.state.applied\n",
    ),
    Mutant(
        "history-forgets-silently",
        "design 5.18",
        WATCHES,
        "            self.floor = gone.revision\n",
        "",
    ),
    Mutant(
        "a-waiter-is-refused-what-passed-while-it-waited",
        "design 5.18",
        WATCHES,
        "            position = max(position, await self._news(places, mark, left))",
        "            await self._news(places, mark, left)",
    ),
    Mutant(
        "a-cache-forgets-what-it-hears-while-it-reads",
        "design 5.18",
        STREAM,
        "        pending, self._pending = self._pending or [], None",
        "        pending, self._pending = [], None",
    ),
    Mutant(
        "a-cache-answers-before-its-pages-agree",
        "design 5.18",
        STREAM,
        "                await self.reached(upto)\n",
        "",
    ),
    Mutant(
        "a-cache-goes-on-over-what-was-compacted",
        "design 5.18",
        STREAM,
        "                self.reloads += 1\n                self._begun.clear()",
        "                self.reloads += 1\n"
        "                self.history.restart((await self._source.poll(\n"
        "                    self.group, self._wanted(), None)).revision)",
    ),
    Mutant(
        "a-listener-is-not-told-that-its-part-went",
        "design 5.18",
        NODE_CACHE,
        "        if found.gone:  # the stream may have gone on without it\n",
        "        if not found:\n",
    ),
    Mutant(
        "a-closed-cache-begins-anew",
        "liveness",
        NODE_CACHE,
        "        self._closed = True\n",
        "",
    ),
    Mutant(
        "reads-after-a-snapshot-are-of-before",
        "law 10",
        "actors.replica",
        "                self._machine.forget()\n",
        "                pass\n",
    ),
    Mutant(
        "a-first-answer-needs-no-vouch",
        "law 10",
        "actors.query_lane",
        "if made.vouch is not None and not self._partner.has_vouched(reply, made.vouch):",
        "if reply is None:",
    ),
    Mutant(
        "what-goes-to-every-group-leaves-out-those-nobody-told-of",
        "design 5.15",
        "actors.caller",
        "        if slots.goes_everywhere(operation):\n",
        "        if False:\n",
    ),
    Mutant(
        "four-reads-that-wait-for-a-revision-keep-those-of-others-waiting",
        "design 5.3",
        "actors.stale_lanes",
        "    in_flight_max = AWAITING_MAX\n",
        "",
    ),
    Mutant(
        "a-read-that-nobody-waits-for-goes-on",
        "design 5.3",
        "actors.stale_lanes",
        "            if not _wanted(call):\n",
        "            if call.batch[0].gone and _wanted(call):\n",
    ),
    Mutant(
        "a-shared-read-is-from-the-first-of-their-revisions",
        "design 5.3",
        "actors.stale_lanes",
        "        return max([each.min_revision for each in call.batch])\n",
        "        return call.batch[0].min_revision\n",
    ),
    Mutant(
        "who-keeps-rows-waits-for-the-cache-of-the-node",
        "design 5.18",
        "metaray.cached",
        "            if self._finding is not None and self._own is None:\n",
        "            if self._finding is not None:\n",
    ),
    Mutant(
        "a-search-for-a-cache-outlives-its-client",
        "liveness",
        "metaray.cached",
        "            self._finding.cancel()\n            await asyncio.wait((self._finding,))\n",
        "            pass\n",
    ),
)
