"""Who leads a segment and who is in sync: nothing acknowledged is lost by a change of either."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from actors.planners.engine import plan_failover, plan_leader_rebalance
from state_machines.errors import Conflict, Fenced, NotFound
from state_machines.metadata.leadership import ChangeLeaders, IsrChange, LeaderChange, UpdateIsr
from state_machines.metadata.node import HeartbeatNode, ListNodes
from state_machines.metadata.segment import DeleteSegments
from state_machines.metadata.segment_queries import LeaderlessSegments, StrayedSegments
from state_machines.metadata.segments import (
    PRE_SEAL,
    REPLICAS_MAX,
    SEALED,
    SEGMENTS_MAX,
    UNAVAILABLE,
    WRITE,
    Segment,
)
from tests.entities.engine import Engine, check_index, one


@pytest.fixture
def group() -> Engine:
    made = Engine("n1", "n2", "n3")
    made.shard("s", "n1", "n2", "n3")
    return made


def leaderless(group: Engine) -> list[int]:
    return [each.sequence for each in group.ask(LeaderlessSegments())]


def strayed(group: Engine) -> list[int]:
    return [each.sequence for each in group.ask(StrayedSegments())]


# -- the ISR ------------------------------------------------------------------------------------


def test_the_leader_says_who_is_in_sync(group: Engine) -> None:
    assert group.isr("n1", "n2").ok
    found = group.segment()
    assert (found.isr, found.segment_epoch, found.leader_epoch) == (("n1", "n2"), 1, 0)
    assert group.isr("n3", "n1").ok
    assert group.segment().isr == ("n3", "n1")
    assert group.segment().segment_epoch == 2


def test_who_does_not_lead_says_nothing(group: Engine) -> None:
    item = IsrChange(**group.place(), segment_epoch=0, isr=("n2",))
    refused = group.by("n2", UpdateIsr, item)
    assert (refused.code, refused.detail) == ("FENCED", "node_id: 'n2' does not lead, 'n1' does")


def test_an_old_leader_epoch_is_fenced(group: Engine) -> None:
    item = IsrChange(**group.place(), segment_epoch=2, isr=("n1",))
    group.lead("n2")
    group.lead("n1")
    refused = group.by("n1", UpdateIsr, item)
    assert (refused.code, refused.detail) == ("FENCED", "leader_epoch: 0, in force is 2")


def test_an_old_broker_epoch_is_fenced(group: Engine) -> None:
    """Also the new epoch of a leader that was chosen under the old one: it may not remember."""
    group.up("n1")
    item = IsrChange(**group.place(), segment_epoch=0, isr=("n1",))
    with group.refuses(Fenced, "broker_epoch: 1, in force is 2"):
        group.run(UpdateIsr(node_id="n1", broker_epoch=1, items=(item,)))
    refused = group.by("n1", UpdateIsr, item)
    assert refused.detail == "broker_epoch: 2, the leader was chosen at 1"
    group.leave("n1")
    with group.refuses(NotFound, "node_id: 'n1' is not registered"):
        group.run(UpdateIsr(node_id="n1", broker_epoch=2, items=(item,)))


def test_of_two_changes_from_one_segment_epoch_only_the_first_happens(group: Engine) -> None:
    first = IsrChange(**group.place(), segment_epoch=0, isr=("n1", "n2"))
    second = IsrChange(**group.place(), segment_epoch=0, isr=("n1", "n3"))
    outcomes = group.run(UpdateIsr(node_id="n1", broker_epoch=1, items=(first, second)))
    assert [each.code for each in outcomes] == ["OK", "CONFLICT"]
    assert outcomes[1].detail == "segment_epoch: 0, the segment is at 1"
    assert group.segment().isr == ("n1", "n2")


def test_an_isr_has_its_leader_and_replicas_only(group: Engine) -> None:
    refused = group.isr("n2", "n3")
    assert (refused.code, refused.detail) == ("INVALID", "isr: without its leader 'n1'")
    group.up("n4")
    refused = group.isr("n1", "n4")
    assert (refused.code, refused.detail) == ("INVALID", "isr: 'n4' is no replica")


def test_who_joins_is_online_and_who_is_in_may_stay(group: Engine) -> None:
    group.isr("n1", "n2")
    group.down("n2", "n3")
    assert group.isr("n1", "n2").ok
    refused = group.isr("n1", "n2", "n3")
    assert (refused.code, refused.detail) == ("CONFLICT", "isr: 'n3' is not online")


def test_who_registered_again_since_the_leader_heard_of_it_does_not_join(group: Engine) -> None:
    group.isr("n1")
    group.up("n2")
    refused = group.isr("n1", "n2", isr_epochs=(1, 1))
    assert (refused.code, refused.detail) == ("FENCED", "isr_epochs: 'n2' is not at 1 any more")
    assert group.isr("n1", "n2", isr_epochs=(1, 2)).ok


def test_a_leader_that_is_offline_leaves_nobody_out(group: Engine) -> None:
    """It shrank the ISR to itself before the controller came, and then nobody could lead."""
    group.down("n1")
    with group.refuses(Conflict, "^node_id: 'n1' is offline until its next heartbeat$"):
        group.isr("n1")
    group.run(HeartbeatNode(node_id="n1", epoch=1))
    assert group.isr("n1", "n2").ok


def test_a_segment_on_its_way_out_has_no_isr(group: Engine) -> None:
    group.roll(1)
    group.seal()
    item = IsrChange(**group.place(), segment_epoch=0, isr=("n1",))
    one(group.run(DeleteSegments(items=(group.name(),))))
    assert group.by("n1", UpdateIsr, item).detail == "status: segment 0 is prepare_delete"
    assert group.lead("n2").detail == "status: segment 0 is prepare_delete"


# -- the leader ---------------------------------------------------------------------------------


def test_a_dead_leader_is_followed_by_one_of_the_isr(group: Engine) -> None:
    group.isr("n1", "n3")
    group.down("n1")
    assert leaderless(group) == [0]
    assert group.lead("n2").detail == "leader: 'n2' is not in sync"
    assert group.lead("n1").detail == "leader: 'n1' is not online"
    assert group.lead("").detail == "leader: 'n3' is in sync and online"
    assert group.lead("n3").ok
    found = group.segment()
    assert (found.leader, found.isr, found.leader_epoch, found.segment_epoch) == (
        *("n3", ("n3",)),
        *(1, 2),
    )
    assert leaderless(group) == []
    check_index(group.store)


def test_without_anybody_in_sync_it_is_unavailable_until_one_of_the_last_isr_is_back(
    group: Engine,
) -> None:
    group.isr("n1", "n3")
    group.down("n1", "n3")
    assert group.lead("").ok
    found = group.segment()
    assert (found.status, found.leader, found.isr) == (UNAVAILABLE, "", ())
    assert found.last_known_isr == ("n1", "n3")
    assert leaderless(group) == []
    assert group.lead("").detail == "status: segment 0 is unavailable"
    assert group.lead("n2").detail == "leader: 'n2' is not in sync", "it lacks what they agreed on"
    group.up("n3")
    assert leaderless(group) == [0]
    assert group.lead("n3").ok
    found = group.segment()
    assert (found.status, found.leader, found.isr, found.last_known_isr) == (
        *(WRITE, "n3"),
        *(("n3",), ()),
    )
    check_index(group.store)


@pytest.mark.parametrize("status", [PRE_SEAL, SEALED])
def test_what_comes_back_is_what_it_was(group: Engine, status: str) -> None:
    group.roll(10)
    if status == SEALED:
        group.seal()
    group.down("n1", "n2", "n3")
    group.lead("")
    assert group.segment().status == UNAVAILABLE
    group.up("n2")
    group.lead("n2")
    assert group.segment().status == status


def test_a_broker_that_registers_again_is_another(group: Engine) -> None:
    """It is online all the time, so nobody expires it; what it led is led anew all the same."""
    group.shard("alone", "n1")
    group.up("n1")
    found = group.ask(LeaderlessSegments())
    assert [each.shard for each in found] == ["s", "alone"], "the shorter name first"
    change = plan_failover(found, {"n1": 2, "n2": 1, "n3": 1})
    group.run(ChangeLeaders(controller_epoch=1, items=tuple(change)))
    again = group.segment(shard="alone")
    assert (again.leader, again.leader_epoch, again.leader_broker_epoch) == ("n1", 1, 2)
    assert leaderless(group) == []


def test_a_leader_that_registered_again_is_in_sync_only_if_it_leads(group: Engine) -> None:
    """Its disk may be empty: it was made leader again over those that had everything."""
    group.up("n1")
    (change,) = plan_failover(group.ask(LeaderlessSegments()), {"n1": 2, "n2": 1, "n3": 1})
    one(group.run(ChangeLeaders(controller_epoch=1, items=(change,))))
    assert (group.segment().leader, group.segment().isr) == ("n2", ("n2", "n3"))
    assert group.isr("n1", "n2", "n3", isr_epochs=(2, 1, 1)).ok, "it has caught up"
    group.up("n2")
    group.down("n1", "n3")
    assert group.lead("").detail == "leader: 'n2' is in sync and online"
    assert group.lead("n2").ok
    assert (group.segment().leader_broker_epoch, group.segment().isr) == (2, ("n2",))


def test_a_leader_that_goes_while_it_lives_stays_in_sync(group: Engine) -> None:
    assert group.lead("n2").ok
    assert group.segment().isr == ("n1", "n2", "n3")
    group.up("n3")
    assert group.lead("n1").ok
    assert group.segment().isr == ("n1", "n2", "n3"), "of followers no epoch is kept"


def test_what_an_unregistered_broker_led_is_found(group: Engine) -> None:
    group.leave("n1")
    assert leaderless(group) == [0]
    assert group.lead("n2").ok
    assert group.segment().isr == ("n2", "n3")


def test_a_plan_from_an_old_leader_epoch_is_void(group: Engine) -> None:
    group.lead("n2")
    refused = group.lead("n3", leader_epoch=0)
    assert (refused.code, refused.detail) == ("CONFLICT", "leader_epoch: 0, the segment is at 1")


def test_an_old_controller_is_fenced(group: Engine) -> None:
    """Reference defect 15: two controllers may live at once; the older one moves no leader."""
    item = LeaderChange(**group.place(), leader="n2")
    group.run(ChangeLeaders(controller_epoch=7, items=(item,)))
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        group.run(ChangeLeaders(controller_epoch=6, items=(item,)))


def test_strayed_is_who_could_be_led_by_its_preferred_leader(group: Engine) -> None:
    assert strayed(group) == []
    group.lead("n2")
    assert strayed(group) == [0]
    group.isr("n2", "n3")
    assert strayed(group) == [], "its preferred leader is not in sync"
    group.isr("n1", "n2", "n3")
    group.down("n1")
    assert strayed(group) == [], "and not online"
    group.up("n1")
    (change,) = plan_leader_rebalance(group.ask(StrayedSegments()), {"n1"})
    one(group.run(ChangeLeaders(controller_epoch=1, items=(change,))))
    assert (group.segment().leader, strayed(group)) == ("n1", [])
    assert group.segment().isr == ("n1", "n2", "n3")


# -- a fleet ------------------------------------------------------------------------------------


@dataclass
class Copy:
    """What a broker has of a segment: records, as numbers."""

    records: list[int] = field(default_factory=list)


class Fleet:
    """Brokers that write, die and come back while a controller looks on, late and twice."""

    def __init__(self, seed: int) -> None:
        self.luck = Random(seed)
        self.nodes = ("n1", "n2", "n3", "n4")
        self.group = Engine(*self.nodes)
        self.dead: set[str] = set()
        self.group.shard("s", "n1", "n2", "n3")
        self.copies = {node: Copy() for node in self.nodes}
        self.acknowledged: list[int] = []
        self.led: dict[int, str] = {}
        self.next = 0
        self.plans: list[tuple[LeaderChange, ...]] = []

    def step(self) -> None:
        """Something happens."""
        self.luck.choice(
            (
                self.write,
                self.write,
                self.shrink,
                self.join,
                self.die,
                self.come,
                self.look,
                self.look,
            )
        )()
        self.check()

    def speaker(self, segment: Segment) -> bool:
        """Whether its leader can do something."""
        return bool(segment.leader) and segment.leader not in self.dead

    def write(self) -> None:
        """The leader writes a record; it is acknowledged when all in sync have it."""
        segment = self.group.segment()
        if not self.speaker(segment):
            return
        self.copies[segment.leader].records.append(self.next)
        self.next += 1
        if self.luck.random() < 0.5 or self.dead & set(segment.isr):
            return  # nobody has fetched it yet
        log = self.copies[segment.leader].records
        for node in segment.isr:
            self.copies[node].records = list(log)
        self.acknowledged = list(log)

    def shrink(self) -> None:
        """The leader finds that those who died do not fetch."""
        segment = self.group.segment()
        if self.speaker(segment):
            alive = [each for each in segment.isr if each not in self.dead]
            if self.group.isr(*alive).ok:
                self.acknowledged = self.common(alive)

    def join(self) -> None:
        """A follower has caught up."""
        segment = self.group.segment()
        if not self.speaker(segment):
            return
        node = self.luck.choice(segment.replicas)
        if node not in self.dead:
            self.copies[node].records = list(self.copies[segment.leader].records)
            self.group.isr(*dict.fromkeys((*segment.isr, node)))

    def common(self, nodes: list[str]) -> list[int]:
        logs = [self.copies[node].records for node in nodes]
        size = min(len(log) for log in logs)
        return max((self.acknowledged, logs[0][:size]), key=len)

    def die(self) -> None:
        """Some fall silent, or come back before anyone has noticed."""
        node = self.luck.choice(self.nodes)
        self.dead.add(node)
        if self.luck.random() < 0.7:
            self.group.down(*self.dead)

    def come(self) -> None:
        """One registers again, with what it had."""
        if self.dead:
            node = self.luck.choice(sorted(self.dead))
            self.dead.discard(node)
            self.group.up(node)

    def look(self) -> None:
        """A controller plans; an earlier plan may be carried out late."""
        nodes = self.group.ask(ListNodes()).nodes
        live = {each.node_id: each.epoch for each in nodes if each.online}
        changes = plan_failover(self.group.ask(LeaderlessSegments()), live)
        changes += plan_leader_rebalance(self.group.ask(StrayedSegments()), live)
        self.plans.append(tuple(changes))
        plan = self.luck.choice((self.plans[-1], self.luck.choice(self.plans)))
        if not plan:
            return
        before = self.group.segment()
        self.group.run(ChangeLeaders(controller_epoch=1, items=plan))
        segment = self.group.segment()
        if segment.leader and segment.leader_epoch != before.leader_epoch:
            for node in segment.isr:  # followers take the leader's log over
                if node not in self.dead:
                    self.copies[node].records = list(self.copies[segment.leader].records)

    def check(self) -> None:
        """One leader an epoch, in sync; and it has all that was acknowledged."""
        segment = self.group.segment()
        check_index(self.group.store)
        able = segment.isr or segment.last_known_isr
        assert able
        for node in able:
            mine = self.copies[node].records
            assert mine[: len(self.acknowledged)] == self.acknowledged, (node, segment)
        if segment.leader:
            assert segment.leader in segment.isr
            assert self.led.setdefault(segment.leader_epoch, segment.leader) == segment.leader


@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    fleet = Fleet(seed)
    for _ in range(120):
        fleet.step()
    for _ in range(len(fleet.dead)):
        fleet.come()
    fleet.luck = Random(0)
    fleet.plans = []
    fleet.look()
    fleet.check()
    assert fleet.group.segment().leader, "with everybody back somebody leads"
    assert fleet.acknowledged or fleet.next == 0


# -- limits -------------------------------------------------------------------------------------

PLACE: dict[str, Any] = {"shard": "s", "sequence": 0, "uid": 1, "leader_epoch": 0}


def isr(**changes: Any) -> UpdateIsr:
    item = IsrChange(**{**PLACE, "segment_epoch": 0, "isr": ("n1",), **changes})
    return UpdateIsr(node_id="n1", broker_epoch=1, items=(item,))


def leader(**changes: Any) -> ChangeLeaders:
    item = LeaderChange(**{**PLACE, "leader": "n1", **changes})
    return ChangeLeaders(controller_epoch=1, items=(item,))


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (isr(isr=()), "items.isr"),
        (isr(isr=("n1", "n1")), "items.isr"),
        (isr(isr=("",)), "items.isr"),
        (isr(isr=tuple([f"n{each}" for each in range(REPLICAS_MAX + 1)])), "items.isr"),
        (isr(isr_epochs=(1, 2)), "items.isr_epochs"),
        (isr(shard=""), "items.shard"),
        (isr(sequence=-1), "items.sequence"),
        (UpdateIsr(node_id="", broker_epoch=1, items=()), "node_id"),
        (UpdateIsr(node_id="n", broker_epoch=1, items=()), "items"),
        (leader(leader="n" * 257), "items.leader"),
        (leader(uid=-1), "items.uid"),
        (ChangeLeaders(controller_epoch=0, items=()), "controller_epoch"),
        (ChangeLeaders(controller_epoch=1, items=()), "items"),
        (
            ChangeLeaders(controller_epoch=1, items=leader().items * (SEGMENTS_MAX + 1)),
            "items",
        ),
    ],
)
def test_limits(group: Engine, operation: Any, field: str) -> None:
    group.beyond(operation, field)
