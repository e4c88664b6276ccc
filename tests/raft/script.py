"""Golden scripts: a few replicas on a table, moved by hand, and a trace of all they do.

A script is a claim and then blocks. A block is lines of commands, `---`, and the trace they leave:

    # A follower grants one vote a term.

    cluster 3
    campaign 1
    ---
    1 is pre-candidate in term 0
    1 to 2: pre-vote for term 1, log ends 0@0

Nothing moves by itself. A replica's outputs leave it in a *turn* (`ready`, then its save, then
`advance`); messages wait on the link they were sent on until they are delivered, lost or cut off.

    cluster N [setting=value ...]      replicas 1..N, all founding voters
    replica N [voters=1,2] [learners=3] [log=1,1,4] [term=T] [vote=V] [commit=I] [base=I@T]
                                       one replica with a past; log lists its entries' terms
    tick N [times]      timeout N      let time pass; until it does something about a silent leader
    campaign N          lead N         ...; quietly make N the leader of everybody
    propose N DATA...   read N CONTEXT change N +v4 +l5 -2      transfer N TARGET
    turn N              a whole turn   ready N / save N         its two halves
    deliver A B [k]     messages from A to B reach B, which does not take a turn
    lose A B [k]        ... or do not                           repeat A B: the first one, twice
    settle              turns and deliveries until nothing moves
    cut A ...           these hear nobody and nobody hears them; heal ends it
    crash N / restart N compact N I    unreachable N PEER       snapshot_failed N PEER
    show N   log N   progress N        send A B KIND k=v ...    a message made up by the script
    append A B term=T prev=I@T log=1,2                           ... with entries of these terms
    install A B I@T                                              ... a snapshot that has arrived
    quietly COMMAND     without a trace
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from state_machines.errors import MetarayError
from state_machines.raft import (
    Append,
    AppendReply,
    Change,
    Configuration,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    Raft,
    RaftConfig,
    Ready,
    RequestVote,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
)
from tests.raft.cluster import Disk

SETTLE_TURNS_MAX = 1000
NOTHING = "(nothing)"
FLAGS = ("granted", "pre", "rejected", "transfer")


class Middle:
    """The luck of a script: always the middle, and one more for every id, so timeouts differ."""

    def __init__(self, id: int) -> None:
        self.id = id

    def randrange(self, start: int, stop: int) -> int:
        return min((start + stop) // 2 + self.id, stop - 1)


@dataclass
class Seat:
    """A replica on the table."""

    disk: Disk
    raft: Raft | None = None
    saving: Ready | None = None
    told: tuple[object, ...] = ()


class Script:
    """Runs one file; `run` returns it as it should read."""

    def __init__(self) -> None:
        self.seats: dict[int, Seat] = {}
        self.links: dict[tuple[int, int], deque[Message]] = {}
        self.cut_off: set[int] = set()
        self.settings = RaftConfig()
        self.lines: list[str] = []
        self.quiet = False

    def run(self, path: Path) -> str:
        out: list[str] = []
        commands: list[str] = []
        skipping = False  # past the `---` of a block: its old trace
        for line in [*path.read_text().splitlines(), ""]:
            if line == "---":
                skipping = True
                out += [*commands, line, *self.block(commands)]
                commands = []
            elif not line:
                # A block without a trace may only set the table.
                trace = self.block(commands) if commands and not skipping else [NOTHING]
                out += [*commands, *([] if trace == [NOTHING] else ["---", *trace]), ""]
                commands, skipping = [], False
            elif not skipping:
                commands.append(line)
        return "\n".join(out).rstrip("\n") + "\n"

    def block(self, commands: list[str]) -> list[str]:
        self.lines = []
        for line in commands:
            if line.startswith("#"):
                continue
            words = line.split()
            self.quiet = words[0] == "quietly"
            name, *args = words[1:] if self.quiet else words
            handler: Callable[..., None] = getattr(self, "do_" + name)
            try:
                handler(*args)
            except MetarayError as error:
                self.say(f"refused, {type(error).__name__}: {error.detail}")
            for seat in self.seats.values():
                if seat.raft is not None:
                    seat.raft.check()
        return self.lines or [NOTHING]

    def say(self, line: str) -> None:
        if not self.quiet:
            self.lines.append(line)

    def raft(self, name: str | int) -> Raft:
        raft = self.seats[int(name)].raft
        assert raft is not None, f"{name} is down"
        return raft

    # Setting up.

    def do_cluster(self, count: str, *settings: str) -> None:
        values = {
            name: type(getattr(RaftConfig(), name))(int(value))
            for name, value in (each.split("=") for each in settings)
        }
        self.settings = replace(
            RaftConfig(heartbeat_ticks=2, election_ticks_min=10, election_ticks_max=20), **values
        )
        for number in range(1, int(count) + 1):
            self.do_replica(str(number), voters=",".join(map(str, range(1, int(count) + 1))))

    def do_replica(self, name: str, *settings: str, voters: str = "") -> None:
        given = {"voters": voters, **dict(each.split("=") for each in settings)}
        index, term = (int(part) for part in given.get("base", "0@0").split("@"))
        configuration = Configuration(
            voters=numbers(given["voters"]), learners=numbers(given.get("learners", ""))
        )
        terms = numbers(given.get("log", ""))
        entries = [Entry(t, index + 1 + at, b"") for at, t in enumerate(terms)]
        state = HardState(
            int(given.get("term", max((term, *terms)))),
            int(given.get("vote", 0)),
            int(given.get("commit", index)),
        )
        disk = Disk(SnapshotMeta(index, term, configuration), entries, state, flushed=index)
        self.seats[int(name)] = Seat(disk)
        self.do_restart(name)

    def do_restart(self, name: str) -> None:
        seat = self.seats[int(name)]
        disk = seat.disk
        seat.raft = Raft(
            id=int(name),
            config=self.settings,
            rng=Middle(int(name)),
            snapshot=disk.snapshot,
            entries=disk.entries,
            hard_state=disk.hard_state,
            applied=disk.flushed,
        )
        seat.saving = None
        seat.told = self.facts(seat.raft)

    def do_crash(self, name: str) -> None:
        self.seats[int(name)].raft = None

    # Inputs.

    def do_tick(self, name: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.raft(name).tick()
            self.news(name)

    def do_timeout(self, name: str) -> None:
        before = self.facts(self.raft(name))
        for _ in range(self.settings.election_ticks_max):
            self.do_tick(name)
            if self.facts(self.raft(name)) != before:
                return

    def do_campaign(self, name: str) -> None:
        self.raft(name).campaign()
        self.news(name)

    def do_lead(self, name: str) -> None:
        self.quiet = True
        self.do_campaign(name)
        self.do_settle()
        assert self.raft(name).leader == int(name), f"{name} was not elected"
        self.do_tick(name, str(self.settings.heartbeat_ticks))
        self.do_settle()

    def do_propose(self, name: str, *data: str) -> None:
        for each in data:
            index = self.raft(name).propose(each.encode())
            self.say(f"{name} appends {index}@{self.raft(name).term}={each}")

    def do_read(self, name: str, context: str) -> None:
        self.raft(name).read(int(context))

    def do_change(self, name: str, *members: str) -> None:
        change = Change(
            add_voters=tuple(int(each[2:]) for each in members if each.startswith("+v")),
            add_learners=tuple(int(each[2:]) for each in members if each.startswith("+l")),
            remove=tuple(int(each[1:]) for each in members if each.startswith("-")),
        )
        self.raft(name).change(change)
        self.news(name)

    def do_transfer(self, name: str, target: str) -> None:
        self.raft(name).transfer(int(target))
        self.news(name)

    def do_unreachable(self, name: str, peer: str) -> None:
        self.raft(name).unreachable(int(peer))
        self.news(name)

    def do_snapshot_failed(self, name: str, peer: str) -> None:
        self.raft(name).snapshot_failed(int(peer))

    def do_snapshot_sent(self, name: str, peer: str) -> None:
        self.raft(name).snapshot_sent(int(peer))

    def do_compact(self, name: str, index: str) -> None:
        seat, raft = self.seats[int(name)], self.raft(name)
        seat.disk.compact(raft.snapshot_meta(int(index)))
        seat.disk.flushed = raft.applied_handed
        raft.compact(int(index))

    # Outputs.

    def do_turn(self, name: str) -> None:
        while self.do_ready(name):
            if self.seats[int(name)].saving is not None:
                self.do_save(name)

    def do_ready(self, name: str) -> bool:
        seat, raft = self.seats[int(name)], self.raft(name)
        ready = raft.ready()
        if ready is None:
            return False
        for message in ready.messages:
            self.post(message)
        if ready.must_save:
            seat.saving = ready
            self.say(f"{name} saves {saved(ready)}")
        for entry in ready.committed:
            self.say(f"{name} applies {entry_text(entry)}")
        for read in ready.reads:
            self.say(f"{name} answers read {read.context} at {read.index}")
        for peer in ready.snapshot_to:
            meta = raft.snapshot_meta(raft.applied_handed)
            self.say(f"{name} streams a snapshot at {meta.index}@{meta.term} to {peer}")
            self.link(int(name), peer).append(InstallSnapshot(int(name), peer, raft.term, meta))
        return True

    def do_save(self, name: str) -> None:
        seat = self.seats[int(name)]
        ready, seat.saving = seat.saving, None
        assert ready is not None, f"{name} is not saving"
        seat.disk.save(ready)
        self.raft(name).advance(ready)
        for message in ready.promises:
            self.post(message, "then ")
        self.news(name)

    # The network.

    def link(self, sender: int, receiver: int) -> deque[Message]:
        return self.links.setdefault((sender, receiver), deque())

    def post(self, message: Message, when: str = "") -> None:
        self.say(f"{when}{message.sender} to {message.receiver}: {message_text(message)}")
        if not {message.sender, message.receiver} & self.cut_off:
            self.link(message.sender, message.receiver).append(message)

    def do_deliver(self, sender: str, receiver: str, count: str = "1000000") -> None:
        link = self.link(int(sender), int(receiver))
        for _ in range(min(int(count), len(link))):
            message = link.popleft()
            seat = self.seats.get(int(receiver))
            if seat is not None and seat.raft is not None:
                seat.raft.step(message)
                self.news(receiver)

    def do_lose(self, sender: str, receiver: str, count: str = "1000000") -> None:
        link = self.link(int(sender), int(receiver))
        for _ in range(min(int(count), len(link))):
            link.popleft()

    def do_repeat(self, sender: str, receiver: str) -> None:
        link = self.link(int(sender), int(receiver))
        link.append(link[0])

    def do_settle(self) -> None:
        for _ in range(SETTLE_TURNS_MAX):
            moved = False
            for number, seat in sorted(self.seats.items()):
                if seat.raft is not None:
                    before = len(self.lines), self.activity()
                    self.do_turn(str(number))
                    moved |= before != (len(self.lines), self.activity())
            for sender, receiver in sorted(self.links):
                moved |= bool(self.links[sender, receiver])
                self.do_deliver(str(sender), str(receiver))
            if not moved:
                return
        raise AssertionError("it never settles")

    def activity(self) -> int:
        return sum(map(len, self.links.values()))

    def do_cut(self, *names: str) -> None:
        self.cut_off |= {int(name) for name in names}
        for (sender, receiver), link in self.links.items():
            if {sender, receiver} & self.cut_off:
                link.clear()

    def do_heal(self) -> None:
        self.cut_off.clear()

    def do_install(self, sender: str, receiver: str, at: str) -> None:
        raft = self.raft(receiver)
        index, term = map(int, at.split("@"))
        meta = SnapshotMeta(index, term, raft.configuration)
        raft.step(InstallSnapshot(int(sender), int(receiver), raft.term, meta))
        self.news(receiver)

    def do_append(self, sender: str, receiver: str, *settings: str) -> None:
        given = dict(each.split("=") for each in settings)
        index, prev_term = map(int, given["prev"].split("@"))
        entries = tuple(
            Entry(term, index + 1 + at) for at, term in enumerate(numbers(given["log"]))
        )
        term = int(given["term"])
        self.raft(receiver).step(
            Append(int(sender), int(receiver), term, index, prev_term, 0, entries)
        )
        self.news(receiver)

    def do_send(self, sender: str, receiver: str, kind: str, *fields: str) -> None:
        values = {
            name: bool(int(value)) if name in FLAGS else int(value)
            for name, value in (each.split("=") for each in fields)
        }
        kinds: dict[str, type[Message]] = {
            each.__name__: each
            for each in (Append, AppendReply, Heartbeat, HeartbeatReply, RequestVote, VoteReply)
        }
        message = kinds[kind](sender=int(sender), receiver=int(receiver), **values)
        self.raft(receiver).step(message)
        self.news(receiver)

    # What is seen.

    def facts(self, raft: Raft) -> tuple[object, ...]:
        role = f"{raft.role.name}"
        if role == "follower" and raft.leader:
            role += f" of {raft.leader}"
        return (f"{role} in term {raft.term}", raft.commit, raft.configuration)

    def news(self, name: str | int) -> None:
        seat, raft = self.seats[int(name)], self.raft(name)
        role, commit, configuration = now = self.facts(raft)
        if role != seat.told[0]:
            self.say(f"{name} is {role}")
        if commit != seat.told[1]:
            self.say(f"{name} commits {commit}")
        if configuration != seat.told[2]:
            self.say(f"{name} goes by {configuration_text(raft.configuration)}")
        seat.told = now

    def do_show(self, *names: str) -> None:
        for name in names:
            raft = self.raft(name)
            self.say(
                f"{name}: {self.facts(raft)[0]}, voted for {raft.vote}, log {raft.first_index}.."
                f"{raft.last_index}, durable {raft.durable_index}, commit {raft.commit},"
                f" applied {raft.applied_handed}, {configuration_text(raft.configuration)}"
            )

    def do_log(self, *names: str) -> None:
        for name in names:
            raft = self.raft(name)
            terms = [
                f"{index}@{raft.snapshot_meta(index).term}"
                for index in range(raft.first_index, raft.last_index + 1)
            ]
            self.say(f"{name}: " + (" ".join(terms) or "empty"))

    def do_progress(self, name: str) -> None:
        for peer, each in self.raft(name).progress.items():
            waits = each.paused(
                self.settings.max_inflight_appends, self.settings.max_inflight_bytes
            )
            self.say(
                f"{name} sees {peer}: {each.state.value}, match {each.match_index},"
                f" next {each.next_index}, {each.inflight} in flight{', waits' if waits else ''}"
            )


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def configuration_text(configuration: Configuration) -> str:
    text = f"voters {list(configuration.voters)}"
    if configuration.outgoing:
        text += f" and {list(configuration.outgoing)}"
    if configuration.learners:
        text += f" learners {list(configuration.learners)}"
    return text


def entry_text(entry: Entry) -> str:
    if entry.configuration is not None:
        return f"{entry.index}@{entry.term}({configuration_text(entry.configuration)})"
    data = entry.data.decode()
    if len(data) > 20:
        data = f"{len(data)} bytes"
    return f"{entry.index}@{entry.term}" + (f"={data}" if data else "")


def saved(ready: Ready) -> str:
    parts = []
    if ready.snapshot is not None:
        parts.append(f"snapshot {ready.snapshot.index}@{ready.snapshot.term}")
    parts += map(entry_text, ready.entries)
    if ready.hard_state is not None:
        state = ready.hard_state
        parts.append(f"(term {state.term}, vote {state.vote}, commit {state.commit})")
    return " ".join(parts) or "nothing"


def message_text(message: Message) -> str:
    match message:
        case RequestVote():
            kind = "pre-vote" if message.pre else "vote"
            why = ", as its leader asked" if message.transfer else ""
            log = f"{message.last_index}@{message.last_term}"
            return f"{kind} for term {message.term}, log ends {log}{why}"
        case VoteReply():
            kind = "pre-vote" if message.pre else "vote"
            return f"{kind} {'granted' if message.granted else 'refused'} in term {message.term}"
        case Append():
            entries = " ".join(map(entry_text, message.entries)) or "nothing"
            after = f"{message.prev_index}@{message.prev_term}"
            return f"append {entries} after {after}, commit {message.commit}"
        case AppendReply(rejected=True):
            conflict = f"{message.conflict_index}@{message.conflict_term}"
            return f"rejects {message.match_index}, may agree at {conflict}, term {message.term}"
        case AppendReply():
            return f"accepts up to {message.match_index}"
        case Heartbeat() | HeartbeatReply():
            kind = "heartbeat" if isinstance(message, Heartbeat) else "heard"
            text = kind + (f" of round {message.round}" if message.round else "")
            return text + (f", commit {message.commit}" if isinstance(message, Heartbeat) else "")
        case TimeoutNow():
            return "stand for election now"
        case _:
            return repr(message)
