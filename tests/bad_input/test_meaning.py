"""Well-formed input that could be misread: what it means is fixed here."""

from __future__ import annotations

import pytest

from state_machines.errors import Invalid
from state_machines.metadata.kv import GetKv, KvPage, PutKv, RangeKv
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.offset.offset import CommitOffsets, FetchOffsets, OffsetCommit
from state_machines.raft.confchange import Change
from tests.bad_input.replica import ROLES
from tests.bad_input.values import TEXTS, TWINS
from tests.machine.alone import Group


def test_two_spellings_of_a_letter_are_two_names() -> None:
    """Names are bytes: nothing normalises them."""
    group = Group("metadata")
    for number, each in enumerate(TWINS):
        group.run(PutKv(key=each, value=b"%d" % number))
    page = group.ask(RangeKv())
    assert isinstance(page, KvPage)
    assert sorted(each.key for each in page.entries) == sorted(TWINS)
    mqtt = Group("mqtt")
    epochs = {mqtt.run(OpenSession(client_id=each, broker="b", expiry_s=9)).epoch for each in TWINS}
    assert len(epochs) == 2


def test_no_name_reaches_another_row() -> None:
    """Dots, slashes and reserved prefixes are letters like any other."""
    group, offsets, mqtt = Group("metadata"), Group("offset"), Group("mqtt")
    names = [each for each in TEXTS if each and "\0" not in each]
    for each in names:
        group.run(PutKv(key=each, value=each.encode()))
        offsets.run(
            CommitOffsets.of([OffsetCommit(group=each, topic=each, partition=0, offset=len(each))])
        )
        mqtt.run(OpenSession(client_id=each, broker=each, expiry_s=9))
    for each in names:
        assert group.ask(GetKv(key=each)).value == each.encode()
        (row,) = offsets.ask(FetchOffsets(group=each))
        assert (row.topic, row.offset) == (each, len(each))
        assert mqtt.ask(GetSession(client_id=each)).broker == each
    assert len(group.ask(RangeKv(limit=1_000)).entries) == len(names)


def test_an_offset_may_go_back_and_every_commit_counts() -> None:
    group = Group("offset")
    for offset in (9, 2, 2**63 - 1, 0):
        group.run(
            CommitOffsets.of([OffsetCommit(group="g", topic="t", partition=0, offset=offset)])
        )
    (row,) = group.ask(FetchOffsets(group="g"))
    assert (row.offset, row.commits) == (0, 4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Change(), "names nobody"),
        (Change(remove=(1, 2, 3)), "last voter"),
        (Change(remove=(8,)), "not a member"),
        (Change(add_voters=(8,)), "learner first"),
        (Change(add_voters=(2,)), "voter already"),
        (Change(add_learners=(4,)), "member already"),
        (Change(add_learners=(0,)), "replica id 0"),
        (Change(add_learners=(-1,)), "replica id -1"),
        (Change(add_learners=(2**63,)), "replica id"),
        (Change(add_learners=(8, 8)), "named twice"),
        (Change(add_learners=(8,), remove=(8,)), "named twice"),
    ],
)
def test_a_membership_that_makes_no_sense_is_refused(change: Change, says: str) -> None:
    leader = ROLES["serving"]()
    before = (leader.core.last_index, leader.core.configuration)
    with pytest.raises(Invalid, match=says):
        leader.told(lambda core: core.change(change))
    assert (leader.core.last_index, leader.core.configuration) == before


@pytest.mark.parametrize("target", [1, 4, 9, 8, 0, -1, 2**63])
def test_leadership_goes_to_another_voter_or_nowhere(target: int) -> None:
    leader = ROLES["serving"]()
    with pytest.raises(Invalid, match="target: "):
        leader.told(lambda core: core.transfer(target))
    leader.told(lambda core: core.propose(b"goes on"))
