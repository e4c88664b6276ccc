"""Leases: granted, kept alive, revoked, run out in time and not before, whoever leads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines.errors import Fenced, NotFound
from state_machines.lease import (
    EXPIRE_MAX,
    GRACE_MS_MAX,
    KEEP_MAX,
    TTL_MS_MAX,
    TTL_MS_MIN,
    ExpireLeases,
    GetLease,
    GrantLeases,
    KeepLeases,
    LeaseRequest,
    LeaseView,
    ListLeases,
    NextLeaseDue,
    RevokeLeases,
)
from state_machines.limits import NAME_BYTES_MAX
from state_machines.machine import Machine
from state_machines.metadata.kv import PutKv
from tests.entities.group import Group, rows_but_books
from tests.entities.leases import GRACE_S, TTL_S, Leased, beyond


@pytest.fixture
def group() -> Leased:
    return Leased()


def codes(outcomes: Any) -> list[str]:
    return [each.code for each in outcomes]


def test_leases_are_granted_together_and_have_ids_of_their_own(group: Leased) -> None:
    made = GrantLeases(
        items=(LeaseRequest(owner="a", ttl_ms=1_000), LeaseRequest(owner="b", ttl_ms=2_000))
    )
    first, second = group.run(made)
    assert second.deadline_ms - first.deadline_ms == 1_000
    assert group.lease(second.lease_id) == LeaseView(
        lease_id=second.lease_id, owner="b", ttl_ms=2_000, remaining_ms=2_000, rows=0, ending=False
    )
    page = group.ask(ListLeases(limit=1))
    assert [each.owner for each in page.leases] == ["a"]
    rest = group.ask(ListLeases(after=page.next))
    assert ([each.owner for each in rest.leases], rest.next) == (["b"], b"")
    assert group.gone(7)


def test_a_grant_that_is_sent_again_is_the_same_lease(group: Leased) -> None:
    proposal = group.proposal(GrantLeases(items=(LeaseRequest(owner="a", ttl_ms=1_000),)))
    first = group.entry(proposal)
    assert group.entry(proposal) == first
    assert group.rows("group.lease") == 1


def test_it_runs_out_when_its_time_is_over_and_not_before(group: Leased) -> None:
    lease = group.grant()
    group.put(lease, "a")
    group.later(TTL_S - 1)
    assert group.expire().leases == 0
    assert group.there("a") == [True]
    group.later(1)
    assert group.there("a") == [True], "only the controller's command ends it"
    assert group.lease(lease).remaining_ms == 0
    done = group.expire()
    assert (done.leases, done.rows, done.graced, done.next_due_ms) == (1, 1, 0, 0)
    assert group.there("a") == [False]
    assert group.gone(lease)
    group.check()


def test_what_ran_out_after_the_last_look_is_left_to_the_next_one(group: Leased) -> None:
    """Also one that was to be looked at before: it was kept alive since."""
    lease = group.grant()
    group.later(TTL_S - 1)
    group.run(KeepLeases(items=(lease,)))
    group.later(2)
    looked_ms = group.now_ms
    group.later(TTL_S)
    look = ExpireLeases(controller_epoch=group.epoch, upto_ms=looked_ms)
    assert group.run(look).leases == 0
    group.check()
    group.run(KeepLeases(items=(lease,)))
    group.later(TTL_S)
    assert group.run(replace(look, upto_ms=group.now_ms - 1)).leases == 0
    assert group.run(replace(look, upto_ms=group.now_ms + 1_000)).leases == 1
    assert group.gone(lease)


def test_one_that_is_kept_alive_has_its_whole_time_again(group: Leased) -> None:
    lease = group.grant()
    for _ in range(5):
        group.later(TTL_S - 1)
        (outcome,) = group.run(KeepLeases(items=(lease,)))
        assert outcome.ok
        assert group.expire().leases == 0
    group.later(TTL_S)
    assert group.expire().leases == 1


def test_to_keep_one_alive_writes_its_own_row_and_nothing_else(group: Leased) -> None:
    lease = group.grant()
    group.put(lease, "a")
    before = rows_but_books(group.store)
    group.later(TTL_S - 1)
    group.run(KeepLeases(items=(lease,)))
    after = rows_but_books(group.store)
    assert {name for name in after if after[name] != before[name]} == {"group.lease"}
    due = group.ask(NextLeaseDue())
    group.later(1)
    assert due == group.now_ms, "it is looked at when it was to be"
    assert group.expire().next_due_ms == group.now_ms + (TTL_S - 1) * 1_000
    group.check()


def test_each_of_many_has_its_own_outcome(group: Leased) -> None:
    first, second = group.grant(), group.grant()
    group.run(RevokeLeases(items=(first,)))
    assert codes(group.run(KeepLeases(items=(first, second, 5)))) == [
        "NOT_FOUND",
        "OK",
        "NOT_FOUND",
    ]
    assert codes(group.run(RevokeLeases(items=(second, second)))) == ["OK", "NOT_FOUND"]
    assert group.ask(NextLeaseDue()) == 0


def test_one_that_was_revoked_takes_its_rows_along(group: Leased) -> None:
    lease = group.grant()
    group.put(lease, "a", "b")
    (outcome,) = group.run(RevokeLeases(items=(lease,)))
    assert (outcome.ok, outcome.detail) == (True, "")
    assert group.there("a", "b") == [False, False]
    group.check()


def test_one_that_has_run_out_can_be_kept_alive_until_it_is_ended(group: Leased) -> None:
    lease = group.grant()
    group.later(TTL_S + 1)
    assert codes(group.run(KeepLeases(items=(lease,)))) == ["OK"]
    assert group.expire().leases == 0
    group.later(TTL_S)
    group.expire()
    assert codes(group.run(KeepLeases(items=(lease,)))) == ["NOT_FOUND"]


# -- bounded, and resumed -----------------------------------------------------------------------


def test_a_command_ends_a_bounded_number_and_the_next_goes_on(group: Leased) -> None:
    for _ in range(10):
        group.grant()
    group.later(TTL_S)
    ended = [group.expire(limit=4).leases for _ in range(3)]
    assert ended == [4, 4, 2]
    assert group.ask(NextLeaseDue()) == 0


def test_rows_count_too_and_a_lease_half_gone_is_over(group: Leased) -> None:
    lease = group.grant()
    keys = [f"k{number}" for number in range(10)]
    group.put(lease, *keys)
    group.later(TTL_S)
    done = group.expire(limit=4)
    assert (done.leases, done.rows) == (0, 3)
    assert 0 < done.next_due_ms <= group.now_ms, "it is due still"
    assert group.lease(lease).ending
    assert codes(group.run(KeepLeases(items=(lease,)))) == ["NOT_FOUND"]
    with group.refuses(NotFound, r"^then\[1\]: lease_id: "):
        group.put(lease, "late")
    group.check()
    while group.ask(NextLeaseDue()):
        assert group.expire(limit=4).rows > 0
        group.check()
    assert not any(group.there(*keys))


def test_a_revoke_says_what_is_left_and_the_controller_removes_it(
    group: Leased, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_machines.lease.REVOKE_ROWS_MAX", 3)
    first, second, third = group.grant(), group.grant(), group.grant()
    group.put(first, "a", "b")
    group.put(second, "c", "d", "e")
    group.put(third, "f")
    outcomes = group.run(RevokeLeases(items=(first, second, third)))
    assert codes(outcomes) == ["OK"] * 3
    assert [each.detail for each in outcomes] == ["", "2 rows are left", "1 rows are left"]
    assert group.there(*"abcdef") == [False, False, False, True, True, True]
    group.check()
    assert group.ask(NextLeaseDue()) == group.now_ms
    assert group.expire().leases == 2
    assert not any(group.there(*"def"))


# -- leaders and controllers --------------------------------------------------------------------


def test_a_controller_that_was_replaced_ends_nothing(group: Leased) -> None:
    group.grant()
    group.later(TTL_S)
    group.epoch = 5
    group.expire()
    group.epoch = 4
    with group.refuses(Fenced, "controller_epoch: 4, in force is 5"):
        group.expire()


def test_a_new_leader_neither_resets_nor_ends_a_lease(group: Leased) -> None:
    """Another replica goes on from the rows (reference 2.9, 13: timers lost on restart)."""
    lease = group.grant()
    group.later(TTL_S - 1)
    group.machine = Machine("metadata", "metadata-0", group.store)
    group.epoch += 1
    assert group.expire().leases == 0
    group.later(1)
    assert group.expire().leases == 1
    assert group.gone(lease)


def test_what_ran_out_while_nobody_was_heard_can_be_kept_alive(group: Leased) -> None:
    kept, left = group.grant(), group.grant()
    group.put(kept, "a")
    group.put(left, "b")
    group.later(3_600)
    group.epoch += 1
    done = group.expire()
    assert (done.leases, done.graced) == (0, 2)
    assert done.next_due_ms == group.now_ms + GRACE_S * 1_000
    group.later(GRACE_S - 1)
    assert codes(group.run(KeepLeases(items=(kept,)))) == ["OK"]
    assert group.expire().leases == 0
    group.later(1)
    assert group.expire().leases == 1
    assert group.there("a", "b") == [True, False]
    group.check()


def test_the_grace_is_given_once_however_often_controllers_change(group: Leased) -> None:
    lease = group.grant()
    group.later(TTL_S)
    graced = 0
    for _ in range(GRACE_S):
        group.epoch += 1
        done = group.expire()
        graced += done.graced
        assert done.leases == 0
        group.later(1)
    assert graced == 1
    group.epoch += 1
    assert group.expire().leases == 1
    assert group.gone(lease)


def test_one_that_was_kept_alive_since_is_graced_again(group: Leased) -> None:
    lease = group.grant()
    for _ in range(2):
        group.later(3_600)
        group.epoch += 1
        assert group.expire().graced == 1
        group.later(1)
        assert codes(group.run(KeepLeases(items=(lease,)))) == ["OK"]


def test_one_that_has_not_run_out_when_it_is_looked_at_keeps_its_grace(group: Leased) -> None:
    lease = group.grant()
    group.later(TTL_S - 1)
    group.run(KeepLeases(items=(lease,)))
    group.later(2)
    done = group.expire()  # its old time is over, and it was kept alive since
    assert (done.looked, done.graced) == (1, 0)
    group.later(TTL_S)
    group.epoch += 1
    assert group.expire().graced == 1
    group.later(GRACE_S - 1)
    (outcome,) = group.run(KeepLeases(items=(lease,)))
    assert outcome.ok


def test_to_keep_one_alive_never_takes_time_from_it(group: Leased) -> None:
    """The grace may be longer than the lease's own time."""
    lease = group.grant(ttl_s=1)
    group.later(1)
    group.epoch += 1
    group.expire()
    group.run(KeepLeases(items=(lease,)))
    group.check()
    assert group.lease(lease).remaining_ms == GRACE_S * 1_000


def test_the_same_controller_has_no_grace_to_give(group: Leased) -> None:
    group.epoch += 1
    group.expire()
    group.grant()
    group.later(TTL_S)
    assert group.expire().leases == 1


def test_what_ran_out_while_the_group_was_away_can_be_kept_alive(group: Leased) -> None:
    """And what would have, just after."""
    kept, left, soon = group.grant(), group.grant(), group.grant(TTL_S + 1)
    group.later(TTL_S)
    back_ms = group.now_ms
    assert group.expire(back_ms=back_ms).graced == 2
    group.later(1)
    assert group.expire(back_ms=back_ms).graced == 1
    assert codes(group.run(KeepLeases(items=(kept,)))) == ["OK"]
    group.later(GRACE_S - 2)
    assert group.expire(back_ms=back_ms).leases == 0
    group.later(1)
    assert group.expire(back_ms=back_ms).leases == 2
    assert [group.gone(each) for each in (kept, left, soon)] == [False, True, True]
    group.check()


def test_the_grace_is_given_once_however_often_the_group_is_away(group: Leased) -> None:
    """And no longer than from when it answers again, whatever is said."""
    lease, late = group.grant(), group.grant(TTL_S + 3_600)
    group.later(TTL_S)
    assert group.expire(back_ms=group.now_ms + 3_600_000).graced == 1
    for _ in range(GRACE_S):
        assert group.expire(back_ms=group.now_ms).leases == 0
        group.later(1)
    assert group.expire(back_ms=group.now_ms).leases == 1
    assert group.gone(lease)
    back_ms = group.now_ms
    group.later(3_600)
    assert group.expire(back_ms=back_ms).leases == 1, "that was long ago"
    assert group.gone(late)


def test_what_is_looked_at_after_the_grace_ends_at_once(group: Leased) -> None:
    """So a backlog that takes longer than the grace is no longer graced one by one."""
    for _ in range(3):
        group.grant()
    group.later(TTL_S)
    group.epoch += 1
    assert group.expire(limit=1).graced == 1
    group.later(GRACE_S)
    done = group.expire()
    assert (done.leases, done.graced) == (3, 0)


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("later"), st.integers(1, 2 * TTL_S)),
        st.tuples(st.just("grant"), st.integers(1, TTL_S)),
        st.tuples(st.just("keep"), st.integers(0, 5)),
        st.tuples(st.just("revoke"), st.integers(0, 5)),
        st.tuples(st.just("expire"), st.integers(1, 4)),
        st.tuples(st.just("expire"), st.just(1_000)),
        st.tuples(st.just("controller"), st.just(0)),
        st.tuples(st.just("put"), st.integers(0, 5)),
        st.tuples(st.just("overwrite"), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(happenings)
@settings(max_examples=150)
def test_none_is_lost_early_and_none_lives_much_longer(history: list[tuple[str, int]]) -> None:
    group = Leased()
    deadlines: dict[int, int] = {}  # what their owners go by
    owned: dict[str, int] = {}  # key -> lease, None for one that was overwritten
    for what, number in history:
        some = list(deadlines)[number % len(deadlines)] if deadlines else 0
        match what:
            case "later":
                group.later(number)
            case "grant":
                deadlines[group.grant(number)] = group.now_ms + number * 1_000
            case "keep" if some:
                if group.run(KeepLeases(items=(some,)))[0].ok:
                    ttl = group.lease(some).ttl_ms
                    deadlines[some] = max(deadlines[some], group.now_ms + ttl)
                else:
                    assert deadlines.pop(some) <= group.now_ms
            case "revoke" if some:
                group.run(RevokeLeases(items=(some,)))
                del deadlines[some]
                owned = {key: lease for key, lease in owned.items() if lease != some}
            case "expire":
                group.expire(number)
            case "controller":
                group.epoch += 1
            case "put" if some and not group.gone(some):
                if not group.lease(some).ending:
                    group.put(some, f"k{number}")
                    owned[f"k{number}"] = some
            case "overwrite":
                group.run(PutKv(key=f"k{number}", value=b"free"))
                owned.pop(f"k{number}", None)
        for lease, deadline in deadlines.items():
            if deadline > group.now_ms:
                assert not group.gone(lease), "it was lost early"
                assert not group.lease(lease).ending
        for key, lease in owned.items():
            if deadlines.get(lease, 0) > group.now_ms:
                assert group.there(key) == [True]
        group.check()
    late = max([0, *deadlines.values()]) + GRACE_S * 1_000
    group.later(max(0, late - group.now_ms) // 1_000 + 1)
    group.expire()  # it gives the last grace that there is to give
    group.later(GRACE_S)
    while group.expire(100).next_due_ms:
        pass
    assert group.rows("group.lease") == 0
    assert not any(group.there(*owned))


# -- limits -------------------------------------------------------------------------------------


def test_limits() -> None:
    group = Group("mqtt")

    def grant(owner: str = "a", ttl_ms: int = 1_000) -> GrantLeases:
        return GrantLeases(items=(LeaseRequest(owner=owner, ttl_ms=ttl_ms),))

    for ttl_ms in (TTL_MS_MIN, TTL_MS_MAX):
        group.run(grant(ttl_ms=ttl_ms))
    for ttl_ms in (TTL_MS_MIN - 1, TTL_MS_MAX + 1):
        beyond(group, grant(ttl_ms=ttl_ms), "items[0].ttl_ms")
    group.run(grant("x" * NAME_BYTES_MAX))
    for owner in ("", "x" * (NAME_BYTES_MAX + 1), "a\0"):
        beyond(group, grant(owner), "items[0].owner")
    group.beyond(GrantLeases(items=()), "items")
    group.beyond(KeepLeases(items=()), "items")
    group.beyond(RevokeLeases(items=()), "items")
    group.run(KeepLeases(items=(1,) * KEEP_MAX))
    group.beyond(KeepLeases(items=(1,) * (KEEP_MAX + 1)), "items")
    for limit in (0, EXPIRE_MAX + 1):
        group.beyond(ExpireLeases(controller_epoch=1, limit=limit), "limit")
    for grace in (-1, GRACE_MS_MAX + 1):
        group.beyond(ExpireLeases(controller_epoch=1, grace_ms=grace), "grace_ms")
    group.beyond(ExpireLeases(controller_epoch=1, upto_ms=-1), "upto_ms")
    group.beyond(ExpireLeases(controller_epoch=0), "controller_epoch")
    assert group.ask(GetLease(lease_id=-1)) is None
