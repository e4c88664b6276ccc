"""What the controller does with advice: plans as data, then the duty in groups of real machines."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from actors.duties.advice import SHOWN_MAX, Advices
from actors.duties.quotas import Quotas
from actors.planners.advice import (
    EXPIRE_LIMIT,
    GIVE_UP_MS,
    HOLD_MS,
    Action,
    Begin,
    CarryOut,
    Expire,
    Led,
    Settle,
    Transfer,
    plan_advice,
    wants_leaders,
)
from state_machines.errors import NotLeader
from state_machines.metadata.advice import (
    KEEP_MS,
    MODES,
    Advice,
    ApproveAdvice,
    DismissAdvice,
    GetAdvice,
    ListAdvice,
    NewAdvice,
    PutAdvice,
    UndoAdvice,
)
from state_machines.metadata.config import ConfigValue, SetConfigs
from state_machines.metadata.tenant import (
    CreateTenants,
    GetTenant,
    NewTenant,
    TenantChange,
    TenantQuotas,
    UpdateTenants,
)
from state_machines.quota import GetQuota
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time
from tests.machine.alone import NOW_MS

HOUR_MS = 3_600_000
LATER = NOW_MS + HOUR_MS

CAP = Advice(
    id="cap",
    kind="quota",
    target="acme",
    limit="offset_commits_per_s",
    number=500,
    source="",
    destination="",
    reason="hot",
    evidence="{}",
    predicted="{}",
    start_ms=NOW_MS,
    created_ms=NOW_MS,
    expires_ms=LATER,
    state="proposed",
    by="",
    changed_ms=NOW_MS,
)
MOVE = replace(
    CAP,
    id="move",
    kind="leader",
    target="offset-0",
    limit="",
    number=0,
    source="a",
    destination="b",
)
BEGUN = replace(MOVE, state="applying", before="a", after="b")
BACK = replace(BEGUN, state="undoing")
BY_A = Led("a", {"a": 1, "b": 2, "c": 3})
BY_B = replace(BY_A, leader="b")
BY_C = replace(BY_A, leader="c")


def plan(
    *rows: Advice, mode: str = "approve", led: Led | None = BY_A, now_ms: int = NOW_MS
) -> list[Action]:
    return plan_advice(rows, mode, {"offset-0": led}, now_ms)


@pytest.mark.parametrize("row", [CAP, MOVE], ids=["cap", "move"])
def test_the_mode_says_what_may_be_done(row: Advice) -> None:
    approved = replace(row, state="approved")
    act: Any = CarryOut if row.kind == "quota" else Begin
    for mode in MODES:
        assert plan(row, mode=mode) == ([act(row, True)] if mode == "auto" else [])
        assert plan(approved, mode=mode) == ([act(approved)] if mode in ("approve", "auto") else [])
        assert plan(replace(approved, kind="storm"), mode=mode) == []


def test_what_is_over_is_left_alone_in_every_mode() -> None:
    for state in ("applied", "undone", "dismissed", "failed", "expired"):
        assert plan(replace(CAP, state=state), mode="auto") == []


def test_auto_does_one_thing_at_a_time() -> None:
    other = replace(CAP, id="other", target="zeta")
    approved = replace(CAP, id="third", target="eta", state="approved")
    assert plan(CAP, other, approved, mode="auto") == [CarryOut(CAP, True), CarryOut(approved)]


@pytest.mark.parametrize("state", ["applied", "undone", "dismissed", "undoing"])
def test_auto_leaves_alone_what_was_decided_lately(state: str) -> None:
    before = replace(CAP, id="before", state=state)
    wanted = [CarryOut(before)] if state == "undoing" else []
    now = NOW_MS + HOLD_MS - 1
    newer = replace(CAP, expires_ms=now + HOUR_MS)
    assert plan(before, newer, mode="auto", now_ms=now) == wanted
    assert plan(before, replace(newer, state="approved"), mode="auto", now_ms=now) == [
        *wanted,
        CarryOut(replace(newer, state="approved")),
    ]
    other = replace(newer, target="zeta")
    assert plan(before, other, mode="auto", now_ms=now) == [*wanted, CarryOut(other, True)]
    if state != "undoing":
        assert plan(before, newer, mode="auto", now_ms=now + 1) == [CarryOut(newer, True)]


def test_a_failure_holds_nothing_up() -> None:
    failed = replace(CAP, id="before", state="failed")
    assert plan(failed, CAP, mode="auto") == [CarryOut(CAP, True)]


def test_what_is_due_expires_and_is_not_done() -> None:
    approved = replace(CAP, state="approved")
    assert plan(approved, mode="auto", now_ms=LATER) == [Expire(EXPIRE_LIMIT)]
    applied = replace(CAP, state="applied")
    assert plan(applied, now_ms=NOW_MS + KEEP_MS) == [Expire(EXPIRE_LIMIT)]
    assert plan(BEGUN, now_ms=NOW_MS + KEEP_MS, led=BY_B) == [
        Settle(BEGUN, "applied", "offset-0 is led by b")
    ]


def test_undoing_a_limit_is_done_in_every_mode_and_however_late() -> None:
    undoing = replace(CAP, state="undoing")
    for mode in MODES:
        assert plan(undoing, mode=mode, now_ms=LATER + 1) == [CarryOut(undoing)]


def test_a_leadership_moves_only_from_where_it_was_seen() -> None:
    approved = replace(MOVE, state="approved")
    assert plan(approved) == [Begin(approved)]
    assert plan(approved, led=None) == []
    assert plan(approved, led=BY_C) == [
        Settle(approved, "failed", "offset-0 is led by c, not by a any more")
    ]
    assert plan(approved, led=Led("a", {"a": 1})) == [
        Settle(approved, "failed", "b has no voter of offset-0")
    ]


@pytest.mark.parametrize(
    ("row", "here", "there", "done", "failed"),
    [(BEGUN, BY_A, BY_B, "applied", "failed"), (BACK, BY_B, BY_A, "undone", "applied")],
    ids=["begun", "back"],
)
def test_a_leadership_on_its_way(
    row: Advice, here: Led, there: Led, done: str, failed: str
) -> None:
    for mode in MODES:
        assert plan(row, mode=mode, led=here) == [
            Transfer(row, here.leader, here.voters[there.leader])
        ]
    assert plan(row, led=there) == [Settle(row, done, f"offset-0 is led by {there.leader}")]
    assert plan(row, led=BY_C) == [Settle(row, failed, "offset-0 is led by c: changed since")]
    assert plan(row, led=None) == [], "an election is under way"
    (late,) = plan(row, led=here, now_ms=NOW_MS + GIVE_UP_MS)
    assert isinstance(late, Settle)
    assert late.state == failed
    gone = Led(here.leader, {here.leader: 1})
    assert plan(row, led=gone) == [Settle(row, failed, f"{there.leader} has no voter of offset-0")]


def test_only_who_moves_is_asked_for_its_leader() -> None:
    assert wants_leaders([CAP, MOVE], "approve", NOW_MS) == []
    assert wants_leaders([CAP, MOVE], "auto", NOW_MS) == ["offset-0"]
    assert wants_leaders([BACK], "off", NOW_MS) == ["offset-0"]


# -- the duty ------------------------------------------------------------------------------------


class LedWorld(World):
    """The same with seats of `offset-0` that hand the leadership on when they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.leader = "offset-0/1"
        self.names = {1: "offset-0/1", 2: "offset-0/2", 3: "offset-0/3"}
        self.transfers: list[tuple[str, int]] = []
        self.stubborn = False

    def seats(self, group: str) -> list[str]:
        return sorted(self.names.values()) if group == "offset-0" else []

    async def call(self, operation: Any, *arguments: Any, **more: Any) -> Any:
        if not isinstance(operation, str):
            return await super().call(operation, **more)
        await asyncio.sleep(0)
        method, *rest = arguments
        leads = operation == self.leader
        if method == "status":
            return {
                "seat": operation,
                "role": "leader" if leads else "follower",
                "term": 3,
                "voters": list(self.names),
                "seats": self.names,
            }
        assert method == "transfer"
        if not leads:
            raise NotLeader("not the leader", self.leader)
        self.transfers.append((operation, rest[0]))
        if not self.stubborn:
            self.leader = self.names[rest[0]]
        return None


def put(world: World, **changes: Any) -> NewAdvice:
    item = NewAdvice(
        **{
            "id": "cap",
            "kind": "quota",
            "target": "acme",
            "limit": "offset_commits_per_s",
            "number": 500,
            "reason": "acme has 90 % of offset-0",
            "expires_ms": world.clock.now_ms() + HOUR_MS,
            **changes,
        }
    )
    (outcome,) = world.run(PutAdvice(items=(item,)))
    outcome.or_raise()
    return item


def put_move(world: World, **changes: Any) -> NewAdvice:
    return put(
        world,
        **{
            "id": "move",
            "kind": "leader",
            "target": "offset-0",
            "limit": "",
            "number": 0,
            "source": "offset-0/1",
            "destination": "offset-0/2",
            **changes,
        },
    )


def mode(world: World, text: str) -> None:
    (done,) = world.run(SetConfigs(items=(ConfigValue(key="advice_mode", text=text),)))
    assert done.ok


def get(world: World, advice_id: str = "cap") -> Advice:
    found: Advice = world.ask(GetAdvice(id=advice_id))
    return found


def limit(world: World) -> int:
    found = world.ask(GetTenant(name="acme"))
    return 0 if found is None else int(found.quotas.offset_commits_per_s)


@in_virtual_time
async def test_it_is_shown_and_nothing_more_unless_somebody_lets_it() -> None:
    world = World()
    put(world)
    controller = await world.step(Advices)
    assert world.commands == []
    (line,) = controller.status()["duties"]["advice"]["under_way"]
    assert line == ("quota 'acme' is proposed (metaray advice show cap): acme has 90 % of offset-0")
    world.run(ApproveAdvice(ids=("cap",)))
    await world.step(Advices)
    assert (world.commands, limit(world)) == ([], 0)
    mode(world, "off")
    controller = await world.step(Advices)
    assert controller.status()["duties"]["advice"]["under_way"] == []


@in_virtual_time
async def test_only_so_many_are_said_in_words() -> None:
    world = World()
    for number in range(SHOWN_MAX + 2):
        put(world, id=f"a{number}", target=f"t{number}", start_ms=number)
    controller = await world.step(Advices)
    lines = controller.status()["duties"]["advice"]["under_way"]
    assert len(lines) == SHOWN_MAX + 1
    assert lines[0].startswith(f"quota 't{SHOWN_MAX + 1}'"), "the newest first"
    assert lines[-1] == "2 more: metaray advice list"


@in_virtual_time
async def test_an_approved_limit_holds_in_its_groups_and_is_undone() -> None:
    world = World()
    before = TenantQuotas(topics=7, offset_commits_per_s=9_000)
    world.run(CreateTenants(items=(NewTenant(name="acme", quotas=before),)))
    put(world)
    mode(world, "approve")
    await world.step(Advices)
    assert limit(world) == 9_000
    world.run(ApproveAdvice(ids=("cap",), by="ann"))
    await world.step(Advices)
    await world.step(Quotas)
    assert (limit(world), get(world).state, get(world).by) == (500, "applied", "ann")
    assert world.at("offset").ask(GetQuota(tenant="acme")).offset_commits_per_s == 500
    mode(world, "off")
    world.run(UndoAdvice(ids=("cap",), by="bob"))
    await world.step(Advices)
    await world.step(Quotas)
    assert (limit(world), get(world).state, get(world).by) == (9_000, "undone", "bob")
    assert world.at("offset").ask(GetQuota(tenant="acme")).offset_commits_per_s == 9_000


@in_virtual_time
async def test_auto_acts_by_itself_and_not_again_on_what_was_taken_back() -> None:
    world = World()
    mode(world, "auto")
    put(world)
    await world.step(Advices)
    assert (limit(world), get(world).by) == (500, "controller-4")
    world.run(UndoAdvice(ids=("cap",), by="ann"))
    await world.step(Advices)
    put(world, id="again", start_ms=NOW_MS)
    await world.step(Advices)
    assert (limit(world), get(world, "again").state) == (0, "proposed")


@in_virtual_time
async def test_what_a_group_refuses_is_written_down_once() -> None:
    world = World()
    low = TenantQuotas(offset_commits_per_s=100)
    world.run(CreateTenants(items=(NewTenant(name="acme", quotas=low),)))
    mode(world, "auto")
    put(world)
    await world.step(Advices)
    row = get(world)
    assert (row.state, row.note) == (
        *("failed", "offset_commits_per_s: it is 100 already, 500 is no less"),
    )
    world.commands.clear()
    await world.step(Advices)
    assert world.commands == []


@in_virtual_time
async def test_a_limit_that_changes_while_it_is_undone_stays_and_the_row_says_so() -> None:
    world = World()
    mode(world, "auto")
    put(world)
    await world.step(Advices)
    world.run(UndoAdvice(ids=("cap",)))
    quotas = TenantQuotas(offset_commits_per_s=600)
    world.run(UpdateTenants(items=(TenantChange(name="acme", quotas=quotas),)))
    await world.step(Advices)
    row = get(world)
    assert (row.state, limit(world)) == ("applied", 600)
    assert row.note == "offset_commits_per_s: it is 600 now, 500 was set: changed since"


@in_virtual_time
async def test_a_leadership_moves_and_goes_back() -> None:
    world = LedWorld()
    mode(world, "auto")
    put_move(world)
    await world.step(Advices)
    assert (world.leader, world.transfers) == ("offset-0/2", [("offset-0/1", 2)])
    await world.step(Advices, epoch=5)  # another controller goes on
    row = get(world, "move")
    assert (row.state, row.by, row.before) == ("applied", "controller-4", "offset-0/1")
    world.run(UndoAdvice(ids=("move",), by="ann"))
    for _ in range(2):
        await world.step(Advices, epoch=5)
    assert (world.leader, get(world, "move").state) == ("offset-0/1", "undone")


@in_virtual_time
async def test_a_leadership_that_does_not_move_is_given_up() -> None:
    world = LedWorld()
    world.stubborn = True
    mode(world, "auto")
    put_move(world)
    await world.step(Advices)
    await world.step(Advices)
    assert len(world.transfers) == 2, "it is asked again"
    await asyncio.sleep(GIVE_UP_MS / 1_000)
    await world.step(Advices)
    assert (get(world, "move").state, world.leader) == ("failed", "offset-0/1")


@in_virtual_time
async def test_a_leadership_that_has_moved_by_itself_is_not_undone() -> None:
    world = LedWorld()
    mode(world, "auto")
    put_move(world)
    await world.step(Advices)
    await world.step(Advices)
    world.leader = "offset-0/3"
    world.run(UndoAdvice(ids=("move",)))
    await world.step(Advices)
    row = get(world, "move")
    assert (row.state, row.note) == (*("applied", "offset-0 is led by offset-0/3: changed since"),)


@in_virtual_time
async def test_a_group_that_is_not_there_has_no_leader() -> None:
    world = LedWorld()
    mode(world, "auto")
    put_move(world, target="offset-9")
    await world.step(Advices)
    assert get(world, "move").state == "proposed"


@in_virtual_time
async def test_what_nobody_takes_up_expires_and_goes() -> None:
    world = World()
    put(world)
    put(world, id="other", target="zeta")
    world.run(DismissAdvice(ids=("other",)))
    await asyncio.sleep(HOUR_MS / 1_000)
    await world.step(Advices)
    assert get(world).state == "expired"
    await asyncio.sleep(KEEP_MS / 1_000)
    await world.step(Advices)
    assert world.ask(ListAdvice()).advice == ()
