"""Watches of the real machine's changes keep every guarantee; no breach of one is missed."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from actors import watches
from actors.config import RaftSettings
from state_machines.metadata.kv import KV, PutKv
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
from tests.history.watch_story import Watch, story, watch_stories
from tests.machine.alone import Group

SEEDS = 12


def test_watchers_of_the_real_past_are_told_everything_and_a_breach_is_found() -> None:
    figures = watch_stories(range(SEEDS))
    assert figures["watch_events"] > 50 * SEEDS
    assert figures["watch_breaches"] > 2 * SEEDS


def test_what_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "DEFAULTS", RaftSettings(history_changes=10))
    refused = 0
    for seed in range(SEEDS):
        told = story(seed)
        assert check(told.watches, told.committed) == []
        refused += sum(isinstance(each, Compaction) for watch in told.watches for each in watch)
    assert refused > SEEDS


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
