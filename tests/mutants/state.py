"""Bugs of the state: rows apart from their point, applied twice, or not the same everywhere."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MACHINE: Final = "state_machines.machine"
LAYER: Final = "storage.state"

STATE: Final = (
    Mutant(
        "rows-and-applied-index-are-committed-apart",
        "law 5",
        LAYER,
        "        self._engine.write(self._changes())\n",
        "        *rows, point = self._changes()\n"
        "        self._engine.write(rows)\n"
        "        self._engine.write([point])\n",
    ),
    Mutant(
        "a-flush-leaves-the-applied-index-behind",
        "law 5",
        LAYER,
        "        yield sealed(STATE, APPLIED, records.meta_to(self.applied))",
        "        point = self.flushed if self.flushed.index else self.applied\n"
        "        yield sealed(STATE, APPLIED, records.meta_to(point))",
    ),
    Mutant(
        "the-applied-index-is-flushed-ahead-of-its-rows",
        "law 5",
        LAYER,
        "        for table, layer in self._layers.items():\n"
        "            for key, value in layer.rows.items():\n",
        "        for table, layer in self._layers.items():\n"
        "            for key, value in list(layer.rows.items())[: "
        "-(len(layer.rows) // 2) or None]:\n",
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
        "            found: bytes | None = layer.rows.get(encoded, _ABSENT)\n"
        "            if found is not _ABSENT:\n",
        "            found: bytes | None = layer.rows.get(encoded, _ABSENT)\n"
        "            if found is not _ABSENT and found is not None:\n",
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
        "        return (self.revision << UNIQUE_BITS) | self._given\n",
        "        return (self.revision << UNIQUE_BITS) | (id(self) % 997 + self._given)\n",
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
        "        except Rejected as error:\n"
        "            db.roll_back()\n"
        "            return api.Result(code=error.code, detail=error.detail)",
        "        except Exception as error:\n"
        "            db.roll_back()\n"
        "            code = getattr(error, 'code', api.INVALID)\n"
        "            return api.Result(code=code, detail=str(error))",
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
        "            reply.results.append(result)\n",
        "            reply.results.append(result)\n"
        "            if result.code != api.OK:\n"
        "                reply.code, reply.detail = result.code, result.detail\n",
    ),
    Mutant(
        "a-row-keeps-its-old-revision",
        "law 5",
        "state_machines.tables",
        "value = self.pack((self.revision, packing.row_values(row)))",
        "value = self.pack((max(self.revision - 1, 0), packing.row_values(row)))",
    ),
    Mutant(
        "the-slot-of-a-command-is-not-asked",
        "design 5.15",
        MACHINE,
        "            slots.check_owned(db, self.kind, operation)\n"
        "            reply = packing.pack(operation.apply(db, at))\n",
        "            reply = packing.pack(operation.apply(db, at))\n",
    ),
    Mutant(
        "the-slot-of-a-query-is-not-asked",
        "design 5.15",
        MACHINE,
        "            operation = self._decode(op.QUERIES, query)\n"
        "            slots.check_owned(db, self.kind, operation)\n",
        "            operation = self._decode(op.QUERIES, query)\n",
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
        "a-takeover-keeps-the-epoch",
        "design 1",
        "state_machines.mqtt.session",
        "    epoch = db.unique()\n",
        "    epoch = old.epoch if old is not None else db.unique()\n",
    ),
    Mutant(
        "a-commit-of-offsets-counts-a-partition-once-a-batch",
        "law 9",
        "state_machines.offset.offset",
        "                values[_COMMITS] += 1\n",
        "                values[_COMMITS] += values[_COMMIT_MS] != now_ms\n",
    ),
)
