"""Learners in a group of real seats, filled by the controller's own duty: never a vote, never one
that counts, never promoted; and whatever becomes of them, writes go on."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from actors import calls
from actors.caller import Caller
from actors.calls import LinkedGroups
from actors.clock import SystemClock
from actors.config import LEARNERS_MAX
from actors.duties.duty import Context
from actors.duties.repair import Repair
from actors.metrics import learners_of
from actors.seat import Seat
from actors.seat_names import group_of, is_learner, learner_seats, learners_among, voter_seats
from state_machines.errors import Conflict, Invalid, NoQuorum, Unknown
from state_machines.metadata.kv import GetKv, PutKv, RangeKv
from state_machines.raft.confchange import Change
from state_machines.raft.messages import Configuration
from tests.actors.wires import QUICK, Group, eventually, in_loop, running

LEARNER = "metadata-0/learner-0"


class Steps:
    """The controller's repair, a step at a time."""

    def __init__(self, group: Group, caller: Caller) -> None:
        self._repair = Repair()
        self._context = Context(
            epoch=1,
            caller=caller,
            groups=cast(Any, group.wires),
            calls=group.wires.from_seat("controller"),
            settings=QUICK,
            clock=SystemClock(),
        )

    async def until(self, look: Any) -> Any:
        """Step until it is so; what `look` returns then."""
        async with asyncio.timeout(30):
            while not (seen := look()):
                with suppress(Conflict):  # a change that has to wait is tried again
                    await self._repair.step(self._context)
                await asyncio.sleep(0.01)
        return seen

    async def idle(self, steps: int = 10) -> int:
        """That many steps; how much was done in them."""
        done = 0
        for _ in range(steps):
            done += await self._repair.step(self._context)
            await asyncio.sleep(0.01)
        return done


def core_of(seat: Seat) -> Any:
    assert seat.replica is not None
    return seat.replica.core


async def rows_at(seat: Seat) -> list[tuple[Any, ...]]:
    """All rows of the key-value table as this seat's replica has applied them."""
    assert seat.replica is not None
    view = await seat.replica.cut()
    try:
        return list(view.scan("metadata.kv"))
    finally:
        view.close()


@asynccontextmanager
async def with_learner(
    root: Path, replicas: int = 3
) -> AsyncIterator[tuple[Group, Caller, Steps, Seat]]:
    """A group whose learner has joined."""
    group = Group(root, replicas=replicas, learners=1)
    async with running(group) as (_, caller):
        await caller.call(PutKv(key="first", value=b"v"))
        learner = await group.sit(LEARNER)
        assert learner.status()["role"] == "vacant"
        steps = Steps(group, caller)
        leader = core_of(await group.leader())
        await steps.until(
            lambda: learner.replica and learner.replica.applied.index >= leader.commit > 0
        )
        yield group, caller, steps, learner


def has_learner(seat: Seat, replica: int) -> bool:
    """Whether the replica is a member without a vote, as this seat knows."""
    configuration: Configuration = core_of(seat).configuration
    return replica in configuration.learners and replica not in configuration.voters


@in_loop
async def test_a_learner_has_the_rows_and_no_vote(tmp_path: Path) -> None:
    async with with_learner(tmp_path) as (group, caller, steps, learner):
        for number in range(50):
            await caller.call(PutKv(key=f"k{number:02}", value=b"v"))
        leader = await group.leader()
        commit = core_of(leader).commit
        await eventually(lambda: learner.replica and learner.replica.applied.index >= commit)
        assert await rows_at(learner) == await rows_at(leader)
        status = learner.status()
        assert (status["role"], status["seat"]) == ("learner", LEARNER)
        assert repr(learner).endswith(" learner")
        assert has_learner(leader, status["replica"])
        assert len(core_of(leader).configuration.voters) == 3
        assert await steps.idle() == 0, "there is nothing left to do, for ever"
        # Whoever is told to stand, does not.
        term = core_of(learner).term
        learner.campaign()
        await asyncio.sleep(QUICK.election_timeout_max_ms / 1000)
        assert learner.status()["role"] == "learner"
        assert core_of(learner).term == term


@in_loop
async def test_it_is_neither_promoted_nor_given_the_lead_not_even_by_hand(tmp_path: Path) -> None:
    async with with_learner(tmp_path) as (group, _, _, learner):
        leader = await group.leader()
        replica = learner.hello()["replica"]
        with pytest.raises(Invalid, match=f"add_voters: .* sits at {LEARNER}"):
            leader.change(Change(add_voters=(replica,)))
        with pytest.raises(Invalid, match="is not a voter"):
            leader.transfer(replica)
        with pytest.raises(Invalid, match="never votes"):
            await learner.found(Configuration(voters=(replica,)))
        assert has_learner(leader, replica)


@in_loop
async def test_writes_go_on_without_the_learner_and_it_comes_back(tmp_path: Path) -> None:
    async with with_learner(tmp_path) as (group, caller, steps, learner):
        before = learner.hello()["replica"]
        await group.crash(LEARNER)
        voter = group.followers()[0].spec.seat
        await group.crash(voter)  # two voters of three: the learner is in nobody's majority
        for number in range(120):  # more than the log keeps
            await caller.call(PutKv(key=f"k{number:03}", value=b"v"))
        assert await steps.idle(3) == 0, "who is silent is not replaced"
        leader = await group.leader()
        status = leader.status()
        assert status["progress"][before]["match"] < status["commit"]
        await group.sit(voter)
        back = await group.sit(LEARNER)
        commit = core_of(leader).commit
        await eventually(lambda: back.replica and back.replica.applied.index >= commit)
        assert back.hello()["replica"] == before, "its directory says who it is"
        assert await rows_at(back) == await rows_at(await group.leader())


@in_loop
async def test_a_learner_in_place_of_a_voter_commits_nothing_and_elects_nobody(
    tmp_path: Path,
) -> None:
    async with with_learner(tmp_path) as (group, caller, _, learner):
        leader = await group.leader()
        for follower in [each.spec.seat for each in group.followers()]:
            await group.crash(follower)
        # The leader has itself and the learner: two of three voters would be enough.
        with pytest.raises((NoQuorum, Unknown)):
            await caller.call(PutKv(key="lost", value=b"v"), timeout_ms=1_500)
        assert core_of(leader).leader == 0, "it steps down: it hears no majority"
        await group.crash(leader.spec.seat)
        survivor = await group.sit(group.seat_names[0])
        await asyncio.sleep(3 * QUICK.election_timeout_max_ms / 1000)
        assert core_of(survivor).leader == 0
        await eventually(lambda: core_of(learner).leader == 0)
        await group.sit(group.seat_names[1])
        await caller.call(PutKv(key="again", value=b"v"))


@in_loop
async def test_a_voter_that_lost_its_disk_is_replaced_at_its_own_seat_though_the_learner_is_dead(
    tmp_path: Path,
) -> None:
    async with with_learner(tmp_path) as (group, caller, steps, learner):
        apart = learner.hello()["replica"]
        lost = group.followers()[0]
        old, seat = lost.hello()["replica"], lost.spec.seat
        await group.crash(LEARNER)
        await group.crash(seat)
        shutil.rmtree(tmp_path / seat.replace("/", "-"))
        back = await group.sit(seat)
        leader = await group.leader()

        def whole() -> bool:
            configuration = core_of(leader).configuration
            return old not in configuration.members and not configuration.joint

        await steps.until(whole)
        configuration = core_of(leader).configuration
        assert back.hello()["replica"] in configuration.voters
        assert configuration.learners == (apart,)
        assert len(configuration.voters) == 3
        await caller.call(PutKv(key="after", value=b"v"))


@in_loop
async def test_a_learner_that_lost_its_disk_is_somebody_else(tmp_path: Path) -> None:
    async with with_learner(tmp_path) as (group, caller, steps, learner):
        old = learner.hello()["replica"]
        await group.crash(LEARNER)
        shutil.rmtree(tmp_path / LEARNER.replace("/", "-"))
        back = await group.sit(LEARNER)
        leader = await group.leader()

        def replaced() -> bool:
            learners = core_of(leader).configuration.learners
            return old not in learners and learners == (back.hello()["replica"],)

        await steps.until(replaced)
        await caller.call(PutKv(key="after", value=b"v"))
        commit = core_of(leader).commit
        await eventually(lambda: back.replica and back.replica.applied.index >= commit)
        assert len(core_of(leader).configuration.voters) == 3


@in_loop
async def test_one_that_was_removed_while_it_was_dead_comes_back_as_somebody_else(
    tmp_path: Path,
) -> None:
    """Its log has its own removal to come: were it added again under its id, it would fall silent
    for ever when it gets there."""
    async with with_learner(tmp_path) as (group, _, steps, learner):
        old = learner.hello()["replica"]
        await group.crash(LEARNER)
        leader = await group.leader()
        leader.change(Change(remove=(old,)))
        back = await group.sit(LEARNER)
        assert back.hello()["replica"] == old

        def joined() -> bool:
            learners: tuple[int, ...] = core_of(leader).configuration.learners
            return learners == (back.hello()["replica"],)

        await steps.until(joined)
        assert back.hello()["replica"] != old
        commit = core_of(leader).commit
        await eventually(lambda: back.replica and back.replica.applied.index >= commit)
        new = back.hello()["replica"]
        await group.crash(LEARNER)
        again = await group.sit(LEARNER)
        assert again.hello()["replica"] == new != old, "the old one is retired"


@in_loop
async def test_a_learner_is_added_to_seats_that_were_made_without_it(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        assert leader.status()["group_seats"] == group.seat_names
        group.learners = 1
        learner = await group.sit(LEARNER)
        steps = Steps(group, caller)
        commit = core_of(leader).commit
        await steps.until(lambda: learner.replica and learner.replica.applied.index >= commit)
        for seat in group.seat_names:
            known = group.wires.living[seat].status()["group_seats"]
            assert known == (*group.seat_names, LEARNER)
        await group.crash(LEARNER)
        group.wires.named.remove(LEARNER)
        await steps.until(lambda: not core_of(leader).configuration.learners)
        assert leader.status()["group_seats"] == group.seat_names
        assert (await caller.call(GetKv(key="k"))).value == b"v"


@in_loop
async def test_what_a_learner_lacks_is_told_in_entries_and_milliseconds(tmp_path: Path) -> None:
    async with with_learner(tmp_path) as (group, caller, _, learner):
        leader = await group.leader()
        replica = learner.hello()["replica"]

        def told() -> Any:
            return learners_of(leader.status()).get(LEARNER)

        await eventually(lambda: told() == (0, 0))
        group.wires.frozen.add(LEARNER)
        for seat in group.seat_names:
            group.wires.cut |= {(seat, LEARNER), (LEARNER, seat)}
        for number in range(5):
            await caller.call(PutKv(key=f"k{number}", value=b"v"))
        await asyncio.sleep(0.2)
        entries, late = told()
        assert entries == 5
        assert 200 <= late < 30_000
        assert learners_of(group.followers()[0].status()) == {}, "only a leader knows"
        for number in range(100):  # the log forgets the first that it lacks
            await caller.call(PutKv(key=f"n{number}", value=b"v"))
        await eventually(lambda: core_of(leader).first_index > core_of(learner).last_index + 1)
        assert leader.status()["progress"][replica]["late_ms"] is None
        assert told()[1] == -1


@in_loop
async def test_a_late_order_to_retire_does_not_meet_who_sits_there_by_then(tmp_path: Path) -> None:
    """A controller may pause between its look and its order, and others may act meanwhile."""
    async with with_learner(tmp_path) as (_, _, _, learner):
        sits = learner.hello()["replica"]
        with pytest.raises(Conflict, match=f"replica: {LEARNER} has {sits:x}, not 9"):
            await learner.retire(9, (0, 0))
        assert learner.status()["role"] == "learner"


@in_loop
async def test_clients_ask_voters_only_also_for_what_is_stale(tmp_path: Path) -> None:
    async with with_learner(tmp_path) as (group, caller, _, learner):
        for _ in range(40):
            await caller.call(RangeKv(prefix="f"), stale=True)
        assert learner.replica is not None
        assert learner.replica.counters.queries == 0
        replicas = [each.replica for each in group.wires.living.values()]
        assert sum(each.counters.queries for each in replicas if each is not None) >= 40


@in_loop
async def test_a_seat_is_not_introduced_to_what_is_no_learner_of_its_group(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, _):
        leader = await group.leader()
        for wrong in (("metadata-0/9",), ("offset-0/learner-0",), ("learner-0",)):
            with pytest.raises(Invalid, match="is no learner's seat of metadata-0"):
                leader.introduce(wrong)
        with pytest.raises(Invalid, match=f"learners: 4, the limit is {LEARNERS_MAX}"):
            leader.introduce(learner_seats("metadata-0", LEARNERS_MAX + 1))
        with pytest.raises(Conflict, match="only its group can remove"):
            await leader.retire(leader.hello()["replica"], (0, 0))
        assert leader.status()["group_seats"] == group.seat_names


@in_loop
async def test_a_voter_that_was_replaced_and_comes_back_in_its_replacers_place_is_replaced_too(
    tmp_path: Path,
) -> None:
    """A node dies, a spare takes its seat, it comes back as the spare, and the first spare dies."""
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        steps, seat = Steps(group, caller), group.followers()[0].spec.seat
        disk = tmp_path / seat.replace("/", "-")
        ids: list[int] = [group.wires.living[seat].hello()["replica"]]

        async def moved(directory: str, replica: int) -> None:
            await group.crash(seat)
            os.rename(disk, tmp_path / f"away-{len(ids)}")
            os.rename(tmp_path / directory, disk)
            back = await group.sit(seat)
            assert back.hello()["replica"] == replica
            leader = await group.leader()

            def replaced() -> bool:
                configuration: Configuration = core_of(leader).configuration
                joined = back.hello()["replica"] in configuration.voters
                return joined and not configuration.joint and len(configuration.voters) == 3

            await steps.until(replaced)
            ids.append(back.hello()["replica"])

        (tmp_path / "spare").mkdir()
        await moved("spare", 0)
        await moved("away-1", ids[0])
        assert len(set(ids)) == 3, "what was removed is nobody again"
        assert (await caller.call(GetKv(key="k"))).value == b"v"


@in_loop
async def test_a_voters_seat_lets_go_of_nothing_that_may_be_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(Group(tmp_path)) as (group, _):
        leader, follower = await group.leader(), group.followers()[0]
        core = core_of(follower)
        await eventually(lambda: core.last_index == core_of(leader).last_index)
        member, other = "only its group can remove", f"not {core_of(leader).id:x}"
        for removed, upto, why in (
            (core.id, (core.last_term, core.last_index - 1), member),
            (core.id, (core.last_term - 1, core.last_index + 9), member),
            (core_of(leader).id, (core.last_term, core.last_index), other),
        ):
            with pytest.raises(Conflict, match=why):
                await follower.retire(removed, upto)
        upto = (core.last_term, core.last_index)
        with monkeypatch.context() as patch:
            patch.setattr(type(core), "term", core.term + 1)  # it knows of a later leader
            with pytest.raises(Conflict, match=member):
                await follower.retire(core.id, upto)
        assert follower.status_word == "active"


def test_the_names_of_seats() -> None:
    assert voter_seats("offset-0", 2) == ("offset-0/0", "offset-0/1")
    assert learner_seats("offset-0", 1) == ("offset-0/learner-0",)
    assert [is_learner(each) for each in ("a-0/0", "a-0/learner-1", "learner-1/0")] == [
        False,
        True,
        False,
    ]
    assert (group_of("a-0/learner-1"), group_of("controller-3")) == ("a-0", "")
    assert learners_among(["a/learner-1", "a/0", "a/learner-0"]) == ("a/learner-0", "a/learner-1")


def test_a_process_knows_voters_and_learners_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"a-0/1", "a-0/0", "a-0/learner-0", "b-0/learner-0", "controller-3", "cache-1f"}
    monkeypatch.setattr(calls, "named_actors", lambda: names)

    async def look() -> LinkedGroups:
        groups = LinkedGroups()
        await groups.refresh()
        return groups

    groups = asyncio.run(look())
    assert groups.groups() == ("a-0",)
    assert (groups.seats("a-0"), groups.learners("a-0")) == (("a-0/0", "a-0/1"), ("a-0/learner-0",))
    assert (groups.seats("b-0"), groups.learners("b-0")) == ((), ("b-0/learner-0",))
