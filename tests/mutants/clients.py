"""Bugs of exactly-once: a write applied twice, answered wrongly, or forgotten too soon."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MACHINE: Final = "state_machines.machine"
TABLE: Final = "state_machines.clients"
COMMAND_LANE: Final = "actors.command_lane"
QUEUE_LANE: Final = "actors.queue_lane"
ATTEMPTS: Final = "actors.attempts"
CALLER: Final = "actors.caller"
DOUBT: Final = "actors.doubt"

CLIENTS: Final = (
    Mutant(
        "what-was-answered-before-is-applied-again",
        "law 9",
        MACHINE,
        "            kept = clients.kept_reply(db, client, proposal)\n",
        "            clients.kept_reply(db, client, proposal)\n",
    ),
    Mutant(
        "a-kept-reply-answers-another-body",
        "law 9",
        TABLE,
        'if int.from_bytes(kept[:CRC_BYTES], "big") != checksum(proposal):',
        "if not kept:",
    ),
    Mutant(
        "an-acknowledged-sequence-is-applied-again",
        "law 9",
        TABLE,
        "    if sequence <= row.acked:\n",
        "    if sequence <= 0:\n",
    ),
    Mutant(
        "a-proposal-acknowledges-itself",
        "law 9",
        TABLE,
        "return max(row.acked, min(proposal.acked, proposal.sequence - 1))",
        "return max(row.acked, proposal.acked)",
    ),
    Mutant(
        "the-replies-of-a-client-have-no-limit",
        "law 9",
        TABLE,
        "        if sum([each > acked for each in row.kept]) >= WINDOW_MAX:\n",
        "        if not row.client:\n",
    ),
    Mutant(
        "clients-have-no-limit",
        "law 9",
        TABLE,
        "    while count >= CLIENTS_MAX:\n",
        "    while count < 0:\n",
    ),
    Mutant(
        "the-client-seen-last-is-forgotten",
        "law 9",
        TABLE,
        "_, oldest, _ = next(db.scan(SEEN))",
        "*_, (_, oldest, _) = db.scan(SEEN)",
    ),
    Mutant(
        "a-client-is-forgotten-though-it-speaks",
        "law 9",
        TABLE,
        "    if index - seen >= TOUCH_ENTRIES:\n",
        "    if seen == index:\n",
    ),
    Mutant(
        "clients-age-by-the-clock-of-each-replica",
        "law 7",
        TABLE,
        "        seen = index\n",
        "        db.delete(SEEN, index, client)\n"
        "        seen = __import__('time').time_ns() >> 20\n"
        "        db.put(SEEN, Seen(seen, client))\n",
    ),
    Mutant(
        "a-forgotten-client-is-let-in-as-new",
        "law 9",
        TABLE,
        '        raise SessionExpired(f"client: {client} is not registered in this group, or was '
        'forgotten")\n',
        "        db.put(CLIENTS, Client(client, db.revision, 0, ()))\n"
        "        db.put(SEEN, Seen(db.revision, client))\n"
        "        stored = db.store.get(CLIENTS.name, (client,)) or b''\n",
    ),
    Mutant(
        "a-reply-that-is-acknowledged-stays",
        "law 9",
        TABLE,
        "        else:\n            store.delete(REPLIES, (client, each))\n",
        "",
    ),
    Mutant(
        "a-retry-has-a-new-sequence",
        "law 9",
        COMMAND_LANE,
        "        if self._said is None:\n",
        "        if self._said is not None:\n"
        "            lane._sequence += 1\n"
        "            self._said.sequence = lane._sequence\n"
        "        if self._said is None:\n",
    ),
    Mutant(
        "a-retry-has-another-body",
        "law 9",
        COMMAND_LANE,
        "        if self._said is None:\n",
        "        if self.trace.attempts:\n",
    ),
    Mutant(
        "a-forgotten-outcome-is-sent-again-under-a-new-id",
        "law 9",
        COMMAND_LANE,
        "if reply.code == api.SESSION_EXPIRED and in_logs == 1:",
        "if reply.code == api.SESSION_EXPIRED:",
    ),
    Mutant(
        "what-a-lost-lead-has-in-its-log-is-said-to-be-in-none",
        "law 9",
        "actors.pending",
        "            refuse([write.reply for write in slot.writes], error)\n"
        "        self._slots.clear()\n",
        "            refuse([w.reply for w in slot.writes], error, unproposed=True)\n"
        "        self._slots.clear()\n",
    ),
    Mutant(
        "whatever-a-seat-refuses-came-into-no-log",
        "law 9",
        "actors.attempts",
        "            trace.unproposed += reply.unproposed\n",
        "            trace.unproposed += 1\n",
    ),
    Mutant(
        "answers-that-are-awaited-are-acknowledged",
        "law 9",
        COMMAND_LANE,
        "        oldest = min(self._out, default=made.sequence)\n",
        "        oldest = made.sequence\n",
    ),
    Mutant(
        "one-unanswered-call-has-all-that-come-next-refused",
        "law 9",
        COMMAND_LANE,
        "            self._held = True\n",
        "            self._held = False\n",
    ),
    Mutant(
        "who-was-forgotten-waits-for-what-it-asked-before",
        "law 9",
        COMMAND_LANE,
        "                self._client, self._held = 0, False\n",
        "                self._client = 0\n",
    ),
    Mutant(
        "who-asks-a-control-service-that-hangs-takes-a-thread-each-time",
        "design 3",
        "actors.calls",
        "        asked = self._under_way.get(name)\n",
        "        asked = None\n",
    ),
    Mutant(
        "a-write-is-sent-after-its-deadline",
        "design 3",
        "actors.shared_call",
        "    left = [each for each in batch if not each.result.done()]\n",
        "    left = list(batch)\n",
    ),
    Mutant(
        "commands-of-many-rows-share-a-call-by-their-bytes",
        "design 6",
        "actors.shared_call",
        " if run is None or op.heavy(kind) else _weight_of_run(run)\n",
        " if run is None else _weight_of_run(run)\n",
    ),
    Mutant(
        "one-that-is-not-valid-goes-with-the-others",
        "law 18",
        "actors.shared_call",
        "            same = [each for each in same if _valid(each)]\n",
        "",
    ),
    Mutant(
        "a-later-term-vouches-for-a-leader",
        "law 10",
        "actors.partner",
        " and said.term <= reply.term\n",
        "\n",
    ),
    Mutant(
        "anybody-vouches-for-a-leader",
        "law 10",
        "actors.partner",
        "said.replica in reply.partners and ",
        "",
    ),
    Mutant(
        "an-unknown-outcome-is-called-not-accepted",
        "design 5.11",
        ATTEMPTS,
        "        if trace is not None and trace.command and trace.attempts:\n",
        "        if trace is not None and trace.command and not trace.attempts:\n",
    ),
    Mutant(
        "a-lost-reply-is-a-failure",
        "design 3",
        ATTEMPTS,
        "                self._next_seat(seat)\n"
        "                wait = await self._pause(wait, deadline)\n"
        "                continue\n",
        "                raise self._too_late(trace) from error\n",
    ),
    Mutant(
        "a-first-attempt-has-no-end",
        "law 13",
        QUEUE_LANE,
        "                call.first = None\n                self._start(call, first)\n",
        "                pass\n",
    ),
    Mutant(
        "a-follower-is-taken-for-the-leader",
        "law 13",
        DOUBT,
        "(self._answers(each, stale=False) for each in others)",
        "(self._answers(each, stale=True) for each in others)",
    ),
    Mutant(
        "a-seat-that-is-slow-is-left",
        "law 13",
        DOUBT,
        "                if looking.cancelled() or looking.result():\n",
        "                if True:\n",
    ),
    Mutant(
        "each-call-looks-after-a-silent-seat-by-itself",
        "law 18",
        DOUBT,
        "        task = self._looks.get(silent)\n",
        "        task = None\n",
    ),
    Mutant(
        "a-run-of-reads-is-more-than-a-reply-may-carry",
        "law 18",
        MACHINE,
        "            if self._size + size <= REPLY_BYTES_MAX:\n",
        "            if size:\n",
    ),
    Mutant(
        "a-late-answer-acknowledges-what-another-client-has-open",
        "law 9",
        COMMAND_LANE,
        "if self._client == made.client:",
        "if True:",
    ),
    Mutant(
        "what-is-done-in-part-is-said-to-have-changed-nothing",
        "design 3",
        CALLER,
        "            if not op.is_query(type(operation)):\n",
        "            if op.is_query(type(operation)):\n",
    ),
    Mutant(
        "a-part-that-may-be-done-is-not-heeded",
        "design 3",
        CALLER,
        "    if done or any(isinstance(each, Unknown) for each in failed.values()):",
        "    if done:",
    ),
    Mutant(
        "what-no-group-of-this-kind-knows-goes-with-the-others",
        "law 18",
        CALLER,
        "            _check_home(operation, group)\n        deadline",
        "        deadline",
    ),
    Mutant(
        "one-command-that-is-none-to-the-leader-fails-all-of-its-call",
        "law 18",
        COMMAND_LANE,
        "if reply.code == api.INVALID and len(call.batch) > 1:",
        "if reply.code == api.INVALID and len(call.batch) < 1:",
    ),
    Mutant(
        "a-newer-slot-map-is-asked-of-the-leader-alone",
        "design 5.15",
        CALLER,
        ".time, True, RETRY_SECONDS_MIN",
        ".time, False, RETRY_SECONDS_MIN",
    ),
    Mutant(
        "a-slot-map-that-is-behind-is-taken-for-the-newer-one",
        "design 5.15",
        CALLER,
        "stale, wait = False, await pause(",
        "stale, wait = True, await pause(",
    ),
    Mutant(
        "a-watch-goes-on-with-the-others-when-a-group-is-lost",
        "law 10",
        "actors.feed",
        "            self._stop()  # who is kept busy with the others would never be told\n",
        "",
    ),
    Mutant(
        "who-had-nothing-to-take-for-long-is-told-that-he-is-slow",
        "design 5.18",
        "actors.feed",
        "max(begun, self._taken_at) + self._slow_seconds)",
        "self._taken_at + self._slow_seconds)",
    ),
    Mutant(
        "a-seat-that-came-later-is-never-looked-for",
        "liveness",
        ATTEMPTS,
        "                self._look_for(reply.leader)\n",
        "                pass\n",
    ),
    Mutant(
        "a-tenant-that-nobody-has-checked-is-sorted-by",
        "law 18",
        "actors.shared_call",
        '    return tenant if type(tenant) is str else ""\n',
        "    return tenant  # type: ignore[no-any-return]\n",
    ),
    Mutant(
        "what-a-call-that-cannot-be-begun-leaves-over-is-left-behind",
        "law 13",
        QUEUE_LANE,
        "            for each in rest:  # where they are is not known\n"
        "                fail(each, error)\n",
        "",
    ),
    Mutant(
        "who-opens-a-client-takes-it-from-those-who-wait-in-it",
        "design 3",
        "metaray.client",
        "        if self._caller is None:  # whoever opened",
        "        if groups is not None:  # whoever opened",
    ),
    Mutant(
        "a-close-that-is-cancelled-leaves-the-links",
        "design 3",
        "metaray.client",
        "    @to_its_end\n    async def aclose",
        "    async def aclose",
    ),
    Mutant(
        "a-write-of-an-interrupted-thread-is-sent-later",
        "design 3",
        "metaray.client",
        "            elif waiting is None or not waiting.done():\n",
        "            elif waiting is None and work.cr_running:\n",
    ),
    Mutant(
        "a-forked-process-speaks-over-the-links-of-the-other",
        "design 3",
        "metaray.client",
        "os.register_at_fork(after_in_child=_leave_all)\n",
        "",
    ),
    Mutant(
        "a-client-of-another-cluster-writes-to-that-of-the-first",
        "design 3",
        "metaray.join",
        "    if _cluster_at(address) != _cluster_at(here):\n",
        "    if not _cluster_at(address):\n",
    ),
    Mutant(
        "who-cannot-open-a-client-again-closes-it-for-others",
        "design 3",
        "metaray.client",
        "            if begins:\n                self.close()\n",
        "            self.close()\n",
    ),
    Mutant(
        "at-the-end-what-was-never-sent-is-called-unknown",
        "design 5.11",
        QUEUE_LANE,
        "        kind = NoQuorum if call.trace is None else Unknown\n",
        "        kind = Unknown\n",
    ),
    Mutant(
        "what-was-refused-before-it-was-applied-counts-as-sent",
        "design 5.11",
        COMMAND_LANE,
        "call.made = call.trace = first = None",
        "call.made = first = None",
    ),
    Mutant(
        "the-half-of-a-call-that-was-not-sent-may-have-been-done",
        "design 5.11",
        COMMAND_LANE,
        "        self._under_way[later] = None\n",
        "        self._under_way[later] = None\n        later.trace = call.trace\n",
    ),
    Mutant(
        "each-half-of-a-call-takes-a-place",
        "design 5.2",
        COMMAND_LANE,
        "        self.in_flight_max += 1  # both have the place of one\n",
        "",
        (("            self.in_flight_max -= 1\n", ""),),
    ),
    Mutant(
        "who-has-given-up-has-the-next-one-wait-in-a-crowd",
        "design 5.3",
        QUEUE_LANE,
        "            self._let_go()\n            crowded = len(self._waiting) >= CALL_MAX\n",
        "            self._let_go()\n",
    ),
    Mutant(
        "what-those-who-have-given-up-wrote-is-kept",
        "design 5.3",
        QUEUE_LANE,
        "        if self._gave_up >= max(half, GAVE_UP_MAX):\n",
        "        if False:\n",
    ),
    Mutant(
        "whatever-exceeds-a-quota-is-asked-again",
        "law 9",
        "actors.shared_call",
        "    return isinstance(error, QuotaExceeded) and error.detail in details\n",
        "    return isinstance(error, QuotaExceeded)\n",
    ),
    Mutant(
        "who-is-alone-is-refused-for-what-others-change",
        "law 9",
        "actors.shared_call",
        "    details = (op.ENTRY_FULL,) if first else (op.ENTRY_FULL, op.REPLY_FULL)\n",
        "    details = () if first else (op.ENTRY_FULL, op.REPLY_FULL)\n",
    ),
    Mutant(
        "who-is-proposed-again-is-told-what-became-of-others",
        "law 9",
        COMMAND_LANE,
        "        call.batch = later.batch\n",
        "        call.batch += later.batch\n",
    ),
    Mutant(
        "the-map-is-awaited-for-the-time-of-other-calls",
        "design 5.15",
        CALLER,
        "                if self._closed or deadline - now() <= NO_TIME_SECONDS:\n",
        "                if True:\n",
    ),
    Mutant(
        "a-watch-ends-with-the-time-of-a-call",
        "design 5.18",
        CALLER,
        "            timeout_ms = max(timeout_ms, WATCH_MS_MIN)\n",
        "            timeout_ms = self._timeout_ms\n",
    ),
)
