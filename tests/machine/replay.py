"""Applies the same made-up history in a process of its own and prints a digest of all it did."""

from __future__ import annotations

import hashlib
import sys
from random import Random

from state_machines import op
from state_machines.machine import Machine
from state_machines.raft.messages import Entry
from storage.memory import MemoryKeyValue
from tests.machine.plausible import history

KINDS = ("metadata", "mqtt", "offset")


def dump(store: MemoryKeyValue) -> bytes:
    """Every row, in order."""
    return repr(store.dump()).encode()


def run(seed: int, count: int) -> dict[str, str]:
    """One digest of replies and state a kind."""
    digests = {}
    for kind in KINDS:
        digest = hashlib.sha256()
        store = MemoryKeyValue()
        machine = Machine(kind, f"{kind}-0", store)
        for index, batch in enumerate(history(kind, Random(seed), count), 1):
            entry = Entry(term=1, index=index, data=batch.SerializeToString())
            for each in machine.apply(entry):
                digest.update(each.reply)
            digest.update(dump(store))
        digests[kind] = digest.hexdigest()
    return digests


if __name__ == "__main__":
    assert op.COMMANDS
    for kind, digest in sorted(run(int(sys.argv[1]), int(sys.argv[2])).items()):
        sys.stdout.write(f"{kind} {digest}\n")
