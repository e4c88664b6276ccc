"""Bugs of the state: rows apart from their point, applied twice, or not the same everywhere."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MACHINE: Final = "state_machines.machine"
LAYER: Final = "storage.state"
FLUSH: Final = "storage.flush"
SLOW_WRITE: Final = "storage.slow_write"
BEGINNINGS: Final = "state_machines.beginnings"
SHEET: Final = "state_machines.sheet"

STATE: Final = (
    Mutant(
        "rows-and-applied-index-are-committed-apart",
        "law 5",
        SLOW_WRITE,
        "                self._engine.write_slices(self._slices)\n",
        "                self._engine.write_slices(self._slices[:-1])\n"
        "                self._engine.write_slices(self._slices[-1:])\n",
    ),
    Mutant(
        "a-flush-that-found-no-room-at-first-is-written-again-over-newer-rows",
        "law 5",
        SLOW_WRITE,
        "                self._engine.write(self._changes())\n"
        "                self._end(written=True)\n",
        "                self._engine.write(self._changes())\n"
        "                self.written = True\n",
    ),
    Mutant(
        "a-flush-leaves-the-applied-index-behind",
        "law 5",
        LAYER,
        "Flush(self._engine, self._under, self.applied, self._under_bytes)\n",
        "Flush(self._engine, self._under, "
        "self.flushed if self.flushed.index else self.applied, self._under_bytes)\n"
        "        setattr(self._flush, 'said', self.applied)\n",
        (("self.installed = flush.point, False", "self.installed = vars(flush)['said'], False"),),
    ),
    Mutant(
        "the-applied-index-is-flushed-ahead-of-its-rows",
        "law 5",
        FLUSH,
        "            walk = iter(rows)\n",
        "            walk = iter(list(rows)[: -(len(rows) // 2) or None])\n",
    ),
    Mutant(
        "a-flush-ends-at-what-is-applied-by-then",
        "law 5",
        LAYER,
        "self.flushed, self.installed = flush.point, False",
        "self.flushed, self.installed = self.applied, False",
    ),
    Mutant(
        "a-flush-is-believed-before-it-is-written",
        "law 5",
        LAYER,
        "            flush.write_here()\n",
        "            flush.give_up()\n",
    ),
    Mutant(
        "a-scan-does-not-see-what-is-being-flushed",
        "law 5",
        LAYER,
        "if self._flush is not None and (frozen",
        "if self._flush is None and (frozen",
    ),
    Mutant(
        "a-layer-that-comes-back-hides-newer-rows",
        "law 5",
        "storage.layer",
        "        self.rows.update(newer.rows)\n",
        "        self.rows = {**newer.rows, **self.rows}\n",
    ),
    Mutant(
        "a-flush-goes-on-after-an-install",
        "law 6",
        LAYER,
        "            self._flush.give_up()  # what it would write is replaced as a whole\n",
        "            self._flush.seal()\n",
    ),
    Mutant(
        "entries-are-applied-again-after-a-restart",
        "law 5",
        "actors.seat",
        "applied=stores.state.applied.index,",
        "applied=loaded.snapshot.index,",
    ),
    Mutant(
        "a-delete-does-not-hide-the-row-below",
        "law 5",
        LAYER,
        "            found: bytes | None = layer.rows.get(encoded, ABSENT)\n"
        "            if found is not ABSENT:\n",
        "            found: bytes | None = layer.rows.get(encoded, ABSENT)\n"
        "            if found is not ABSENT and found is not None:\n",
    ),
    Mutant(
        "apply-reads-the-wall-clock",
        "law 7",
        MACHINE,
        "max(batch.now_ms, self._clock(db).now_ms)",
        "max(__import__('time').time_ns() // 1_000_000, self._clock(db).now_ms)",
    ),
    Mutant(
        "the-time-of-a-group-goes-back",
        "law 7",
        MACHINE,
        "max(batch.now_ms, self._clock(db).now_ms)",
        "batch.now_ms",
    ),
    Mutant(
        "a-reply-has-the-order-of-a-set",
        "law 7",
        "state_machines.mqtt.will",
        "        return tuple(claimed)\n",
        "        return tuple(set(claimed))\n",
    ),
    Mutant(
        "a-number-is-drawn-by-each-replica",
        "law 7",
        "state_machines.tables",
        "        first = (self.revision << UNIQUE_BITS) | (self._given + 1)\n",
        "        first = (self.revision << UNIQUE_BITS) | (id(self.store) % 997 + self._given)\n",
    ),
    Mutant(
        "a-refused-command-is-not-rolled-back",
        "law 8",
        MACHINE,
        "            db.roll_back()\n",
        "",
    ),
    Mutant(
        "a-local-fault-becomes-a-refusal",
        "law 8",
        MACHINE,
        "        except Rejected as error:\n            self._refuse(result, error)\n        else:",
        "        except Exception as error:\n"
        "            self._refuse(result, Invalid(str(error)))\n"
        "        else:",
    ),
    Mutant(
        "an-unknown-command-is-skipped",
        "law 8",
        MACHINE,
        "            assert command.tag in op.COMMANDS, "
        'f"unknown command {command.tag!r}: old replica?"\n',
        "",
    ),
    Mutant(
        "one-refused-command-refuses-the-whole-proposal",
        "law 8",
        MACHINE,
        "            self._refuse(result, error)\n        else:\n",
        "            self._refuse(result, error)\n"
        "            self._reply.code, self._reply.detail = result.code, result.detail\n"
        "        else:\n",
    ),
    Mutant(
        "a-command-is-told-the-reply-of-the-one-before-it",
        "law 9",
        MACHINE,
        "is not type(self._said) or reply != self._said:",
        "is not type(self._said):",
    ),
    Mutant(
        "a-yes-is-told-as-a-one",
        "law 9",
        MACHINE,
        "        if type(reply) is not type(self._said) or reply != self._said:\n",
        "        if reply != self._said:\n",
    ),
    Mutant(
        "a-row-keeps-its-old-revision",
        "law 5",
        "state_machines.tables",
        "value = table.encode(row, self.revision, self.pack)",
        "value = table.encode(row, max(self.revision - 1, 0), self.pack)",
    ),
    Mutant(
        "the-slot-of-a-command-is-not-asked",
        "design 5.15",
        MACHINE,
        "            slots.check_owned(db, self._machine.kind, operation)\n",
        "            if self._reads:\n"
        "                slots.check_owned(db, self._machine.kind, operation)\n",
    ),
    Mutant(
        "the-slot-of-a-query-is-not-asked",
        "design 5.15",
        MACHINE,
        "            slots.check_owned(db, self._machine.kind, operation)\n",
        "            if not self._reads:\n"
        "                slots.check_owned(db, self._machine.kind, operation)\n",
    ),
    Mutant(
        "a-will-that-has-fired-fires-again",
        "design 5.8",
        "state_machines.mqtt.will",
        "    cancel(db, will)\n    counter =",
        "    counter =",
    ),
    Mutant(
        "a-session-ends-before-its-time",
        "design 5.8",
        "state_machines.mqtt.due",
        "db.scan(DUE, upto=now_ms)",
        "db.scan(DUE, upto=now_ms + 1_000)",
    ),
    Mutant(
        "numbers-that-are-drawn-together-are-given-again",
        "design 1",
        "state_machines.tables",
        "        self._given += count\n",
        "",
    ),
    Mutant(
        "a-batch-that-comes-again-changes-what-is-known-of-it",
        "law 7",
        SHEET,
        "self._layout, self._words[:]",
        "self._layout, self._words",
    ),
    Mutant(
        "one-long-row-makes-all-of-a-batch-long",
        "law 18",
        SHEET,
        "if room * self._count > LOOSE_MAX * (",
        "if room > LOOSE_MAX * room * (",
    ),
    Mutant(
        "rows-of-older-layers-are-taken-for-those-of-the-newest",
        "law 18",
        LAYER,
        "            return self._found(table, encoded, newest)\n",
        "            found = self._found(table, encoded, newest)\n",
    ),
    Mutant(
        "a-name-ends-what-a-body-begins-with",
        "law 18",
        BEGINNINGS,
        "fields if reader.tell() == end else 0",
        "fields",
    ),
    Mutant(
        "a-known-beginning-leaves-its-values-uncounted",
        "law 18",
        BEGINNINGS,
        "packing.Spent(self._columns, known.spent)",
        "packing.Spent()",
    ),
    Mutant(
        "two-bodies-with-one-checksum-name-the-same",
        "law 7",
        BEGINNINGS,
        "known is not None and body.startswith(known.data)",
        "known is not None",
    ),
    Mutant(
        "what-is-known-of-bodies-has-no-bound",
        "law 18",
        BEGINNINGS,
        "self._old, self._new, self._size = self._new, {}, 0",
        "self._old, self._new, self._size = self._old | self._new, {}, 0",
    ),
    Mutant(
        "a-row-keeps-the-text-that-a-batch-replaces",
        "law 9",
        SHEET,
        "row[: len(row) - (mark >> 8)]",
        "row[:]",
    ),
    Mutant(
        "a-change-joins-a-run-that-others-have-followed",
        "design 5.18",
        "state_machines.changes",
        "            self._open = None\n            self._runs.append",
        "            self._runs.append",
    ),
    Mutant(
        "a-long-row-of-before-is-read-as-one-of-today",
        "law 9",
        SHEET,
        "if mark & 0xFF != MARK:",
        "if not mark:",
    ),
    Mutant(
        "a-batch-of-puts-does-not-see-what-it-has-put-itself",
        "law 9",
        "state_machines.metadata.kv",
        "            again[place] = row\n",
        "            again[place] = again.get(place, row)\n",
    ),
    Mutant(
        "many-reads-find-what-was-deleted",
        "law 5",
        LAYER,
        "            left = [key for key in left if key not in rows]\n",
        "            left = [key for key in left if rows.get(key) is None]\n",
    ),
    Mutant(
        "many-reads-look-below-the-frozen-layer",
        "law 5",
        LAYER,
        "in (newest, self._under.get(table, NOTHING).rows):\n",
        "in (newest or self._under.get(table, NOTHING).rows,):\n",
    ),
    Mutant(
        "many-long-names-are-not-cut",
        "design 6",
        "storage.keys",
        " or longest + max(map(len, raw)) >= KEY_BYTES",
        "",
    ),
    Mutant(
        "a-run-of-puts-gives-a-revision-twice",
        "law 7",
        "state_machines.metadata.kv",
        "    return newest < at.index\n",
        "    return True\n",
    ),
    Mutant(
        "a-run-lets-in-what-is-nested-too-deep",
        "law 18",
        "state_machines.runs",
        "        packing.check_depth(found)\n",
        "        pass\n",
    ),
    Mutant(
        "a-longer-revision-is-taken-for-a-lesser-one",
        "law 7",
        "state_machines.metadata.kv",
        " or row[-5] == _IN_FIVE]",
        "]",
    ),
    Mutant(
        "many-rows-are-not-checked-as-they-are-read",
        "law 16",
        "storage.engine",
        '    return values if found == b"".join(',
        '    return values if found or b"".join(',
    ),
    Mutant(
        "what-was-read-together-stays-when-it-is-written",
        "law 5",
        "storage.hot_rows",
        "                awaited.pop(key, None)\n",
        "                awaited.get(key)\n",
    ),
    Mutant(
        "a-batch-leaves-what-it-writes-among-the-hot-rows",
        "law 5",
        LAYER,
        "        self.hot.drop(table, fresh)\n",
        "",
    ),
    Mutant(
        "new-rows-of-a-batch-are-not-sorted-in",
        "law 5",
        LAYER,
        "        layer.fresh += fresh\n",
        "",
    ),
    Mutant(
        "a-key-that-a-batch-has-twice-is-counted-twice",
        "design 5.4",
        LAYER,
        "        if type(keys) is KeptKeys and keys.distinct:\n",
        "        if type(keys) is KeptKeys:\n",
    ),
    Mutant(
        "an-install-leaves-the-last-layer-that-was-written",
        "law 5",
        "storage.hot_rows",
        "        self.layer, self.layer_size = {}, 0\n        self._size = 0\n\n",
        "        self._size = 0\n\n",
    ),
    Mutant(
        "the-last-layer-that-was-written-stays-when-the-next-one-comes",
        "law 5",
        "storage.hot_rows",
        "        self.layer, self.layer_size = layer, size\n",
        "        self.layer = self.layer or layer\n",
    ),
    Mutant(
        "what-was-missing-stays-missing",
        "law 5",
        LAYER,
        "        self._missing.clear()  # what was under has left its place\n",
        "",
    ),
    Mutant(
        "a-timestamp-goes-by-the-clock-alone",
        "D27",
        "state_machines.metadata.timestamp",
        "before.last + 1 if before is not None else 0",
        "0",
    ),
    Mutant(
        "of-a-range-of-timestamps-only-the-first-is-kept",
        "D27",
        "state_machines.metadata.timestamp",
        "LastTimestamp(NAME, last)",
        "LastTimestamp(NAME, first)",
    ),
    Mutant(
        "advice-of-one-command-does-not-count",
        "law 15",
        "state_machines.metadata.advice",
        "[*(each for each in same if each not in replaced), row]",
        "[each for each in same if each not in replaced]",
    ),
)
