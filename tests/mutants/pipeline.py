"""Bugs of the pipeline: exports and the operation history, restores and repairs, advice, reports
that are made by schedule, and learners."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

EXPORTS: Final = (
    Mutant(
        "heat-of-nothing-but-zeros-ends-a-report",
        "one cut",
        "jobs.plot",
        "for place in kept), default=0) or 1",
        "for place in kept), default=0)",
    ),
    Mutant(
        "a-column-of-which-nothing-is-known-ends-a-report",
        "one cut",
        "jobs.page",
        "        bool(known)\n        and known == ",
        "        known == ",
    ),
    Mutant(
        "a-picture-of-heat-has-no-cells",
        "one cut",
        "jobs.plot",
        "range(len(heat.names) + 1), cells, linewidth=0)",
        "range(len(heat.names) + 1), cells, linewidth=0).remove()",
    ),
    Mutant(
        "a-cut-of-another-form-is-read",
        "one cut",
        "jobs.cut",
        'not isinstance(said, dict) or said.get("format") != FORMAT',
        "not isinstance(said, dict)",
    ),
    Mutant(
        "a-row-of-a-group-that-the-cut-lacks-is-missed",
        "one cut",
        "jobs.fsck",
        "for table in (ALL_TABLES[name] for name in rule.absent):",
        "for table in ():",
    ),
    Mutant(
        "a-page-that-its-bytes-end-is-taken-for-the-last",
        "one cut",
        "actors.export",
        "    more = next(scan, None) is not None\n",
        "    more = len(page) == rows\n",
    ),
    Mutant(
        "an-export-skips-the-last-page",
        "one cut",
        "metaray.cuts",
        "            yield page\n            if not after:\n                return\n",
        "            if not after:\n                return\n            yield page\n",
    ),
    Mutant(
        "an-export-does-not-have-the-callers-own-writes",
        "one cut",
        "metaray.cuts",
        "    wanted = max(min_index, leader[",
        "    wanted = max(0, leader[",
    ),
    Mutant(
        "an-export-lacks-what-was-acknowledged-where-it-is-far-behind",
        "one cut",
        "metaray.cuts",
        "        if not _reaches(seat, wanted):\n",
        "        if not _reaches(seat, min_index):\n",
    ),
    Mutant(
        "an-export-of-a-group-between-two-leaders-lacks-what-was-acknowledged",
        "one cut",
        "metaray.cuts",
        "        if has_quorum(living.values()):  # one",
        "        if False:  # one",
    ),
    Mutant(
        "rows-that-an-export-lacks-are-not-noticed",
        "one cut",
        "metaray.exporting",
        "            if here != cut.rows[table]:\n",
        "            if here > cut.rows[table]:\n",
    ),
    Mutant(
        "an-export-that-failed-leaves-a-manifest-of-nothing",
        "one cut",
        "metaray.cut_directory",
        "        (out / MANIFEST).unlink(missing_ok=True)\n",
        "        pass\n",
    ),
    Mutant(
        "a-copy-that-is-read-is-taken-for-left",
        "one cut",
        "storage.copies",
        "        except OSError:\n            return True\n",
        "        except OSError:\n            return False\n",
    ),
)

HISTORY: Final = (
    Mutant(
        "all-that-was-held-before-a-start-goes-at-once",
        "no silent gap",
        "actors.committed",
        "        for begin in range(first, last + 1, MARK_ENTRIES):\n"
        "            end = min(begin + MARK_ENTRIES - 1, last)\n",
        "        for begin in (first,):\n            end = last\n",
    ),
    Mutant(
        "compaction-waits-for-the-fastest-exporter",
        "each command once",
        "actors.committed",
        "        wanted = min([exported for",
        "        wanted = max([exported for",
    ),
    Mutant(
        "a-replica-that-starts-again-has-forgotten-the-exporters",
        "each command once",
        "actors.upkeep",
        "        self.holds = Holds(core, settings, clock, known)\n",
        "        self.holds = Holds(core, settings, clock)\n",
    ),
    Mutant(
        "for-whom-the-log-is-kept-is-not-written-down",
        "each command once",
        "actors.upkeep",
        "                partial(file.save, exporters),\n",
        "                lambda: None,\n",
    ),
    Mutant(
        "how-far-exporters-are-is-written-down-with-each-tick",
        "design 6",
        "actors.committed",
        "self._clock.monotonic() - self._tried_at >= SAVE_SECONDS",
        "self._clock.monotonic() >= SAVE_SECONDS",
    ),
    Mutant(
        "an-exporter-that-is-new-is-not-written-down-for-a-minute",
        "each command once",
        "actors.committed",
        "        if not due and self._told.keys() == self._tried.keys():\n",
        "        if not due:\n",
    ),
    Mutant(
        "what-is-only-gathered-is-said-to-be-exported",
        "each command once",
        "metaray.history.exporter",
        "self.group, self.reached + 1, self._exported, self._patience_ms()",
        "self.group, self.reached + 1, self.reached, self._patience_ms()",
    ),
    Mutant(
        "a-file-that-a-full-disk-refused-is-lost",
        "each command once",
        "metaray.history.exporter",
        "        kept = self._batches\n",
        "        kept, self._batches = self._batches, []\n",
    ),
    Mutant(
        "a-gap-is-told-while-somebody-silent-may-have-it",
        "each command once",
        "metaray.history.source",
        "            self._be_sure_it_is_gone(group, first)\n",
        "            self._missed_at.clear()\n",
    ),
    Mutant(
        "nobody-but-who-is-asked-keeps-its-log",
        "each command once",
        "metaray.history.source",
        "        others = [seat for seat in self._seats(group) if seat != asked]\n",
        "        others = [seat for seat in self._seats(group) if seat == asked]\n",
    ),
    Mutant(
        "who-answers-and-gets-no-further-is-asked-for-ever",
        "each command once",
        "metaray.history.source",
        "        if overdue and not entries and",
        "        if False and",
    ),
    Mutant(
        "who-lacks-an-entry-is-asked-before-those-that-know-where-it-went",
        "each command once",
        "metaray.history.source",
        "            return lacks(seat), oldest, far",
        "            return False, oldest, far",
    ),
    Mutant(
        "who-is-far-behind-is-asked-for-what-comes-next",
        "each command once",
        "metaray.history.source",
        "            return lacks(seat), oldest, far",
        "            return lacks(seat), oldest, False",
    ),
    Mutant(
        "an-export-of-what-is-committed-trusts-whoever-answers",
        "each command once",
        "metaray.history.source",
        "        if leader_of(said) is None and not has_quorum(said):\n",
        "        if not said:\n",
    ),
    Mutant(
        "a-replica-that-hangs-holds-up-the-export-of-its-group",
        "each command once",
        "metaray.history.source",
        "        self._tell(group, seat, exported)\n        page =",
        "        await self.hold(group, exported)\n        page =",
    ),
    Mutant(
        "the-history-is-never-read-from-a-learner",
        "each command once",
        "metaray.history.source",
        "        return [*self._named.seats(group), *self._named.learners(group)]\n",
        "        return [*self._named.seats(group)]\n",
    ),
    Mutant(
        "a-gap-is-not-told",
        "each command once",
        "jobs.operation_files",
        "        if each.is_gap:\n            told.append(_gap(each))\n",
        "",
    ),
    Mutant(
        "a-merge-swallows-a-gap",
        "each command once",
        "metaray.history.store",
        "            if each.is_gap or bytes_ > MERGED_BYTES // 2 or not follows:\n",
        "            if bytes_ > MERGED_BYTES // 2 or not follows:\n",
    ),
    Mutant(
        "a-file-counts-again-after-a-merge",
        "each command once",
        "jobs.operation_files",
        "        if kept and kept[-1].covers(each):\n            continue\n",
        "        if kept and kept[-1].covers(each):\n"
        "            kept.append(each)\n            continue\n",
    ),
    Mutant(
        "what-says-where-to-go-on-is-deleted-for-its-age",
        "each command once",
        "metaray.history.store",
        "        for each in counted[:-1]:\n",
        "        for each in counted:\n",
    ),
    Mutant(
        "a-file-has-its-name-before-it-is-on-the-disk",
        "law 3",
        "jobs.operation_files",
        "        sync_file(part)\n        os.replace(part, made.path)\n",
        "        os.replace(part, made.path)\n        sync_file(made.path)\n",
    ),
)

ARCHIVES: Final = (
    Mutant(
        "offsets-that-were-put-together-count-again",
        "each offset once",
        "jobs.offset_archive",
        "        or all(its == each or its.first < each.first or its.last > each.last"
        " for each in merged)\n",
        "        or True\n",
    ),
    Mutant(
        "a-run-that-comes-again-is-lost-in-what-was-put-together",
        "each offset once",
        "jobs.offset_archive",
        "all(each.last < seen_ms for each in runs)",
        "all(each.last <= seen_ms for each in runs)",
    ),
    Mutant(
        "what-an-older-release-cannot-read-is-put-together-without-it",
        "each offset once",
        "jobs.offset_archive",
        "            if file.schema_arrow != STORED:\n",
        "            if False:\n",
    ),
    Mutant(
        "who-reads-the-archive-fails-while-a-run-puts-files-together",
        "each offset once",
        "jobs.offset_archive",
        "            if turn == READS:\n",
        "            if True:\n",
    ),
)

VIEWS: Final = (
    Mutant(
        "the-files-of-a-spark-that-runs-are-taken-for-left",
        "when Spark dies, a report is missing",
        "jobs.scratch",
        "            fcntl.flock(lock, fcntl.LOCK_EX)\n        yield",
        "            pass\n        yield",
    ),
    Mutant(
        "a-lag-beyond-64-bits-is-the-least",
        "what is worst comes first",
        "jobs.results",
        '            keys.insert(0, (BEYOND, "descending"))\n',
        '            keys.append((BEYOND, "descending"))\n',
    ),
    Mutant(
        "a-page-sorts-large-numbers-by-53-bits",
        "what is worst comes first",
        "jobs.page",
        '        "key": keys.get(value),\n',
        '        "key": value,\n',
    ),
)

RESTORES: Final = (
    Mutant(
        "a-restore-lowers-an-epoch",
        "design 1",
        "state_machines.restoring",
        "self.floor(before) >= self.floor(\n",
        "self.floor(before) == self.floor(\n",
    ),
    Mutant(
        "a-restored-topic-forgets-the-queues-that-it-had",
        "restore",
        "state_machines.metadata.restore",
        "queues_high=max(before.queues_high, row.queues_high)",
        "queues_high=row.queues_high",
    ),
    Mutant(
        "a-restored-segment-goes-on-under-an-old-epoch",
        "design 1",
        "state_machines.metadata.restore_shards",
        "max(row.segment_epoch, last.segment_epoch) + 1",
        "row.segment_epoch",
    ),
    Mutant(
        "a-restored-session-is-still-its-old-brokers",
        "design 1",
        "state_machines.mqtt.restore_sessions",
        "        epoch=db.unique(),\n        connected=False,\n",
        "        connected=False,\n",
    ),
    Mutant(
        "a-restore-of-what-is-missing-changes-what-is-there",
        "restore",
        "state_machines.restoring",
        "if before is not None and (not self.replace or known.equal(before, row)):",
        "if before is not None and known.equal(before, row):",
    ),
    Mutant(
        "a-restored-schedule-forgets-the-run-that-is-under-way",
        "restore",
        "state_machines.metadata.restore",
        "        before or _plain_schedule(row),",
        "        _plain_schedule(row),",
    ),
    Mutant(
        "a-restore-of-a-topic-takes-all-topics",
        "restore",
        "metaray.restoring",
        "            and (not self.topic or getattr(row, known.topic) == self.topic)\n",
        "",
    ),
    Mutant(
        "a-restore-that-lacks-rows-says-that-all-is-the-same",
        "restore",
        "metaray.restoring",
        "report.same = report.backup == report.live and wanted.rows == live.rows and not low",
        "report.same = not low",
    ),
    Mutant(
        "a-restore-that-leaves-a-number-too-low-says-that-all-is-the-same",
        "restore",
        "metaray.restoring",
        "wanted.rows == live.rows and not low",
        "wanted.rows == live.rows",
    ),
    Mutant(
        "a-restored-offset-keeps-the-history-of-another",
        "restore",
        "state_machines.offset.restore",
        "        _drop_others(db, before, row)\n",
        "        pass\n",
    ),
    Mutant(
        "a-restore-removes-what-a-partial-cut-does-not-have",
        "design 5.9",
        "metaray.restoring",
        "        if replace:\n            work.check_groups()",
        "        if False:\n            work.check_groups()",
    ),
    Mutant(
        "a-backup-without-a-whole-kind-is-taken-for-all",
        "restore",
        "metaray.restoring",
        "        kinds = {each.table.kind for each in scope.tables() if not each.local}\n",
        "        kinds = {each.table.kind for each in self._tables if not each.local}\n",
    ),
)

REPAIRS: Final = (
    Mutant(
        "a-repair-ignores-the-revision-of-the-row",
        "repair",
        "metaray.repairing",
        "Transaction.of(compare=compare, then=",
        "Transaction.of(compare=[], then=",
    ),
    Mutant(
        "a-session-that-has-come-back-is-repaired-away",
        "repair",
        "metaray.repairing",
        "            return found is None\n",
        "            return True\n",
    ),
    Mutant(
        "a-topic-that-has-come-back-is-repaired-away",
        "repair",
        "metaray.repairing",
        "            return topic is None or topic.state == DELETING\n",
        "            return True\n",
    ),
    Mutant(
        "a-repair-does-not-wait-for-indexes-and-counts",
        "repair",
        "metaray.repairing",
        '                    broken.add(each["group"])\n',
        '                    broken.discard(each["group"])\n',
    ),
    Mutant(
        "a-count-is-repaired-twice-of-what-was-seen-once",
        "repair",
        "state_machines.repair",
        "        if last is not None and self.seen < last.revision:\n",
        "        if last is not None and self.seen < 0:\n",
    ),
    Mutant(
        "a-segment-of-a-shard-that-was-made-again-is-kept",
        "repair",
        "state_machines.metadata.repairs",
        "    return shard is None or shard.uid != segment.uid\n",
        "    return shard is None\n",
    ),
)

DUTIES: Final = (
    Mutant(
        "advice-is-carried-out-by-an-older-controller",
        "law 20",
        "state_machines.metadata.advice_duty",
        "        pass_fence(db, self.controller_epoch)\n        row = held(db, self.id)\n"
        "        if row.kind == QUOTA and row.state == UNDOING:\n",
        "        row = held(db, self.id)\n        if row.kind == QUOTA and row.state == UNDOING:\n",
    ),
    Mutant(
        "advice-that-nobody-has-approved-is-carried-out",
        "design 5.7",
        "actors.planners.advice",
        "    if row.state != PROPOSED or mode != AUTO:\n",
        "    if row.state != PROPOSED or mode == advices.SHOW:\n",
    ),
    Mutant(
        "advice-raises-a-limit",
        "design 5.7",
        "state_machines.metadata.advice_duty",
        "        if 0 < before <= row.number:\n",
        "        if before == row.number:\n",
    ),
    Mutant(
        "advice-is-undone-over-a-later-change",
        "design 5.7",
        "state_machines.metadata.advice_duty",
        "            check_unchanged(db, row)\n            change(",
        "            change(",
    ),
    Mutant(
        "a-report-is-submitted-anew-after-another-controller",
        "design 5.7",
        "actors.duties.schedules",
        "    if state is None:  # begun by a controller that came no further\n"
        "        await context.jobs.submit(row.run,",
        "    if state is None:  # begun by a controller that came no further\n"
        '        await context.jobs.submit(f"{row.run}-{context.epoch}",',
    ),
    Mutant(
        "a-report-is-begun-while-it-is-made",
        "design 5.7",
        "state_machines.metadata.schedule",
        """\
        if old.run:
            raise Conflict(f"name: {self.name!r} runs: {old.run}")
        if not old.enabled or""",
        "        if not old.enabled or",
    ),
    Mutant(
        "reports-that-were-missed-are-made-up-for",
        "design 5.7",
        "state_machines.metadata.schedule",
        "self.due_ms + (missed + 1) * old.every_ms",
        "self.due_ms + old.every_ms",
    ),
)

LEARNERS: Final = (
    Mutant(
        "a-learner-is-promoted",
        "law 1",
        "actors.planners.repair",
        "        if is_learner(seat):\n            continue\n",
        "",
    ),
    Mutant(
        "a-silent-learner-keeps-a-lost-voter",
        "law 1",
        "actors.planners.repair",
        "    complete = all(map(is_learner, unsaid))\n",
        "    complete = not unsaid\n",
    ),
    Mutant(
        "a-learner-that-has-to-go-is-taken-away-before-its-group-has-let-it-go",
        "design 5.6",
        "actors.learners",
        "            if not members:\n                break\n",
        "            if members:\n                break\n",
    ),
    Mutant(
        "a-learner-whose-seat-its-leader-does-not-know-stays-a-member",
        "design 5.6",
        "actors.learners",
        "if each == own or where.get(each) == seat)",
        "if where.get(each) == seat)",
    ),
    Mutant(
        "one-broken-disk-keeps-a-cluster-from-starting",
        "liveness",
        "actors.bootstrap",
        "if _is_majority(well, names) and (not silent or waited > ABSENT_SECONDS):",
        "if _is_majority(well, names) and waited > ABSENT_SECONDS:",
    ),
)

PIPELINE: Final = (*EXPORTS, *HISTORY, *ARCHIVES, *VIEWS, *RESTORES, *REPAIRS, *DUTIES, *LEARNERS)
