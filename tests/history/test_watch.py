"""Watches of the real machine's changes keep every guarantee; no breach of one is missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import msgpack
import pytest

from actors import watches
from actors.watches import History
from state_machines.errors import Compacted
from state_machines.metadata.kv import KV, DeleteKv, PutKv
from state_machines.wire import api_pb2 as api
from tests.history.watch import (
    GUARANTEES,
    Compaction,
    Delivery,
    Event,
    check,
    delivery,
    stream,
)
from tests.machine.alone import Group

SEEDS = 12
ENTRIES = 60
Watch = list[Delivery | Compaction]


class Story:
    """A group, its recent past, and watchers who poll it whenever they like."""

    def __init__(self, seed: int) -> None:
        self.luck = Random(seed)
        self.group = Group("metadata")
        self.past = History(self.group.index)
        self.committed: list[Event] = []
        self.watches: list[Watch] = [[] for _ in range(4)]
        self._at = [self.group.index] * 4

    def run(self) -> None:
        for number in range(ENTRIES):
            self.entry(number)
            for watcher in range(4):
                if self.luck.random() < 0.4:
                    self.poll(watcher)

    def entry(self, number: int) -> None:
        """A few pairs change, now and then none."""
        luck = self.luck
        keys = [luck.choice("abc") for _ in range(luck.randrange(4))]
        self.group.together(
            *(
                DeleteKv(key=key) if luck.random() < 0.3 else PutKv(key=key, value=b"%d" % number)
                for key in keys or ["x"]
            )
        )
        changes = self.group.machine.take_changes()
        self.committed += [
            Event(self.group.index, str(key[-1]), None if row is None else KV.decode(row)[0].value)
            for table, key, row in changes
            if table == KV.name
        ]
        self.past.add(self.group.index, changes)
        self.past.applied(self.group.index)

    def poll(self, watcher: int) -> None:
        """Ask for what came after, go back a little, or find that it is gone."""
        after = self._at[watcher]
        if self.luck.random() < 0.1:
            after = max(0, after - self.luck.randrange(5))
        try:
            found, upto = self.past.after(after, [KV.name], self.luck.randrange(1, 5))
        except Compacted:
            self.watches[watcher].append(Compaction(after))
            self._at[watcher] = self.past.revision
            self.watches.append(self.watches[watcher])
            self.watches[watcher] = []  # whoever was refused begins anew
            return
        reply = api.Reply(revision=max(upto, after), changes=found)
        self.watches[watcher].append(delivery(after, reply, KV))
        self._at[watcher] = reply.revision


def story(seed: int) -> Story:
    told = Story(seed)
    told.run()
    return told


@pytest.mark.parametrize("seed", range(SEEDS))
def test_watchers_of_the_real_past_are_told_everything(seed: int) -> None:
    told = story(seed)
    assert check(told.watches, told.committed) == []
    assert sum(len(each.events) for watch in told.watches for each in deliveries(watch)) > 50


def test_what_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "CHANGES_MAX", 10)
    refused = 0
    for seed in range(SEEDS):
        told = story(seed)
        assert check(told.watches, told.committed) == []
        refused += sum(isinstance(each, Compaction) for watch in told.watches for each in watch)
    assert refused > SEEDS


def deliveries(watch: Sequence[Delivery | Compaction]) -> list[Delivery]:
    return [each for each in watch if isinstance(each, Delivery)]


COMMITTED = [
    Event(5, "a", 1),
    Event(6, "b", 2),
    Event(6, "c", 2),
    Event(9, "a", None),
    Event(12, "b", 3),
]
TOLD = Delivery(4, 10, tuple(COMMITTED[:4]))


def events(*places: int) -> tuple[Event, ...]:
    return tuple(COMMITTED[place] for place in places)


BREACHES: dict[str, list[Watch]] = {
    "ordered": [
        [replace(TOLD, events=events(1, 2, 0, 3))],
        [replace(TOLD, events=events(0, 2, 1, 3))],
    ],
    "unique": [[replace(TOLD, events=events(0, 1, 1, 2, 3))]],
    "reliable": [
        [replace(TOLD, events=events(0, 1, 2))],
        [replace(TOLD, events=())],
        [replace(TOLD, upto=12)],
        [Delivery(4, 9, events(0, 1, 2, 3)), Delivery(9, 12, ())],
    ],
    "atomic": [
        [replace(TOLD, events=events(0, 1, 3))],
        [Delivery(4, 6, events(0, 1)), Delivery(6, 9, events(3))],
    ],
    "resumable": [
        [Delivery(5, 10, events(0, 1, 2, 3))],
        [Delivery(4, 5, events(0)), Delivery(6, 9, events(3))],
    ],
    "bookmarkable": [
        [Delivery(4, 8, events(0, 1, 2, 3))],
        [Delivery(4, 3, ())],
    ],
    "compacted": [[Compaction(12)], [TOLD, Compaction(20)]],
    "true": [
        [replace(TOLD, events=(*events(0, 1, 2), Event(9, "a", 7)))],
        [replace(TOLD, events=(*events(0, 1, 2, 3), Event(10, "z", 1)))],
        [replace(TOLD, events=(Event(5, "a", 2), *events(1, 2, 3)))],
    ],
}


def test_each_guarantee_has_its_breach() -> None:
    assert set(BREACHES) == set(GUARANTEES)
    fine = [TOLD, Delivery(10, 12, events(4)), Delivery(12, 12, ()), Delivery(4, 5, events(0))]
    assert check([fine, [Compaction(8)]], COMMITTED) == []


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_breach_is_called_by_its_name(guarantee: str) -> None:
    for breach in BREACHES[guarantee]:
        found = check([breach], COMMITTED)
        assert guarantee in {each.guarantee for each in found}, f"{breach}: {found}"
        assert str(found[0]).startswith("watch 0: not ")


def test_a_breach_in_any_long_watch_is_found() -> None:
    found = 0
    for seed in range(SEEDS):
        told = story(seed)
        luck = Random(seed)
        for watch in told.watches:
            full = [each for each in deliveries(watch) if each.events]
            if not full:
                continue
            each = luck.choice(full)
            place = watch.index(each)
            gone = luck.randrange(len(each.events))
            watch[place] = replace(each, events=each.events[:gone] + each.events[gone + 1 :])
            assert check([watch], told.committed), f"seed {seed}: {each} without its {gone}th"
            found += 1
            watch[place] = each
    assert found > 2 * SEEDS


def test_a_write_in_doubt_may_be_told_of_once_and_to_everyone() -> None:
    maybe = Event(7, "a", 9)
    told = Delivery(4, 10, (*events(0, 1, 2), maybe, *events(3)))
    doubt = [("a", 9)]
    assert check([[told], [told]], COMMITTED, possible=doubt) == []
    assert check([[TOLD], [TOLD]], COMMITTED, possible=doubt) == []
    assert {x.guarantee for x in check([[told]], COMMITTED)} == {"true"}
    some = check([[told], [TOLD]], COMMITTED, possible=doubt)
    assert [(each.guarantee, each.watch) for each in some] == [("reliable", 1)]
    together = Delivery(4, 6, (events(0)[0], Event(6, "a", 9), *events(1, 2)))
    assert check([[together]], COMMITTED, possible=doubt) == []
    twice = replace(told, events=(*told.events, replace(maybe, revision=10)))
    assert "true" in {each.guarantee for each in check([[twice]], COMMITTED, possible=doubt)}


def test_changes_heard_one_by_one_are_a_watch_that_may_end_within_a_revision() -> None:
    assert check([stream(4, COMMITTED)], COMMITTED) == []
    assert check([stream(4, COMMITTED[:2])], COMMITTED) == [], "the rest was still to come"
    assert stream(4, []) == []
    lost = check([stream(4, events(0, 1, 3, 4))], COMMITTED)
    assert [each.guarantee for each in lost] == ["atomic"]
    lost = check([stream(4, events(0, 3, 4))], COMMITTED)
    assert [each.guarantee for each in lost] == ["reliable", "reliable"]


def test_a_reply_is_read_as_it_came() -> None:
    group = Group("metadata")
    group.run(PutKv(key="k", value=b"v"))
    ((table, key, row),) = group.machine.take_changes()
    change = api.Change(revision=2, table=table, key=msgpack.packb(key), row=row or b"")
    gone = api.Change(revision=3, table=table, key=msgpack.packb(key))
    found = delivery(1, api.Reply(revision=4, changes=[change, gone]), KV)
    assert found == Delivery(1, 4, (Event(2, "k", b"v"), Event(3, "k", None)))
