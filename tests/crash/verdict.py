"""The verdict over all lives of one directory: what the journal says against what is on the disk.

promises     a replica that opens its stores still knows every term, vote and acceptance that
             left it in an earlier life; one whose directory was wiped never speaks again
log          no two replicas, in any life, applied different entries at one index
writes       each acknowledged one is in the log, under one (client, sequence), in the order in
             which its writer was told, and has its effect exactly once; one whose outcome
             nobody learned has it at most once
reads        a linearizable read saw every write acknowledged before it was asked
state        all replicas stand at one index with the same bytes, and these are what the log
             gives when it is applied from the start to an empty state
directories  one identity each, the rows check, nothing staged or replaced is left over
"""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from state_machines import op, runs
from state_machines.metadata.kv import KV, PutKv
from state_machines.metadata.node import EPOCHS, RegisterNode
from state_machines.mqtt.session import CloseSession, OpenSession
from state_machines.mqtt.will import COUNTER, OUTBOX, WILLS, SetWill
from state_machines.offset.offset import OFFSETS, CommitOffsets
from state_machines.raft.messages import Entry, EntryKind
from state_machines.tables import Tables
from state_machines.wire import api_pb2 as api
from storage import identity, records
from storage.errors import StorageError
from storage.identity import Directory
from storage.stores import open_stores
from tests.crash.verdict_state import digest_of, replay
from tests.crash.victim_journal import read

TENANT = "default"


@dataclass(slots=True)
class Verdict:
    """What was checked, and what was wrong."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    reads: int = 0
    promises: int = 0
    openings: int = 0
    entries: int = 0
    served: set[int] = field(default_factory=set)  #: lives that have acknowledged a write
    lost: int = 0
    doubled: int = 0
    serve_seconds: list[float] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)  #: failpoints
    ended: list[str] = field(default_factory=list)  #: failpoints at which a life ended
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Write:
    name: str
    group: str
    what: str
    key: str
    line: int
    told: int = 0  #: the line of its acknowledgement
    result: Any = None
    refused: bool = False
    places: list[tuple[int, int, int]] = field(default_factory=list)  #: (index, client, sequence)


class _Court:
    """Hears the journal line by line."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self.entries: dict[str, dict[int, Entry]] = defaultdict(dict)
        self.writes: dict[str, _Write] = {}
        self.states: dict[str, list[list[Any]]] = defaultdict(list)
        self.rested = False
        self.replicas: dict[str, set[int]] = defaultdict(set)  #: that ever opened, by seat
        self.members: set[int] = set()  #: replicas of any configuration
        self._line = self._life = 0
        self._opened: dict[int, list[Any]] = {}
        self._terms: dict[int, int] = defaultdict(int)
        self._votes: dict[tuple[int, int], int] = {}
        self._matches: dict[tuple[int, int], int] = defaultdict(int)
        self._wiped: set[int] = set()
        self._asked: dict[str, tuple[str, int]] = {}
        self._told: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def wrong(self, what: str) -> None:
        self.verdict.wrong.append(f"line {self._line}: {what}")

    def hear(self, kind: str, *said: Any) -> None:
        """One line."""
        self._line += 1
        handler = getattr(self, f"_hear_{kind}", None)
        if handler is not None:
            handler(*said)

    def _hear_stuck(self, what: str) -> None:
        self.wrong(f"a life was stuck: {what}")

    def _hear_rest(self) -> None:
        self.rested = True

    def _hear_point(self, name: str) -> None:
        self.verdict.passed.add(name)

    def _hear_end(self, name: str) -> None:
        self.verdict.ended.append(name)

    def _hear_life(self, number: int) -> None:
        self._life = number

    def _hear_serve(self, seconds: float) -> None:
        self.verdict.serve_seconds.append(seconds)
        self.verdict.served.add(self._life)

    # -- promises ---------------------------------------------------------------------------

    def _hear_wiped(self, replica: int) -> None:
        self._wiped.add(replica)

    def _speaks(self, replica: int, term: int) -> None:
        self.verdict.promises += 1
        self._terms[replica] = max(self._terms[replica], term)

    def _hear_vote(self, replica: int, term: int, candidate: int) -> None:
        self._speaks(replica, term)
        before = self._votes.setdefault((replica, term), candidate)
        if before != candidate:
            self.wrong(f"{replica:x} gave two votes in term {term}: {before:x}, {candidate:x}")

    def _hear_match(self, replica: int, term: int, index: int) -> None:
        self._speaks(replica, term)
        at = (replica, term)
        self._matches[at] = max(self._matches[at], index)

    def _hear_open(self, group: str, seat: str, replica: int, boot: int, *stores: int) -> None:
        term, vote, _, base, last, applied = stores
        self.verdict.openings += 1
        self.replicas[seat].add(replica)
        who = f"{seat}: {replica:x}, boot {boot}"
        if replica in self._wiped:
            self.wrong(f"{who} was wiped before")
        if term < self._terms[replica]:
            self.wrong(f"{who} opens in term {term}, but has spoken in {self._terms[replica]}")
        promised = self._votes.get((replica, term))
        if promised not in (None, vote):
            self.wrong(f"{who} voted for {promised:x} in term {term}, now says {vote:x}")
        if last < self._matches[replica, term]:
            self.wrong(f"{who} ends at {last}, it promised {self._matches[replica, term]}")
        if not base <= applied <= last:
            self.wrong(f"{who}: base {base}, applied {applied}, last {last}")
        before = self._opened.get(replica)
        if before is not None:
            if before[0] != group or before[1] != seat:
                self.wrong(f"{who} of {group} was at {before[1]} of {before[0]}")
            if boot <= before[2] or term < before[3] or applied < before[4]:
                self.wrong(f"{who}: term {term}, applied {applied} after {before[2:]}")
        self._opened[replica] = [group, seat, boot, term, applied]

    # -- log, writes, reads -----------------------------------------------------------------

    def _hear_entry(self, group: str, index: int, term: int, _: int, data: str) -> None:
        entry = records.entry_from(base64.b64decode(data))
        before = self.entries[group].setdefault(index, entry)
        if entry.configuration is not None:
            self.members.update(entry.configuration.members)
        if before != entry:
            self.wrong(f"{group}: two entries at index {index}, of terms {before.term} and {term}")

    def _hear_do(self, name: str, group: str, what: str, key: str) -> None:
        self.writes[name] = _Write(name, group, what, key, self._line)

    def _hear_ok(self, name: str, result: Any) -> None:
        write = self.writes[name]
        write.told, write.result = self._line, result
        self._told[write.key].append((self._line, name))

    def _hear_no(self, name: str, error: str) -> None:
        self.writes[name].refused = not error.startswith("Unknown")

    def _hear_ask(self, name: str, key: str) -> None:
        self._asked[name] = (key, self._line)

    def _hear_saw(self, name: str, ids: list[str]) -> None:
        key, asked = self._asked[name]
        self.verdict.reads += 1
        missing = {each for line, each in self._told[key] if line < asked} - set(ids)
        if missing:
            self.wrong(f"a read of {key} does not see {sorted(missing)}")

    def _hear_state(self, group: str, *state: Any) -> None:
        self.states[group].append(list(state))


def judge(root: Path, seats: dict[str, int]) -> Verdict:
    """Everything. `seats`: how many replicas each group has."""
    court = _Court()
    for line in read(root / "journal"):
        court.hear(*line)
    if not court.rested:
        court.wrong("the last life did not come to rest")
        return court.verdict
    _find_writes(court)
    for group, count in seats.items():
        _judge_group(court, group, count)
    _judge_writes(court)
    for group, count in seats.items():
        for number in range(count):
            _judge_directory(court, root / f"{group}-{number}", group)
    return court.verdict


def _find_writes(court: _Court) -> None:
    """Where in the logs each write is."""
    closes = {(w.key): w for w in court.writes.values() if w.what == "close"}
    for group, entries in court.entries.items():
        for index in sorted(entries):
            entry = entries[index]
            if entry.kind is not EntryKind.NORMAL or not entry.data:
                continue
            for proposal in api.Batch.FromString(entry.data).proposals:
                for command in proposal.commands:
                    for done in runs.operations_of(op.COMMANDS, command):
                        write = _write_of(court.writes, closes, done)
                        if write is not None:
                            write.places.append((index, proposal.client, proposal.sequence))
                            if write.group != group:
                                court.wrong(f"{write} is in the log of {group}")


def _write_of(writes: dict[str, _Write], closes: dict[str, _Write], done: Any) -> _Write | None:
    match done:
        case PutKv():
            name = done.value.split(b",")[-2].decode()
        case RegisterNode():
            name = done.addresses[0].address
        case CommitOffsets():
            name = done.metadata[0]
        case OpenSession():
            name = done.broker
        case SetWill():
            name = done.payload.decode()
        case CloseSession():
            return closes[done.client_id]
        case _:
            return None
    return writes[name]


def _judge_group(court: _Court, group: str, count: int) -> None:
    """One state everywhere, and it is what the log says."""
    states = court.states[group]
    if len(states) != count or len({tuple(each[1:]) for each in states}) != 1:
        court.wrong(f"{group}: {count} replicas, and these states: {states}")
        return
    applied, digest = states[0][1], states[0][2]
    entries = court.entries[group]
    if sorted(entries) != list(range(1, applied + 1)):
        missing = sorted(set(range(1, applied + 1)) ^ set(entries))
        court.wrong(f"{group}: applied {applied}, but nobody has applied {missing[:9]}")
        return
    court.verdict.entries += applied
    store = replay(group, [entries[index] for index in sorted(entries)])
    if digest_of(store.dump())[0] != digest:
        court.wrong(f"{group}: the state is not what the log gives")
    effects = _EFFECTS[group]
    effects(court, Tables(store, 0), [w for w in court.writes.values() if w.group == group])


def _judge_writes(court: _Court) -> None:
    """Every acknowledged write is in the log, once in effect, in its writer's order."""
    last: dict[tuple[str, str], _Write] = {}
    for write in court.writes.values():
        verdict = court.verdict
        if not write.told:
            verdict.unknown += not write.refused
            verdict.refused += write.refused
            if len({each[1:] for each in write.places}) > 1:
                court.wrong(f"an unknown write was proposed anew: {write}")
            continue
        verdict.acknowledged += 1
        if not write.places:
            verdict.lost += 1
            court.wrong(f"acknowledged, and not in the log: {write}")
            continue
        if len({each[1:] for each in write.places}) > 1:
            verdict.doubled += 1
            court.wrong(f"proposed under two identities: {write}")
        if write.what == "append" and write.result != write.places[0][0]:
            court.wrong(f"acknowledged at {write.result}: {write}")
        before = last.get((write.what, write.key))
        if before is not None and before.places and before.places[0] >= write.places[0]:
            court.wrong(f"out of order: {before}, {write}")
        last[write.what, write.key] = write


def _by_key(writes: list[_Write], what: str) -> dict[str, tuple[list[_Write], int]]:
    """Of each key: the acknowledged writes in order, and how many may have happened besides."""
    told: dict[str, list[_Write]] = defaultdict(list)
    maybe: Counter[str] = Counter()
    for write in writes:
        if write.what == what:
            told[write.key] += [write] if write.told else []
            maybe[write.key] += not write.told
    return {key: (told[key], maybe[key]) for key in told}


def _counted(court: _Court, what: str, key: str, found: int, told: int, maybe: int) -> None:
    """An effect that counts: no fewer than were acknowledged, no more than were tried."""
    if found < told:
        court.verdict.lost += told - found
        court.wrong(f"{what} {key}: {told} were acknowledged, {found} happened")
    if found > told + maybe:
        court.verdict.doubled += found - told - maybe
        court.wrong(f"{what} {key}: {told} to {told + maybe} were made, {found} happened")


def _metadata_effects(court: _Court, db: Tables, writes: list[_Write]) -> None:
    for key, (told, _) in _by_key(writes, "append").items():
        row = db.get(KV, TENANT, key)
        ids = [] if row is None else [each.decode() for each in row.value.split(b",")[:-1]]
        missing = [write.name for write in told if write.name not in ids]
        twice = [name for name, count in Counter(ids).items() if count > 1]
        strange = [each for each in ids if each not in court.writes]
        court.verdict.lost += len(missing)
        court.verdict.doubled += len(twice)
        if missing or twice or strange:
            court.wrong(f"{key}: missing {missing}, twice {twice}, from nowhere {strange}")
        order = [ids.index(write.name) for write in told if write.name in ids]
        if order != sorted(order):
            court.wrong(f"{key}: not in the order of acknowledgement: {ids}")
    for key, (told, maybe) in _by_key(writes, "register").items():
        held = db.get(EPOCHS, key)
        epochs = [write.result["epoch"] for write in told]
        if epochs != sorted(set(epochs)):
            court.wrong(f"{key}: epochs were given twice or went back: {epochs}")
        _counted(court, "register", key, held.epoch if held else 0, len(told), maybe)


def _offset_effects(court: _Court, db: Tables, writes: list[_Write]) -> None:
    for key, (told, maybe) in _by_key(writes, "commit").items():
        row = db.get(OFFSETS, TENANT, key, "t", 0)
        _counted(court, "commit", key, row.commits if row else 0, len(told), maybe)


def _mqtt_effects(court: _Court, db: Tables, writes: list[_Write]) -> None:
    fired = Counter(row.payload.decode() for _, row, _ in db.scan(OUTBOX))
    waiting = Counter(row.payload.decode() for _, row, _ in db.scan(WILLS))
    counter = db.get(COUNTER, "outbox")
    if (counter.last if counter else 0) != fired.total():
        court.wrong(f"outbox: {fired.total()} rows, the counter says {counter}")
    for write in writes:
        if write.what == "will":
            there = fired[write.name] + waiting[write.name]
            _counted(court, "will", write.name, there, bool(write.told), not write.told)


_EFFECTS = {
    "metadata-0": _metadata_effects,
    "offset-0": _offset_effects,
    "mqtt-0": _mqtt_effects,
}


def _judge_directory(court: _Court, root: Path, group: str) -> None:
    """The directory of a seat, when no process holds it any more."""
    found = identity.find(root, None, group)
    living = [each for each in found if each.identity.status == "active"]
    # One whose making met an error at its very end may be left: nobody, and never opened.
    nobodies = {each.identity.replica for each in found if each.identity.status == "founding"}
    others = {each.identity.replica for each in found} - nobodies
    if len(living) != 1 or others - court.replicas[root.name] or nobodies & court.members:
        court.wrong(f"{root.name}: {[each.identity for each in found]}")
        return
    path = living[0].path
    environments = [each.name for each in (path / "state").iterdir() if each.name.isdigit()]
    left = [*(path / "staging").iterdir()]
    if len(environments) != 1 or left:
        court.wrong(f"{path}: left over: {environments}, {left}")
    who = living[0].identity
    with Directory.open(path, who.cluster, who.group) as directory:
        try:
            open_stores(directory).close()
        except StorageError as error:
            court.wrong(f"{path} does not open: {error}")
