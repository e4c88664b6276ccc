"""Advice: put once, decided by people, carried out and undone by the controller, gone in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_machines.errors import Conflict, Fenced, Invalid, NotFound
from state_machines.metadata import advice as advices
from state_machines.metadata.advice import (
    ADVICE_MAX,
    EVIDENCE_BYTES_MAX,
    KEEP_MS,
    LIFE_MS_MAX,
    REASON_BYTES_MAX,
    Advice,
    ApproveAdvice,
    DismissAdvice,
    GetAdvice,
    ListAdvice,
    NewAdvice,
    PutAdvice,
    UndoAdvice,
)
from state_machines.metadata.advice_duty import (
    BeginAdvice,
    CarryOutAdvice,
    ExpireAdvice,
    SettleAdvice,
)
from state_machines.metadata.tenant import (
    CreateTenants,
    DeleteTenants,
    GetTenant,
    NewTenant,
    TenantChange,
    TenantName,
    TenantQuotas,
    UpdateTenants,
)
from state_machines.op import validate
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

HOUR_MS = 3_600_000
CAP = NewAdvice(
    id="cap",
    kind="quota",
    target="acme",
    limit="offset_commits_per_s",
    number=500,
    reason="90 % of the load",
    evidence='{"share": 0.9}',
    predicted='{"share": 0.3}',
    start_ms=NOW_MS - 60_000,
    expires_ms=NOW_MS + HOUR_MS,
)
MOVE = NewAdvice(
    id="move",
    kind="leader",
    target="offset-0",
    source="offset-0/1",
    destination="offset-0/2",
    reason="one node has both",
    expires_ms=NOW_MS + HOUR_MS,
)
BY_HAND = NewAdvice(
    id="hand", kind="storm", target="g1", reason="commits", expires_ms=NOW_MS + HOUR_MS
)


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def put(group: Group, *items: NewAdvice) -> list[str]:
    return [each.code for each in group.run(PutAdvice(items=items))]


def get(group: Group, advice_id: str = "cap") -> Advice:
    found: Advice = group.ask(GetAdvice(id=advice_id))
    return found


def decide(group: Group, command: Any, *ids: str) -> list[str]:
    return [each.code for each in group.run(command(ids=ids, by="ann", note="why"))]


def quotas(group: Group, tenant: str = "acme") -> TenantQuotas:
    found: TenantQuotas = group.ask(GetTenant(name=tenant)).quotas
    return found


def carry_out(group: Group, advice_id: str = "cap", **more: Any) -> Any:
    return group.run(CarryOutAdvice(controller_epoch=4, id=advice_id, **more))


def test_an_advice_is_a_row_and_putting_it_again_changes_nothing(group: Group) -> None:
    assert put(group, CAP, MOVE) == ["OK", "OK"]
    row = get(group)
    assert row == Advice(
        id="cap",
        kind="quota",
        target="acme",
        limit="offset_commits_per_s",
        number=500,
        source="",
        destination="",
        reason="90 % of the load",
        evidence='{"share": 0.9}',
        predicted='{"share": 0.3}',
        start_ms=NOW_MS - 60_000,
        created_ms=NOW_MS,
        expires_ms=NOW_MS + HOUR_MS,
        state="proposed",
        by="",
        changed_ms=NOW_MS,
    )
    decide(group, ApproveAdvice, "cap")
    approved = get(group)
    assert (approved.state, approved.by, approved.note) == ("approved", "ann", "why")
    group.later(9)
    assert put(group, CAP, replace(CAP, reason="other")) == ["OK", "OK"]
    assert get(group) == approved
    assert [each.id for each in group.ask(ListAdvice()).advice] == ["cap", "move"]
    assert [each.id for each in group.ask(ListAdvice(state="proposed")).advice] == ["move"]
    assert group.ask(GetAdvice(id="none")) is None


def test_newer_advice_about_the_same_replaces_what_nobody_took_up(group: Group) -> None:
    put(group, CAP, BY_HAND)
    newer = replace(CAP, id="cap2", start_ms=NOW_MS)
    assert put(group, newer, replace(CAP, id="cap0", start_ms=1)) == ["OK", "CONFLICT"]
    assert [each.id for each in group.ask(ListAdvice()).advice] == ["cap2", "hand"]
    other = replace(newer, id="opens", limit="session_opens_per_s")
    decide(group, ApproveAdvice, "cap2")
    assert put(group, other, replace(newer, id="cap3")) == ["OK", "OK"]
    assert group.rows(advices.ADVICE.name) == 4, "what was approved stays"


def test_there_is_only_so_much_advice(group: Group) -> None:
    items = [replace(CAP, id=f"a{n}", target=f"t{n}") for n in range(ADVICE_MAX)]
    assert set(put(group, *items)) == {"OK"}
    assert put(group, replace(CAP, id="more"), items[0]) == ["QUOTA_EXCEEDED", "OK"]
    newer = replace(items[0], id="newer", start_ms=NOW_MS)
    assert put(group, newer) == ["OK"], "it replaces another"
    assert group.rows(advices.ADVICE.name) == ADVICE_MAX


def test_what_one_command_puts_counts_and_what_it_replaces_does_not(group: Group) -> None:
    items = [replace(CAP, id=f"a{n}", start_ms=n) for n in range(ADVICE_MAX + 2)]
    assert set(put(group, *items)) == {"OK"}
    assert group.rows(advices.ADVICE.name) == 1
    items = [replace(CAP, id=f"b{n}", target=f"t{n}") for n in range(ADVICE_MAX)]
    assert put(group, *items) == ["OK"] * (ADVICE_MAX - 1) + ["QUOTA_EXCEEDED"]


def test_a_row_is_looked_at_once_however_much_is_put(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Advice] = []
    known = advices.about_of

    def about_of(row: Advice) -> tuple[str, str, str]:
        looked.append(row)
        return known(row)

    monkeypatch.setattr(advices, "about_of", about_of)
    for start in (0, 50):
        some = range(start, start + 100)
        items = [replace(MOVE, id=f"{start}-{each}", target=f"g{each}") for each in some]
        assert all(each.ok for each in group.run(PutAdvice(items=tuple(items))))
    assert len(looked) == 100, "those that were there before"
    assert group.rows("metadata.advice") == 150


@pytest.mark.parametrize("expires_ms", [0, NOW_MS, NOW_MS + LIFE_MS_MAX + 1])
def test_advice_expires_within_reason(group: Group, expires_ms: int) -> None:
    (outcome,) = group.run(PutAdvice(items=(replace(CAP, expires_ms=expires_ms),)))
    with pytest.raises(Invalid, match=f"^expires_ms: {expires_ms}, the range is"):
        outcome.or_raise()
    assert group.rows(advices.ADVICE.name) == 0


def test_a_limit_is_set_with_the_advice_and_restored_with_it(group: Group) -> None:
    before = TenantQuotas(topics=3, offset_commits_per_s=9_000)
    group.run(CreateTenants(items=(NewTenant(name="acme", description="d", quotas=before),)))
    put(group, CAP)
    with group.refuses(Conflict, "id: cap is proposed, not approved"):
        carry_out(group)
    decide(group, ApproveAdvice, "cap")
    assert carry_out(group) == "applied"
    assert quotas(group) == replace(before, offset_commits_per_s=500)
    done = get(group)
    assert (done.state, done.by, done.before, done.after) == ("applied", "ann", "9000", "500")
    with group.refuses(Conflict, "id: cap is applied"):
        carry_out(group)
    assert decide(group, UndoAdvice, "cap") == ["OK"]
    assert (get(group).state, quotas(group).offset_commits_per_s) == ("undoing", 500)
    assert decide(group, UndoAdvice, "cap") == ["OK"], "it is under way"
    assert carry_out(group) == "undone"
    assert quotas(group) == before
    assert decide(group, UndoAdvice, "cap") == ["OK"], "it was undone"
    assert get(group).state == "undone"
    assert group.ask(GetTenant(name="acme")).description == "d"


def test_a_tenant_that_was_not_recorded_is_recorded_for_its_limit(group: Group) -> None:
    put(group, CAP)
    assert carry_out(group, automatic=True) == "applied"
    assert (get(group).by, quotas(group).offset_commits_per_s) == ("controller-4", 500)
    decide(group, UndoAdvice, "cap")
    carry_out(group)
    assert quotas(group) == TenantQuotas()


def test_what_was_changed_since_is_not_undone(group: Group) -> None:
    put(group, CAP)
    carry_out(group, automatic=True)
    group.run(UpdateTenants(items=(TenantChange(name="acme", description="another"),)))
    changed = TenantChange(name="acme", quotas=TenantQuotas(offset_commits_per_s=700))
    group.run(UpdateTenants(items=(changed,)))
    (outcome,) = group.run(UndoAdvice(ids=("cap",)))
    with pytest.raises(Conflict, match="offset_commits_per_s: it is 700 now, 500 was set"):
        outcome.or_raise()
    assert (get(group).state, quotas(group).offset_commits_per_s) == ("applied", 700)


def test_what_is_changed_while_it_is_undone_is_left(group: Group) -> None:
    put(group, CAP)
    carry_out(group, automatic=True)
    decide(group, UndoAdvice, "cap")
    changed = TenantChange(name="acme", quotas=TenantQuotas(offset_commits_per_s=700))
    group.run(UpdateTenants(items=(changed,)))
    with group.refuses(Conflict, "it is 700 now"):
        carry_out(group)
    group.run(SettleAdvice(controller_epoch=4, id="cap", was="undoing", state="applied", note="x"))
    assert (get(group).state, get(group).note) == ("applied", "x")


def test_a_limit_is_never_raised_by_advice_and_none_is_set_for_a_tenant_that_goes(
    group: Group,
) -> None:
    low = TenantQuotas(offset_commits_per_s=400)
    group.run(CreateTenants(items=(NewTenant(name="acme", quotas=low),)))
    put(group, CAP)
    with group.refuses(Conflict, "it is 400 already, 500 is no less"):
        carry_out(group, automatic=True)
    group.run(DeleteTenants(items=(TenantName(name="acme"),)))
    with group.refuses(Conflict, "target: tenant 'acme' is deleting"):
        carry_out(group, automatic=True)
    group.run(SettleAdvice(controller_epoch=4, id="cap", was="proposed", state="failed"))
    assert get(group).state == "failed"


def test_a_leadership_is_written_down_before_it_moves(group: Group) -> None:
    put(group, MOVE, CAP)
    with group.refuses(Conflict, "id: move is proposed, not approved"):
        group.run(BeginAdvice(controller_epoch=4, id="move"))
    decide(group, ApproveAdvice, "move")
    group.run(BeginAdvice(controller_epoch=4, id="move"))
    row = get(group, "move")
    assert (row.state, row.by, row.before, row.after) == (
        *("applying", "ann", "offset-0/1", "offset-0/2"),
    )
    with group.refuses(Conflict, "id: move is a 'leader', not a 'quota'"):
        carry_out(group, "move")
    with group.refuses(Conflict, "id: cap is a 'quota', not a 'leader'"):
        group.run(BeginAdvice(controller_epoch=4, id="cap", automatic=True))
    settle = SettleAdvice(controller_epoch=4, id="move", was="applying", state="applied", note="n")
    group.run(settle)
    assert (get(group, "move").state, get(group, "move").note) == ("applied", "n")
    group.run(settle)
    assert decide(group, UndoAdvice, "move") == ["OK"]
    with group.refuses(Conflict, "was: move is undoing, not applying"):
        group.run(replace(settle, state="failed"))


def test_nobody_says_that_a_limit_was_restored(group: Group) -> None:
    put(group, CAP)
    carry_out(group, automatic=True)
    decide(group, UndoAdvice, "cap")
    with group.refuses(Conflict, "a 'quota' is carried out"):
        group.run(SettleAdvice(controller_epoch=4, id="cap", was="undoing", state="undone"))


def test_decisions_that_cannot_be(group: Group) -> None:
    put(group, CAP, BY_HAND)
    assert decide(group, ApproveAdvice, "cap", "hand", "none") == ["OK", "CONFLICT", "NOT_FOUND"]
    assert decide(group, ApproveAdvice, "cap") == ["OK"]
    assert decide(group, UndoAdvice, "cap", "none") == ["CONFLICT", "NOT_FOUND"]
    assert decide(group, DismissAdvice, "cap", "cap", "hand", "none") == [
        *("OK", "OK", "OK", "NOT_FOUND"),
    ]
    assert decide(group, ApproveAdvice, "cap") == ["CONFLICT"]
    with group.refuses(NotFound, "there is no advice 'none'"):
        carry_out(group, "none")
    put(group, replace(CAP, id="new", start_ms=NOW_MS))
    carry_out(group, "new", automatic=True)
    assert decide(group, DismissAdvice, "new") == ["CONFLICT"]


def test_advice_that_is_too_old_is_not_done_even_before_it_is_marked(group: Group) -> None:
    put(group, CAP)
    decide(group, ApproveAdvice, "cap")
    group.later(3_600)
    with group.refuses(Conflict, "id: it expired at"):
        carry_out(group)


def test_it_expires_and_goes_in_bounded_steps(group: Group) -> None:
    items = [replace(CAP, id=f"a{n}", target=f"t{n}") for n in range(5)]
    put(group, *items, MOVE)
    group.run(BeginAdvice(controller_epoch=4, id="move", automatic=True))
    carry_out(group, "a0", automatic=True)
    expire = ExpireAdvice(controller_epoch=4, limit=3)
    assert group.run(expire) == 0
    group.later(3_600)
    assert [group.run(expire) for _ in range(3)] == [3, 1, 0]
    states = {each.id: each.state for each in group.ask(ListAdvice()).advice}
    assert states == {
        "a0": "applied",
        **dict.fromkeys(("a1", "a2", "a3", "a4"), "expired"),
        "move": "applying",
    }
    group.later(KEEP_MS // 1_000)
    assert [group.run(expire) for _ in range(3)] == [3, 2, 0]
    assert [each.id for each in group.ask(ListAdvice()).advice] == ["move"], "it is under way"


def test_an_older_controller_does_nothing(group: Group) -> None:
    put(group, CAP, MOVE)
    group.run(ExpireAdvice(controller_epoch=5, limit=1))
    for command in (
        CarryOutAdvice(controller_epoch=4, id="cap", automatic=True),
        BeginAdvice(controller_epoch=4, id="move", automatic=True),
        SettleAdvice(controller_epoch=4, id="cap", was="proposed", state="failed"),
        ExpireAdvice(controller_epoch=4, limit=1),
    ):
        with group.refuses(Fenced, "controller_epoch: 4, in force is 5"):
            group.run(command)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "i" * 65}, "id"),
        ({"kind": "magic"}, "kind"),
        ({"target": ""}, "target"),
        ({"reason": "r" * (REASON_BYTES_MAX + 1)}, "reason"),
        ({"evidence": "[]"}, "evidence"),
        ({"evidence": '{"a": "' + "e" * EVIDENCE_BYTES_MAX + '"}'}, "evidence"),
        ({"predicted": "{"}, "predicted"),
        ({"number": 0}, "number"),
        ({"number": -1}, "number"),
        ({"limit": "topics"}, "limit"),
        ({"kind": "leader", "limit": "", "source": "a"}, "destination"),
        ({"kind": "leader", "limit": "", "destination": "a"}, "source"),
        ({"start_ms": -1}, "start_ms"),
        ({"expires_ms": -1}, "expires_ms"),
    ],
)
def test_limits_of_what_is_put(group: Group, changes: dict[str, Any], field: str) -> None:
    put(group, BY_HAND)
    group.beyond(PutAdvice(items=(replace(CAP, **changes),)), field)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (PutAdvice(items=()), "items"),
        (ApproveAdvice(ids=()), "ids"),
        (DismissAdvice(ids=("",)), "ids"),
        (UndoAdvice(ids=("a",), by="b" * 257), "by"),
        (UndoAdvice(ids=("a",), note="n" * (REASON_BYTES_MAX + 1)), "note"),
        (BeginAdvice(controller_epoch=0, id="a"), "controller_epoch"),
        (CarryOutAdvice(controller_epoch=1, id=""), "id"),
        (SettleAdvice(controller_epoch=1, id="a", was="applied", state="failed"), "was"),
        (SettleAdvice(controller_epoch=1, id="a", was="proposed", state="applied"), "state"),
        (ExpireAdvice(controller_epoch=1, limit=0), "limit"),
        (GetAdvice(id=""), "id"),
        (ListAdvice(state="odd"), "state"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    group.beyond(operation, field)


def test_the_limits_themselves_are_within() -> None:
    widest = replace(
        CAP,
        id="i" * 64,
        target="t" * 256,
        reason="r" * REASON_BYTES_MAX,
        evidence='{"a": "' + "e" * (EVIDENCE_BYTES_MAX - 9) + '"}',
    )
    validate(PutAdvice(items=(widest,)))
