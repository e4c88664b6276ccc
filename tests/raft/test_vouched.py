"""Reads that a voter vouches for, in random clusters: none is older than what was committed when it
began, whoever is asked whenever; and without the vouch some would be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from actors.vouching import Vouching
from state_machines.wire import api_pb2 as api
from tests.raft.cluster import Cluster

SEEDS = 240
OPEN_MAX = 8
ASKED = api.QueryRequest(vouched=True)


@dataclass
class Read:
    """A read under way: `floor` was committed when it began. An answer is an index and what makes
    it good; a vouch is a replica and its term."""

    floor: int
    answers: list[tuple[int, api.Reply]] = field(default_factory=list)
    vouches: list[tuple[int, int]] = field(default_factory=list)


class Asked(Cluster):
    """A cluster whose clients ask leaders and voters for reads, each in a moment of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.open: list[Read] = []
        self.seen: Counter[str] = Counter()

    def use(self) -> None:
        super().use()
        leader = self.leader()
        if leader is not None and self.rng.random() < 0.03:  # nobody but clients hears it
            others = [member for member in self.nodes if member != leader.id]
            self.cut = {pair for each in others for pair in ((leader.id, each), (each, leader.id))}
        if len(self.open) < OPEN_MAX and self.rng.random() < 0.5:
            self.open.append(Read(max(self.committed, default=0)))
        for read in tuple(self.open):
            for member in self.up:
                if self.rng.random() < 0.3:
                    self.ask(read, member)
            if self.rng.random() < 0.2:
                self.end(read)

    def ask(self, read: Read, member: int) -> None:
        node, raft = self.nodes[member], self.raft(member)
        if raft.leader == member:
            applied = raft.snapshot_meta(node.applied)
            said = Vouching(raft).partners(ASKED, applied.term)
            if said:
                read.answers.append((raft.commit, api.Reply.FromString(said)))
        read.vouches.append((member, raft.term))

    def end(self, read: Read) -> None:
        self.open.remove(read)
        for index, answer in read.answers:
            partners = [each for each in read.vouches if each[0] in answer.partners]
            holds = any(term <= answer.term for _, term in partners)
            assert not holds or index >= read.floor, (
                f"a read of term {answer.term} at {index}, where {read.floor} was committed before"
            )
            self.seen["held" if holds else "fresh without" if index >= read.floor else "stale"] += 1


def test_a_vouched_read_is_never_older_than_its_question() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        cluster = Asked(seed)
        try:
            cluster.run(steps=200)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen.update(cluster.seen)
    assert seen["held"] > 1_000
    assert seen["stale"] > 0, "some answers were old, and nobody vouched for them"
