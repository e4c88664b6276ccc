"""Many sessions in one command go through what they would go through one after the other."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines.batch import OK
from state_machines.errors import Rejected
from state_machines.mqtt.due import DUE
from state_machines.mqtt.pulse import NextDue, Pulse
from state_machines.mqtt.session import (
    CloseSession,
    CountSessions,
    GetSession,
    ListSessions,
    OpenSession,
    SaveSessions,
    SessionItem,
)
from state_machines.mqtt.session_batch import CloseSessions, LostSession
from state_machines.mqtt.sessions import NEVER_S, SessionTally
from state_machines.mqtt.will import GetWill
from tests.entities.group import Group, rows_but_books
from tests.entities.test_session_batches import a_step, told
from tests.machine.alone import NOW_MS
from tests.machine.test_runs import carried_out

ENDS = frozenset({"ends", "subscribes", "shares"})
"""Whose sessions end with their connection."""

CLIENTS = st.sampled_from("abcd")
OPENED = st.lists(
    st.builds(
        SessionItem,
        client_id=CLIENTS,
        broker=st.sampled_from(("b1", "b2")),
        expiry_s=st.sampled_from((0, 5, 60)),
        clean_start=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
LOST = st.lists(
    st.tuples(
        CLIENTS,
        st.booleans(),  # whether the epoch is in force
        st.booleans(),
        st.sampled_from((None, 0, 7, NEVER_S)),
    ),
    min_size=1,
    max_size=6,
)
STEPS = st.one_of(
    st.tuples(st.just("open"), OPENED),
    st.tuples(st.just("lose"), LOST),
    st.tuples(st.just("will"), CLIENTS, st.sampled_from((0, 3))),
    st.tuples(st.just("close"), CLIENTS),
    st.tuples(st.just("subscribe"), CLIENTS),
    st.tuples(st.just("join"), CLIENTS),
    st.tuples(st.just("later"), st.integers(1, 9)),
)


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def stands(group: Group) -> tuple[object, ...]:
    """All there is, but for the numbers that are given out."""
    sessions = group.ask(ListSessions()).sessions
    counts = {name: len(rows) for name, rows in rows_but_books(group.store).items()}
    wills = [group.ask(GetWill(client_id=each)) for each in "abcd"]
    return (
        [replace(each, epoch=0) for each in sessions],
        group.ask(CountSessions()),
        wills,
        counts,
        sorted(group.store.dump().get(DUE.name, {})),
    )


def lost_of(group: Group, lost: list[tuple[str, bool, bool, int | None]]) -> list[LostSession]:
    """Items for a group, which has given epochs of its own."""
    items = []
    for client_id, in_force, graceful, expiry_s in lost:
        session = group.ask(GetSession(client_id=client_id))
        epoch = (session.epoch if session is not None else 1) + (not in_force)
        items.append(
            LostSession(client_id=client_id, epoch=epoch, graceful=graceful, expiry_s=expiry_s)
        )
    return items


def code_of(group: Group, close: CloseSession) -> str:
    try:
        group.run(close)
    except Rejected as error:
        return error.code
    return OK


@given(st.lists(STEPS, max_size=12))
def test_a_batch_or_a_run_does_what_its_sessions_would_one_after_the_other(
    steps: list[tuple[Any, ...]],
) -> None:
    whole, run, single = groups = Group("mqtt"), Group("mqtt"), Group("mqtt")
    for what, *how in steps:
        if what == "open":
            (some,) = how
            reply = whole.run(SaveSessions(sessions=tuple(some)))
            each = [OpenSession(**asdict(one)) for one in some]
            replies = []
            for one in each:
                replies.append(opened := single.run(one))
                row = single.ask(GetSession(client_id=one.client_id))
                assert (row.epoch, row.created_ms) == (opened.epoch, opened.created_ms)
            expected = [(one.present, one.created_ms) for one in replies]
            assert [(one.present, one.created_ms) for one in reply] == expected
            assert [(one.present, one.created_ms) for one in carried_out(run, each)] == expected
        elif what == "lose":
            (some,) = how
            reply = whole.run(CloseSessions(items=tuple(lost_of(whole, some))))
            codes = [code_of(single, CloseSession(**asdict(one))) for one in lost_of(single, some)]
            assert [one.code for one in reply] == codes
            said = carried_out(run, [CloseSession(**asdict(one)) for one in lost_of(run, some)])
            assert [OK if one is None else one.split()[0] for one in said] == codes
        elif what == "later":
            for group in groups:
                group.later(*how)
        else:
            for group in groups:
                session = group.ask(GetSession(client_id=how[0]))
                if session is not None and session.connected:
                    group.run(a_step(what, session, *how[1:]))
        assert stands(whole) == stands(run) == stands(single)
        assert told(whole) == told(run) == told(single)


def test_a_batch_closes_those_it_may_and_keeps_their_time(group: Group) -> None:
    """MQTT 5, 3.1.2.11.2 and 3.14.2.2.2."""
    names = ("lasts", "ends", "never", "shorter", "subscribes", "shares", "says", "taken", "closed")
    opened = {
        each: group.run(
            OpenSession(client_id=each, broker="b1", expiry_s=0 if each in ENDS else 60)
        )
        for each in names
    }
    for each, step in (("subscribes", "subscribe"), ("shares", "join"), ("says", "will")):
        group.run(a_step(step, group.ask(GetSession(client_id=each))))
    group.run(OpenSession(client_id="taken", broker="b2", expiry_s=60))
    group.run(CloseSession(client_id="closed", epoch=opened["closed"].epoch))
    group.later(1)
    asked = {"never": NEVER_S, "shorter": 5, "ends": None}
    reply = group.run(
        CloseSessions(
            items=(
                LostSession(client_id="nobody", epoch=1),
                *(
                    LostSession(client_id=each, epoch=opened[each].epoch, expiry_s=asked.get(each))
                    for each in names
                ),
                LostSession(client_id="lasts", epoch=opened["lasts"].epoch),
                LostSession(client_id="lasts", epoch=opened["lasts"].epoch + 1),
            )
        )
    )
    codes = dict(zip(("nobody", *names), [each.code for each in reply[:-2]], strict=True))
    assert codes == dict.fromkeys(names, OK) | {"nobody": "NOT_FOUND", "taken": "FENCED"}
    assert [each.code for each in reply[-2:]] == [OK, "FENCED"]
    left = {each.client_id: each for each in group.ask(ListSessions()).sessions}
    assert left.keys() == {"lasts", "never", "shorter", "taken", "closed", "says"}
    times = {
        each: (session.disconnected_ms - NOW_MS, session.expires_ms and session.expires_ms - NOW_MS)
        for each, session in left.items()
    }
    assert times == {
        "lasts": (1_000, 61_000),
        "never": (1_000, 0),
        "shorter": (1_000, 6_000),
        "taken": (-NOW_MS, 0),
        "closed": (0, 60_000),
        "says": (1_000, 61_000),
    }
    assert (left["never"].expiry_s, left["shorter"].expiry_s) == (NEVER_S, 5)
    assert group.ask(CountSessions()) == SessionTally("default", 6, 1)
    hung = ("mqtt.subscription", "mqtt.share_member", "mqtt.outbox")
    assert [group.rows(each) for each in hung] == [0, 0, 1]
    group.later(60)
    assert group.run(Pulse(controller_epoch=1)).sessions == 4
    assert group.ask(NextDue()) == 0
