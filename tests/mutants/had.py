"""Bugs that this project had, put back: each was found by one of its proofs, and mended."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

HAD: Final = (
    Mutant(
        "a-leap-of-the-term-is-believed",
        "law 18",
        "state_machines.raft.core",
        "if message.term > self._term + TERM_JUMP_MAX:",
        "if message.term > TERM_MAX + TERM_JUMP_MAX:",
    ),
    Mutant(
        "a-failed-commit-is-told-to-a-caller-and-no-more",
        "law 17",
        "actors.replica",
        "        except StorageFailed as error:\n            self.storage_failed(error)\n",
        "        except StorageFailed:\n",
    ),
    Mutant(
        "what-is-unforeseen-after-a-job-is-passed-over",
        "law 8",
        "actors.storage_thread",
        "                error = unforeseen\n",
        "                del unforeseen\n                return\n",
    ),
    Mutant(
        "calls-turn-each-other-back-to-a-silent-leader",
        "law 13",
        "actors.attempts",
        "            self._turn = seats.index(failed) + 1\n",
        "            self._turn += 1\n",
    ),
    Mutant(
        "a-directory-that-never-took-part-is-taken-first",
        "law 1",
        "storage.identity",
        'return ("active", "founding", "retired").index(who.status), -who.boot, found.path.name',
        'return int(who.status == "retired"), -who.boot, found.path.name',
    ),
    Mutant(
        "what-a-killed-process-left-unsynced-is-relied-on",
        "law 3",
        "storage.disk",
        "            if not readonly:\n                self._env.sync(True)\n",
        "",
    ),
    Mutant(
        "an-older-transaction-may-be-in-force",
        "law 16",
        "storage.disk",
        "            self._check_numbers()\n",
        "",
    ),
    Mutant(
        "a-snapshot-of-a-term-to-come-is-installed",
        "law 6",
        "actors.snapshots",
        "if meta is not None and meta.term > message.term:",
        "if meta is not None and meta.term < 0:",
    ),
    Mutant(
        "a-chunk-is-believed-who-sends-it",
        "law 6",
        "actors.snapshots",
        'if crc32(data[SEAL_BYTES:]) != int.from_bytes(data[:SEAL_BYTES], "big"):',
        "if len(data) < 0:",
    ),
    Mutant(
        "an-envelope-may-ask-for-an-install",
        "law 6",
        "actors.transport",
        "if InstallSnapshot in kinds:",
        "if None in kinds:",
    ),
    Mutant(
        "a-request-is-decoded-however-many-parts-it-has",
        "law 18",
        "actors.requests",
        "if too_many_fields(request, _REQUEST, REQUEST_FIELDS_MAX):",
        "if len(request) < 0:",
    ),
    Mutant(
        "a-write-of-a-group-of-one-waits-for-a-tick",
        "liveness",
        "actors.replica",
        "            self._wake()  # the only voter: what it has saved is committed with that\n",
        "            pass\n",
    ),
    Mutant(
        "a-changed-length-makes-a-link-deaf",
        "law 6",
        "actors.direct.frames",
        "            if length ^ check != _BITS:",
        "            if length < 0:",
    ),
    Mutant(
        "a-check-against-another-schema-of-that-number-holds",
        "what was checked is what is put",
        "state_machines.metadata.schema",
        "    if not expected:\n        return\n    if last is None:\n",
        "    if not expected or last:\n        return\n    if last is None:\n",
    ),
    Mutant(
        "long-subjects-that-begin-alike-are-one",
        "each command once",
        "metaray.history.rows",
        "subject_name(subject)",
        "subject[:512]",
    ),
    Mutant(
        "a-subject-may-be-the-name-of-a-longer-one",
        "each command once",
        "jobs.operations",
        '    if len(whole) == SUBJECT_MAX and whole[SUBJECT_KEPT] != "~":\n',
        "    if len(whole) == SUBJECT_MAX:\n",
    ),
    Mutant(
        "a-report-does-not-say-what-the-history-lacks",
        "each command once",
        "jobs.unknown_view",
        "    if not groups:\n",
        "    if groups:\n",
    ),
    Mutant(
        "a-bill-does-not-say-what-the-history-lacks",
        "each command once",
        "jobs.chargeback_view",
        "unknown_view.headline(results)",
        '""',
    ),
    Mutant(
        "churn-does-not-say-what-the-history-lacks",
        "each command once",
        "jobs.sessions_view",
        "unknown_view.headline(results)",
        '""',
    ),
    Mutant(
        "what-is-too-old-to-be-kept-is-not-missing",
        "each command once",
        "jobs.operation_files",
        "        if each.group != group and each.first > 1:\n",
        "        if each.group != group and each.first < 1:\n",
    ),
    Mutant(
        "what-is-missing-beside-a-range-is-not-told",
        "each command once",
        "metaray.history.changes",
        "    missing = [gap for gap in gaps(found)",
        "    found = [each for each in found if each.last > after and each.first <= upto]\n"
        "    missing = [gap for gap in gaps(found)",
    ),
    Mutant(
        "takeovers-are-those-of-the-plot-alone",
        "each command once",
        "jobs.sessions_view",
        'results.sum("churn", "takeovers") if tells',
        'sum(row["takeovers"] for row in churn) if tells',
    ),
    Mutant(
        "a-diff-of-other-groups-looks-whole",
        "one cut",
        "jobs.diff_view",
        "        named = ",
        "        return rest\n        named = ",
    ),
    Mutant(
        "sessions-whose-broker-died-are-not-closed",
        "each command once",
        "jobs.churn",
        ', "mqtt.session.close_held")',
        ")",
    ),
)
