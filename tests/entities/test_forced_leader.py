"""An operator's way out: who was not in sync leads a segment whose last ISR will not be back."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.errors import Conflict, Fenced, Invalid, NotFound, Rejected
from state_machines.metadata.leadership import ForceLeader
from state_machines.metadata.segment import DeleteSegments
from state_machines.metadata.segments import PRE_SEAL, SEALED, SEQUENCE_MAX, UNAVAILABLE, WRITE
from tests.entities.engine import Engine, check_index, one


@pytest.fixture
def group() -> Engine:
    made = Engine("n1", "n2", "n3")
    made.shard("s", "n1", "n2", "n3")
    return made


def force(group: Engine, leader: str, **changes: Any) -> ForceLeader:
    return ForceLeader(**{**group.place(), **changes}, leader=leader)


def give_up(group: Engine, *last: str) -> None:
    """The last in sync are silent for good."""
    group.isr(*last)
    group.down(*last)
    assert group.lead("").ok


def test_a_replica_that_was_not_in_sync_leads_when_an_operator_says_so(group: Engine) -> None:
    give_up(group, "n1")
    before = group.segment()
    assert group.lead("n2").code == "CONFLICT", "the controller never does"
    found = group.run(force(group, "n2"))
    assert found == group.segment()
    assert (found.status, found.leader, found.isr, found.last_known_isr) == (
        *(WRITE, "n2"),
        *(("n2",), ()),
    )
    assert found.leader_epoch == before.leader_epoch + 1
    assert found.segment_epoch == before.segment_epoch + 1
    check_index(group.store)
    group.up("n1")
    assert group.isr("n2", "n1").ok, "it leads as any leader does"
    with group.refuses(Conflict, "status: segment 0 is write"):
        group.run(force(group, "n3"))


@pytest.mark.parametrize("status", [PRE_SEAL, SEALED])
def test_retention_goes_on_behind_a_segment_that_was_given_up(group: Engine, status: str) -> None:
    group.roll(5)
    if status == SEALED:
        group.seal()
    give_up(group, "n1")
    assert group.segment().status == UNAVAILABLE
    assert group.run(force(group, "n2")).status == status
    assert group.seal().ok
    one(group.run(DeleteSegments(items=(group.name(),))))


def test_who_was_in_sync_and_is_online_comes_first(group: Engine) -> None:
    give_up(group, "n1", "n2")
    group.up("n2")
    with group.refuses(Conflict, "leader: 'n2' was in sync and is online"):
        group.run(force(group, "n3"))
    assert group.run(force(group, "n2")).isr == ("n2",), "as the controller would"


@pytest.mark.parametrize(
    ("error", "says", "leader", "changes"),
    [
        (Conflict, "leader: 'n1' is not online", "n1", {}),
        (Invalid, "leader: 'n4' is no replica", "n4", {}),
        (Conflict, "leader_epoch: 0, the segment is at 1", "n2", {"leader_epoch": 0}),
        (NotFound, "sequence: 's' has no segment 7", "n2", {"sequence": 7}),
        (Fenced, "uid: 1, the shard of this name has", "n2", {"uid": 1}),
    ],
)
def test_who_cannot_be_forced(
    group: Engine, error: type[Rejected], says: str, leader: str, changes: dict[str, Any]
) -> None:
    group.up("n4")
    give_up(group, "n1")
    with group.refuses(error, says):
        group.run(force(group, leader, **changes))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("tenant", ""),
        ("shard", ""),
        ("sequence", SEQUENCE_MAX + 1),
        ("uid", -1),
        ("leader_epoch", -1),
        ("leader", ""),
    ],
)
def test_what_passes_a_limit_is_named(group: Engine, field: str, wrong: Any) -> None:
    fields = {**group.place(), "leader": "n2", field: wrong}
    group.beyond(ForceLeader(**fields), field)
