"""A session from CONNECT to its end, with its will: each case of MQTT 5, 3.1.2.5 and 3.1.3.2.2."""

from __future__ import annotations

import pytest

from state_machines.errors import Fenced, Invalid, NotFound
from state_machines.mqtt.pulse import NextDue, Pulse, PulseReply
from state_machines.mqtt.session import (
    CloseSession,
    CountSessions,
    DeleteSessions,
    GetSession,
    OpenSession,
    SaveSessions,
    SessionItem,
)
from state_machines.mqtt.session_will import OpenSessionWithWill
from state_machines.mqtt.sessions import NEVER_S, SessionTally
from state_machines.mqtt.subscription import (
    DeleteSubscriptions,
    ListSubscriptions,
    PutSubscriptions,
    TopicFilter,
)
from state_machines.mqtt.will import (
    AckOutbox,
    ClaimOutbox,
    DeleteWill,
    GetWill,
    LastWill,
    Outbox,
    OutboxState,
    PendingOutbox,
    SetWill,
    Will,
)
from tests.machine.alone import NOW_MS, Group


class Fleet(Group):
    """The mqtt group, in the words of a client's life."""

    def __init__(self) -> None:
        super().__init__("mqtt")
        self.epoch = 0

    def connect(self, *, expiry_s: int = 0, clean: bool = False, broker: str = "b1") -> bool:
        """Whether the session was present."""
        opened = self.run(
            OpenSession(client_id="ann", broker=broker, expiry_s=expiry_s, clean_start=clean)
        )
        assert opened.epoch > self.epoch, "every takeover raises the epoch"
        self.epoch = opened.epoch
        return bool(opened.present)

    def will(self, delay_s: int = 0, payload: bytes = b"gone") -> None:
        self.run(
            SetWill(
                client_id="ann", epoch=self.epoch, topic="wills", payload=payload, delay_s=delay_s
            )
        )

    def lose(self) -> None:
        """The connection breaks."""
        self.run(CloseSession(client_id="ann", epoch=self.epoch))

    def leave(self, expiry_s: int | None = None) -> None:
        """DISCONNECT."""
        self.run(CloseSession(client_id="ann", epoch=self.epoch, graceful=True, expiry_s=expiry_s))

    def pulse(self, seconds: int = 0) -> PulseReply:
        self.now_ms += seconds * 1_000
        reply = self.run(Pulse(controller_epoch=1))
        assert isinstance(reply, PulseReply)
        return reply

    def published(self) -> list[bytes]:
        """What is in the outbox, taken and acknowledged."""
        claimed: tuple[Outbox, ...] = self.run(ClaimOutbox(broker="b1", grace_ms=0))
        if claimed:
            ids = tuple(each.outbox_id for each in claimed)
            assert self.run(AckOutbox(broker="b1", ids=ids)) == len(claimed)
        return [each.payload for each in claimed]

    def alive(self) -> bool:
        return self.ask(GetSession(client_id="ann")) is not None

    def nothing_is_left(self) -> bool:
        """No row of a client whose session has ended."""
        rows = {
            name
            for name in self.store.dump()
            if name.startswith("mqtt.")
            and name not in ("mqtt.session_tally", "mqtt.outbox_counter")
        }
        return not rows


@pytest.fixture
def ann() -> Fleet:
    return Fleet()


# -- will delay and session expiry: whichever is first ------------------------------------------


@pytest.mark.parametrize(
    ("expiry_s", "delay_s", "fires_after_s"),
    [
        (30, 10, 10),  # the delay is first
        (10, 30, 10),  # the session ends first
        (10, 10, 10),
        (NEVER_S, 10, 10),
        (NEVER_S, NEVER_S, NEVER_S),
    ],
)
def test_a_will_fires_after_its_delay_or_with_its_session(
    ann: Fleet, expiry_s: int, delay_s: int, fires_after_s: int
) -> None:
    ann.connect(expiry_s=expiry_s)
    ann.will(delay_s)
    ann.lose()
    assert ann.ask(NextDue()) == NOW_MS + fires_after_s * 1_000
    ann.pulse(fires_after_s - 1)
    assert ann.published() == []
    ann.pulse(1)
    assert ann.published() == [b"gone"]
    ann.pulse(100)
    assert ann.published() == []


@pytest.mark.parametrize(("expiry_s", "delay_s"), [(0, 0), (0, 30), (30, 0)])
def test_a_will_without_delay_or_session_fires_at_once(
    ann: Fleet, expiry_s: int, delay_s: int
) -> None:
    ann.connect(expiry_s=expiry_s)
    ann.will(delay_s)
    ann.lose()
    assert ann.published() == [b"gone"]
    assert ann.alive() == bool(expiry_s)


def test_a_normal_disconnect_deletes_the_will(ann: Fleet) -> None:
    ann.connect(expiry_s=5)
    ann.will(2)
    ann.leave()
    assert ann.ask(GetWill(client_id="ann")) is None
    ann.pulse(100)
    assert ann.published() == []
    assert ann.nothing_is_left()


def test_a_client_that_is_back_in_time_cancels_its_will(ann: Fleet) -> None:
    ann.connect(expiry_s=30)
    ann.will(10)
    ann.lose()
    ann.now_ms += 9_999
    assert ann.connect(expiry_s=30, broker="b2")
    ann.pulse(100)
    assert ann.published() == []


def test_a_client_that_is_back_too_late_does_not_though_no_pulse_has_come(ann: Fleet) -> None:
    ann.connect(expiry_s=30)
    ann.will(10)
    ann.lose()
    ann.now_ms += 10_000
    assert ann.connect(expiry_s=30)
    assert ann.published() == [b"gone"]


def test_a_session_that_is_over_is_not_resumed_though_no_pulse_has_come(ann: Fleet) -> None:
    ann.connect(expiry_s=5)
    ann.will(100)
    ann.run(PutSubscriptions(client_id="ann", epoch=ann.epoch, filters=(TopicFilter(filter="t"),)))
    ann.lose()
    ann.now_ms += 5_000
    assert not ann.connect(expiry_s=5)
    assert ann.published() == [b"gone"]
    assert ann.ask(ListSubscriptions(client_id="ann")).subscriptions == ()


def test_a_clean_start_ends_the_session_and_so_sends_the_will(ann: Fleet) -> None:
    ann.connect(expiry_s=30)
    ann.will(10)
    ann.run(PutSubscriptions(client_id="ann", epoch=ann.epoch, filters=(TopicFilter(filter="t"),)))
    ann.lose()
    assert not ann.connect(clean=True)
    assert ann.published() == [b"gone"]
    assert ann.ask(ListSubscriptions(client_id="ann")).subscriptions == ()


@pytest.mark.parametrize(
    ("delay_s", "clean", "sent"),
    [(0, False, [b"gone"]), (10, False, []), (10, True, [b"gone"]), (0, True, [b"gone"])],
)
def test_a_takeover_sends_the_will_unless_it_has_a_delay_and_the_session_goes_on(
    ann: Fleet, delay_s: int, clean: bool, sent: list[bytes]
) -> None:
    ann.connect(expiry_s=60)
    ann.will(delay_s)
    assert ann.connect(expiry_s=60, clean=clean, broker="b2") == (not clean)
    assert ann.published() == sent
    ann.pulse(100)
    assert ann.published() == []


def test_a_session_is_opened_with_its_will_or_keeps_the_one_it_had(ann: Fleet) -> None:
    """In one command, so that no client is left without one."""

    def opening(topic: str, payload: bytes) -> OpenSessionWithWill:
        said = LastWill(topic=topic, payload=payload, qos=1, retain=True, delay_s=5, expiry_s=7)
        return OpenSessionWithWill(client_id="ann", broker="b2", expiry_s=60, will=said)

    ann.connect(expiry_s=60)
    ann.will(10)
    ann.lose()
    with pytest.raises(Invalid, match="topic: "):
        ann.run(opening("#", b"x"))
    opened = ann.run(opening("wills/2", b"gone again"))
    assert opened.present
    assert opened.epoch > ann.epoch
    assert ann.ask(GetWill(client_id="ann")) == Will(
        "default", "ann", "wills/2", b"gone again", 1, True, 5, 0, 7, None
    )
    ann.epoch = opened.epoch
    ann.lose()
    ann.pulse(5)
    assert ann.published() == [b"gone again"]


def test_a_new_connection_has_no_will_until_it_sets_one(ann: Fleet) -> None:
    ann.connect(expiry_s=60)
    ann.will(10)
    ann.connect(expiry_s=60)
    ann.lose()
    ann.pulse(1_000)
    assert ann.published() == []


@pytest.mark.parametrize(("delay_s", "sent"), [(None, []), (0, [b"gone"]), (30, [b"gone"])])
def test_a_session_that_ends_with_its_connection_is_not_resumed_by_who_takes_that_over(
    ann: Fleet, delay_s: int | None, sent: list[bytes]
) -> None:
    """MQTT-3.1.2-6 and MQTT 5, 3.1.2.11.2, also where nobody has told us that it was lost."""
    ann.connect(expiry_s=0)
    ann.run(PutSubscriptions(client_id="ann", epoch=ann.epoch, filters=(TopicFilter(filter="t"),)))
    if delay_s is not None:
        ann.will(delay_s)
    ann.now_ms += 5_000
    assert not ann.connect(expiry_s=60, broker="b2")
    assert ann.published() == sent
    assert ann.ask(ListSubscriptions(client_id="ann")).subscriptions == ()
    session = ann.ask(GetSession(client_id="ann"))
    assert (session.created_ms, session.subscriptions) == (NOW_MS + 5_000, 0)
    assert ann.ask(CountSessions()) == SessionTally("default", 1, 1)
    assert ann.connect(expiry_s=60), "this one goes on"


# -- expiry -------------------------------------------------------------------------------------


def test_a_session_expires_with_all_that_hangs_on_it(ann: Fleet) -> None:
    ann.connect(expiry_s=60)
    ann.run(
        PutSubscriptions(
            client_id="ann",
            epoch=ann.epoch,
            filters=(TopicFilter(filter="a/#"), TopicFilter(filter="$share/s/b", qos=2)),
        )
    )
    ann.lose()
    assert ann.ask(GetSession(client_id="ann")).expires_ms == NOW_MS + 60_000
    assert ann.pulse(59) == PulseReply(0, 0, 0, NOW_MS + 60_000)
    assert ann.alive()
    assert ann.pulse(1) == PulseReply(0, 1, 0, 0)
    assert ann.nothing_is_left()


def test_a_session_that_never_expires_has_no_timer(ann: Fleet) -> None:
    ann.connect(expiry_s=NEVER_S)
    ann.lose()
    assert ann.ask(NextDue()) == 0
    ann.pulse(10**9)
    assert ann.alive()
    assert ann.connect(expiry_s=NEVER_S)
    assert ann.ask(CountSessions()) == SessionTally("default", 1, 1)


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("will", [True, False])
def test_a_session_that_is_resumed_keeps_its_age_and_its_filters(
    ann: Fleet, will: bool, lost: bool
) -> None:
    ann.connect(expiry_s=60)
    if will:
        ann.will(30)
    ann.run(PutSubscriptions(client_id="ann", epoch=ann.epoch, filters=(TopicFilter(filter="t"),)))
    if lost:
        ann.lose()
    ann.now_ms += 5_000
    assert ann.connect(expiry_s=60, broker="b2")
    session = ann.ask(GetSession(client_id="ann"))
    assert (session.created_ms, session.subscriptions) == (NOW_MS, 1)
    assert session.connected_ms == NOW_MS + 5_000


def test_the_will_of_who_is_taken_over_goes_to_his_broker_first(ann: Fleet) -> None:
    ann.connect(expiry_s=60)
    ann.will()
    ann.connect(expiry_s=60, broker="b2")
    assert ann.run(ClaimOutbox(broker="b2")) == ()
    assert len(ann.run(ClaimOutbox(broker="b1"))) == 1


def test_a_connected_session_does_not_expire(ann: Fleet) -> None:
    ann.connect(expiry_s=5)
    ann.lose()
    ann.connect(expiry_s=5)
    assert ann.ask(NextDue()) == 0
    ann.pulse(1_000)
    assert ann.alive()


def test_disconnect_may_change_the_expiry_but_not_from_nothing(ann: Fleet) -> None:
    ann.connect(expiry_s=60)
    ann.leave(expiry_s=5)
    ann.pulse(5)
    assert not ann.alive()
    ann.connect(expiry_s=60)
    ann.leave(expiry_s=0)
    assert not ann.alive()
    ann.connect(expiry_s=0)
    with pytest.raises(Invalid, match="expiry_s: "):
        ann.leave(expiry_s=5)
    assert ann.alive()


def test_closing_twice_arms_once(ann: Fleet) -> None:
    ann.connect(expiry_s=60)
    ann.lose()
    ann.now_ms += 30_000
    ann.lose()
    assert ann.ask(NextDue()) == NOW_MS + 60_000


# -- fencing ------------------------------------------------------------------------------------


def test_the_old_broker_is_fenced_from_everything_that_hangs_on_the_session(ann: Fleet) -> None:
    ann.connect(expiry_s=60)
    old = ann.epoch
    ann.will(10)
    ann.connect(expiry_s=60, broker="b2")
    before = ann.ask(GetSession(client_id="ann"))
    for command in (
        CloseSession(client_id="ann", epoch=old),
        SetWill(client_id="ann", epoch=old, topic="t", payload=b""),
        DeleteWill(client_id="ann", epoch=old),
        PutSubscriptions(client_id="ann", epoch=old, filters=(TopicFilter(filter="t"),)),
        DeleteSubscriptions(client_id="ann", epoch=old, filters=("t",)),
    ):
        with pytest.raises(Fenced, match=f"epoch: {old}, in force is {ann.epoch}"):
            ann.run(command)
    assert ann.ask(GetSession(client_id="ann")) == before


def test_epochs_never_repeat_not_even_within_an_entry_or_over_an_end(ann: Fleet) -> None:
    open_it = OpenSession(client_id="ann", broker="b1")
    seen = []
    for _ in range(3):
        outcomes = ann.together(open_it, open_it, DeleteSessions(client_ids=("ann",)), open_it)
        seen += [each.epoch for each in outcomes if not isinstance(each, int)]
    assert seen == sorted(set(seen))
    (first, second) = ann.run(SaveSessions(sessions=(SessionItem(client_id="x", broker="b"),) * 2))
    assert second.epoch > first.epoch > seen[-1]


def test_without_a_session_nothing_hangs_on_it(ann: Fleet) -> None:
    for command in (
        CloseSession(client_id="ann", epoch=1),
        SetWill(client_id="ann", epoch=1, topic="t", payload=b""),
        PutSubscriptions(client_id="ann", epoch=1, filters=(TopicFilter(filter="t"),)),
    ):
        with pytest.raises(NotFound, match="client_id: "):
            ann.run(command)
    assert ann.nothing_is_left()


def test_a_will_is_set_while_connected_only(ann: Fleet) -> None:
    ann.connect(expiry_s=60)
    ann.lose()
    with pytest.raises(Invalid, match="client_id: the session is not connected"):
        ann.will()


# -- the outbox ---------------------------------------------------------------------------------


def fired(ann: Fleet, count: int = 3, payload: bytes = b"gone") -> None:
    """Wills of clients of b1, in the outbox."""
    for number in range(count):
        client_id = f"c{number}"
        epoch = ann.run(OpenSession(client_id=client_id, broker="b1")).epoch
        ann.run(SetWill(client_id=client_id, epoch=epoch, topic="t", payload=payload))
        ann.run(CloseSession(client_id=client_id, epoch=epoch))


def claim(ann: Fleet, broker: str, limit: int = 100) -> list[str]:
    return [
        each.client_id
        for each in ann.run(ClaimOutbox(broker=broker, limit=limit, lease_ms=5_000, grace_ms=1_000))
    ]


def test_a_will_goes_to_its_own_broker_first_and_to_any_after_a_while(ann: Fleet) -> None:
    fired(ann)
    assert ann.ask(PendingOutbox()) == OutboxState(3, NOW_MS)
    assert claim(ann, "b2") == []
    assert claim(ann, "b1", 2) == ["c0", "c1"]
    ann.now_ms += 1_000
    assert claim(ann, "b2") == ["c2"]


def test_a_claim_runs_out_and_the_late_acknowledgement_does_not_count(ann: Fleet) -> None:
    fired(ann, 1)
    (first,) = ann.run(ClaimOutbox(broker="b1", lease_ms=5_000))
    ann.now_ms += 4_999
    assert claim(ann, "b2") == []
    ann.now_ms += 1
    (second,) = ann.run(ClaimOutbox(broker="b2", lease_ms=5_000))
    assert second.outbox_id == first.outbox_id
    assert ann.run(AckOutbox(broker="b1", ids=(first.outbox_id,))) == 0
    assert ann.run(AckOutbox(broker="b2", ids=(first.outbox_id, 999))) == 1
    assert ann.ask(PendingOutbox()) == OutboxState(0, 0)


def test_a_claim_has_a_size(ann: Fleet) -> None:
    fired(ann, 3, bytes(600_000))
    assert claim(ann, "b1") == ["c0"]
    assert claim(ann, "b1") == ["c1"]


def test_a_broker_may_ask_for_its_own_tenant_alone(ann: Fleet) -> None:
    fired(ann, 1)
    assert ann.run(ClaimOutbox(broker="b1", tenant="other")) == ()
    assert len(ann.run(ClaimOutbox(broker="b1", tenant="default"))) == 1


# -- the pulse ----------------------------------------------------------------------------------


def test_a_pulse_fires_at_most_its_limit_and_says_when_to_come_back(ann: Fleet) -> None:
    for number in range(5):
        epoch = ann.run(OpenSession(client_id=f"c{number}", broker="b", expiry_s=5)).epoch
        ann.run(CloseSession(client_id=f"c{number}", epoch=epoch))
    ann.now_ms += 5_000
    due = NOW_MS + 5_000
    replies = [ann.run(Pulse(controller_epoch=1, limit=2)) for _ in range(4)]
    assert [each.sessions for each in replies] == [2, 2, 1, 0]
    assert [each.next_due_ms for each in replies] == [due, due, 0, 0]


def test_a_controller_of_yesterday_fires_nothing(ann: Fleet) -> None:
    ann.run(Pulse(controller_epoch=7))
    ann.connect(expiry_s=5)
    ann.lose()
    ann.now_ms += 5_000
    with pytest.raises(Fenced, match="controller_epoch: 6, in force is 7"):
        ann.run(Pulse(controller_epoch=6))
    assert ann.alive()
    ann.run(Pulse(controller_epoch=7))
    assert not ann.alive()


# -- counts -------------------------------------------------------------------------------------


def test_sessions_are_counted_as_they_come_and_go(ann: Fleet) -> None:
    def counted() -> tuple[int, int]:
        tally: SessionTally = ann.ask(CountSessions())
        return tally.sessions, tally.connected

    assert counted() == (0, 0)
    ann.connect(expiry_s=60)
    ann.connect(expiry_s=60)
    assert counted() == (1, 1)
    ann.lose()
    assert counted() == (1, 0)
    ann.connect(clean=True)
    assert counted() == (1, 1)
    ann.run(SaveSessions(sessions=tuple(SessionItem(client_id=c, broker="b") for c in "xyz")))
    assert counted() == (4, 4)
    assert ann.run(DeleteSessions(client_ids=("x", "x", "nobody", "y"))) == 2
    assert counted() == (2, 2)
    ann.leave()
    assert counted() == (1, 1)


def test_a_session_knows_how_many_filters_it_has(
    ann: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from state_machines.errors import QuotaExceeded

    monkeypatch.setattr("state_machines.mqtt.subscription.SUBSCRIPTIONS_MAX", 3)
    ann.connect(expiry_s=60)

    def subscribe(*filters: str) -> None:
        made = tuple(TopicFilter(filter=each) for each in filters)
        ann.run(PutSubscriptions(client_id="ann", epoch=ann.epoch, filters=made))

    subscribe("a", "b", "a")
    assert ann.ask(GetSession(client_id="ann")).subscriptions == 2
    with pytest.raises(QuotaExceeded, match="filters: 4 for one session, the limit is 3"):
        subscribe("c", "d")
    assert len(ann.ask(ListSubscriptions(client_id="ann")).subscriptions) == 2
    assert (
        ann.run(DeleteSubscriptions(client_id="ann", epoch=ann.epoch, filters=("a", "nothing")))
        == 1
    )
    subscribe("c", "d")
    ann.connect(expiry_s=60)
    assert ann.ask(GetSession(client_id="ann")).subscriptions == 3
