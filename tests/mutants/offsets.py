"""Bugs in commits of consumer offsets, in batches that come again, and in what is kept of them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

RECURRING: Final = "state_machines.offset.recurring"
HISTORY: Final = "state_machines.offset.history"
RESET: Final = "state_machines.offset.reset"

OFFSETS: Final = (
    Mutant(
        "a-commit-of-offsets-counts-a-partition-once-a-batch",
        "law 9",
        "state_machines.offset.one_by_one",
        "            values[rows.COMMITS] += 1\n",
        "            values[rows.COMMITS] += values[rows.COMMIT_MS] != now_ms\n",
    ),
    Mutant(
        "a-batch-does-not-see-what-it-has-committed-itself",
        "law 9",
        "state_machines.offset.one_by_one",
        "        written = self._again[key] = LAYOUT",
        "        written = LAYOUT",
    ),
    Mutant(
        "an-offset-that-no-consumer-group-has-stays",
        "A11",
        "state_machines.offset.repairs",
        "if row is None or db.get(GROUPS, *key[:2]) is not None:",
        "if row is None or db.get(GROUPS, *key[:2]) is None:",
    ),
    Mutant(
        "a-refused-commit-shifts-the-rows-of-the-others",
        "law 9",
        "state_machines.offset.offset",
        "tuple(compress(keys, written))",
        "keys[: count - written.count(REFUSED)]",
    ),
    Mutant(
        "what-was-in-force-for-no-time-is-kept-when-it-comes-with-others",
        "A11",
        RECURRING,
        "if keep_ms <= now_ms and commit_ms < now_ms and mark",
        "if keep_ms <= now_ms and mark",
    ),
    Mutant(
        "a-batch-does-not-say-that-its-groups-live",
        "A11",
        RECURRING,
        "for place in due if committed[place] < hour_ms]",
        "for place in due if committed[place] < 0]",
    ),
    Mutant(
        "a-commit-that-expects-an-offset-is-kept-without-history",
        "A11",
        HISTORY,
        "        if self._settings.rows:\n",
        "        if number >= 0:\n",
    ),
    Mutant(
        "a-batch-drops-one-row-of-the-history-at-most",
        "A11",
        HISTORY,
        "            those = dropped\n",
        "            those = []\n",
    ),
    Mutant(
        "a-row-of-the-history-that-was-removed-stays-the-oldest-of-a-batch",
        "A11",
        HISTORY,
        "                left[each] += 1\n                dropped.append(each)\n",
        "                left[each] += row is not None\n                dropped.append(each)\n",
    ),
    Mutant(
        "rows-that-are-too-old-stay-when-they-come-with-others",
        "A11",
        HISTORY,
        "if few and HISTORY.values_of",
        "if few and not HISTORY.values_of",
    ),
    Mutant(
        "rows-of-another-number-are-kept-of-a-batch",
        "A11",
        HISTORY,
        "[number + 1 for number in newest]",
        "newest",
    ),
    Mutant(
        "what-a-commit-replaces-is-not-kept-when-it-comes-with-others",
        "A11",
        RECURRING,
        'keep_ms = min(sheet.column("keep_ms"))',
        'keep_ms = max(sheet.column("keep_ms"))',
    ),
    Mutant(
        "a-batch-that-comes-again-finds-its-rows-as-it-left-them",
        "law 9",
        RECURRING,
        "known.rows == before",
        "None not in before",
    ),
    Mutant(
        "a-batch-that-comes-again-keeps-nothing-of-what-it-replaces",
        "A11",
        RECURRING,
        "now_ms < known.keep_ms and ",
        "",
    ),
    Mutant(
        "a-text-that-goes-is-counted-as-there",
        "law 18",
        RECURRING,
        "if sheet.bare and not batch.metadata:",
        "if not batch.metadata:",
    ),
    Mutant(
        "what-is-said-of-named-partitions-is-not-looked-at",
        "law 18",
        "state_machines.offset.offset",
        "        for field, check in _CHECKS.items():\n",
        "        for field, check in ():\n",
    ),
    Mutant(
        "what-follows-a-known-beginning-is-not-checked",
        "law 18",
        "state_machines.offset.offset",
        "        made._check_lengths()\n        made._check_rest()\n",
        "        made._check_lengths()\n",
    ),
    Mutant(
        "a-known-beginning-lets-in-what-is-nested-too-deep",
        "law 18",
        "state_machines.offset.offset",
        "            packing.check_depth(rest)\n",
        "            pass\n",
    ),
    Mutant(
        "a-group-with-more-offsets-than-a-page-has-is-refused",
        "design 6",
        "state_machines.offset.offset",
        "limit=PAGE_ROWS_MAX, bytes_max=FETCH_BYTES_MAX\n",
        "limit=PAGE_ROWS_MAX\n",
    ),
    Mutant(
        "what-is-kept-of-forgotten-offsets-is-not-counted",
        "law 15",
        "state_machines.offset.activity",
        "        budget.spend(rows_of(row))\n",
        "        budget.spend()\n",
    ),
    Mutant(
        "deleted-offsets-have-no-bound",
        "law 15",
        "state_machines.offset.reset",
        "        budget.spend(activity.rows_of(offset) - 1)",
        "        budget.spend(0)",
    ),
    Mutant(
        "a-tenant-is-purged-of-any-number-of-bytes",
        "law 15",
        "state_machines.purge",
        "            full = full or budget.spent\n",
        "",
    ),
    Mutant(
        "deleted-pairs-have-no-bound-of-bytes",
        "law 15",
        "state_machines.batch",
        "            if large and db.taken >= BYTES_TAKEN_MAX:\n"
        "                raise too_much(large)\n",
        "",
    ),
    Mutant(
        "a-retention-that-a-tenant-may-have-is-too-long-for-the-command",
        "design 5.7",
        "state_machines.offset.activity",
        'SETTINGS["offset_retention_ms"].high\n',
        'SETTINGS["offset_retention_ms"].high - 1\n',
    ),
    Mutant(
        "a-lease-ends-with-any-number-of-bytes",
        "law 15",
        "state_machines.lease",
        "        if budget.spent:\n            break\n        budget",
        "        budget",
    ),
    Mutant(
        "messages-are-retained-over-any-number-of-bytes",
        "law 15",
        "state_machines.mqtt.retained",
        '            budget.check("items")\n',
        "",
    ),
    Mutant(
        "without-history-what-was-kept-stays",
        "A11",
        HISTORY,
        "            return self._trim(keys, firsts, newest), newest\n",
        "            return firsts, newest\n",
    ),
    Mutant(
        "a-rewind-removes-partitions-without-being-told",
        "A11",
        RESET,
        "if newer and not self.remove:",
        "if newer and self.remove is None:",
    ),
    Mutant(
        "a-rewind-removes-all-there-is-in-one-command",
        "A11",
        RESET,
        "            if budget.spent:\n                break\n            budget.spend(activity",
        "            if not offsets:\n                break\n            budget.spend(activity",
    ),
    Mutant(
        "a-rewind-moves-the-others-before-all-that-has-to-go-is-gone",
        "A11",
        RESET,
        "        if removed < len(newer):",
        "        if removed < 0:",
    ),
    Mutant(
        "what-settings-do-not-keep-is-told-until-its-partition-commits",
        "A11",
        HISTORY,
        "max(offset.kept_first, end - settings(db).rows)",
        "offset.kept_first",
    ),
)
