"""Bugs of what stands between a reader and the file: layers, hot rows, views and copies."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

HOT: Final = "storage.hot_rows"
VIEW: Final = "storage.disk_view"
LAYER: Final = "storage.layer"

MEMORY: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a-row-is-twice-in-a-scan-after-a-flush-that-found-no-room",
        "law 5",
        "storage.layer",
        "        self.fresh += [key for key in newer.rows if key not in self.rows]\n",
        "        self.fresh += newer.rows\n",
    ),
    Mutant(
        "a-row-that-was-read-stays-when-it-is-written",
        "law 5",
        "storage.state",
        "            self.hot.drop(table, (encoded,))\n"
        "            self._bytes += ROW_OVERHEAD_BYTES + len(encoded) + len(value)\n",
        "            self._bytes += ROW_OVERHEAD_BYTES + len(encoded) + len(value)\n",
    ),
    Mutant(
        "a-reading-sees-what-is-written-after-a-flush-that-found-no-room",
        "law 5",
        "storage.layer",
        "            if under[table].shared:\n",
        "            if under[table] is None:\n",
    ),
    Mutant(
        "keys-that-are-not-there-are-remembered-without-a-bound",
        "A32",
        "storage.state",
        "            if len(missing) < MISSING_KEPT:\n",
        "            if MISSING_KEPT:\n",
    ),
    Mutant(
        "rows-of-a-frozen-layer-are-not-counted",
        "A32",
        "storage.state",
        "        return self._bytes + (0 if self._flush is None else self._flush.size)\n",
        "        return self._bytes\n",
    ),
    Mutant(
        "an-apply-on-the-loop-waits-for-a-layer-that-is-not-durable",
        "law 15",
        "storage.state",
        "return self._flush is not None and self._fullness >= 0.5",
        "return self._flush is not None and self._fullness >= 1",
    ),
    Mutant(
        "layers-whose-rows-lie-scattered-are-as-large-as-others",
        "A32",
        "storage.state",
        "max(self._bytes / self.flush_bytes, self._pages / self.flush_pages)",
        "self._bytes / self.flush_bytes",
    ),
    Mutant(
        "rows-on-the-same-pages-count-as-scattered",
        "A32",
        "storage.state",
        "sum(min(len(each.rows), leaves(name)) for",
        "sum(len(each.rows) for",
    ),
    Mutant(
        "a-layer-is-not-looked-at-before-the-one-before-was-full",
        "A32",
        "storage.state",
        "        self._look_at = self.flush_bytes // LOOKS\n        self._missing.clear()",
        "        self._missing.clear()",
    ),
    Mutant(
        "all-replicas-collect-their-garbage-at-once",
        "law 15",
        "actors.garbage",
        "self._rng.randint(self._within // 2, self._within)",
        "self._within",
    ),
    Mutant(
        "garbage-is-collected-each-minute-though-there-is-none",
        "law 15",
        "actors.garbage",
        "min(2 * self._within, LATEST)",
        "self._within",
    ),
    Mutant(
        "garbage-is-collected-once-an-hour-however-much-there-is",
        "A32",
        "actors.garbage",
        " if found < FEW else SOONEST",
        "",
    ),
    Mutant(
        "a-full-layer-does-not-grow-while-the-one-before-is-written",
        "law 15",
        "storage.state",
        "self._fullness < GROWTH",
        "self._fullness < 1",
    ),
    Mutant(
        "a-layer-grows-without-a-bound",
        "A32",
        "storage.state",
        "and self._fullness < GROWTH",
        "and GROWTH",
    ),
    Mutant(
        "a-full-layer-leaves-the-one-before-unsealed",
        "law 15",
        "storage.flush",
        "return not self.seal() and self.ends_within(seconds)",
        "return self.ends_within(seconds)",
    ),
    Mutant(
        "a-full-layer-gives-the-one-before-no-time",
        "law 15",
        "storage.slow_write",
        "self._lock.acquire(timeout=seconds)",
        "self._lock.acquire(blocking=False)",
    ),
    Mutant(
        "a-full-layer-is-not-frozen-when-the-one-before-is-durable",
        "A32",
        "storage.slow_write",
        "            self._lock.release()\n        return self.written\n",
        "            self._lock.release()\n        return False\n",
    ),
    Mutant(
        "a-flush-that-was-overtaken-is-finished",
        "law 5",
        "storage.state",
        "        if self._flush is not flush:\n            return\n",
        "",
    ),
    Mutant(
        "a-table-whose-rows-were-written-counts-as-large-as-before",
        "A32",
        HOT,
        "                found.size -= cost\n",
        "",
    ),
    Mutant(
        "rows-that-are-found-together-are-as-old-as-before",
        "A32",
        HOT,
        "            for key in read:\n                rows.move_to_end(key)\n",
        "",
    ),
    Mutant(
        "rows-that-were-read-together-are-there-for-nobody-who-asks-for-one",
        "A32",
        HOT,
        "            self._come_in(table)\n"
        "        found = self._tables.get(table)\n"
        "        value =",
        "            pass\n        found = self._tables.get(table)\n        value =",
    ),
    Mutant(
        "a-table-that-is-not-there-has-rows",
        "design 5.1",
        VIEW,
        "        if handle is None:\n"
        "            return 0\n"
        "        with self._lock:\n"
        "            return self._engine.records(",
        "        with self._lock:\n            return self._engine.records(",
    ),
    Mutant(
        "a-scan-goes-on-behind-the-next-key",
        "law 5",
        VIEW,
        'start = last + b"\\0"',
        'start = last + b"\\1"',
    ),
    Mutant(
        "a-copy-is-made-of-pages-that-were-used-again",
        "law 5",
        VIEW,
        "        self._still_open()  # until here no page that it sees was used again\n",
        "",
    ),
    Mutant(
        "a-copy-lacks-the-free-pages-at-its-end",
        "law 5",
        VIEW,
        "            os.ftruncate(target, size)\n",
        "",
    ),
    Mutant(
        "a-copy-begins-with-meta-pages-of-another-transaction",
        "law 5",
        "storage.disk",
        "        if max(meta_pages.numbers(head)) != transaction.id():\n            return None\n",
        "",
    ),
    Mutant(
        "a-page-that-is-not-there-and-not-free-is-not-missed",
        "law 16",
        "storage.disk",
        "for each in free) <= last - whole:",
        "for each in free) < last - whole:",
    ),
    Mutant(
        "a-map-at-its-limit-takes-the-views-away",
        "law 13",
        "storage.disk",
        "        if wanted <= self._map_bytes:\n            return\n",
        "",
    ),
    Mutant(
        "a-row-that-comes-again-into-a-gap-is-passed",
        "law 7",
        "storage.state",
        "        if layer.gaps and (old is None or old is ABSENT):\n",
        "        if layer.gaps and old is ABSENT:\n",
    ),
    Mutant(
        "rows-that-come-again-at-once-into-a-gap-are-passed",
        "law 7",
        LAYER,
        "each < last and rows.get(each) is None]",
        "each < last and each not in rows]",
    ),
    Mutant(
        "a-layer-that-comes-back-has-the-gaps-of-before",
        "law 5",
        LAYER,
        "        self.gaps = newer.gaps  # those hold for both\n",
        "",
    ),
    Mutant(
        "a-gap-has-more-keys-than-were-passed",
        "law 7",
        LAYER,
        'first = add(layer.gaps, begun, key + b"\\0")',
        'first = add(layer.gaps, begun, span[-1] + b"\\0")',
    ),
    Mutant(
        "a-scan-behind-a-gap-gives-what-was-deleted",
        "law 5",
        LAYER,
        "                if under is not None and under[0] < first:\n",
        "                if under is not None and under[0] > first:\n",
    ),
    Mutant(
        "a-scan-passes-what-was-deleted-each-time",
        "law 15",
        LAYER,
        "            elif passed % GAP_KEYS == 0:\n",
        "            elif passed < 0:\n",
    ),
)
