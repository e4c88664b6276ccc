"""Real MQTT clients: a fleet of paho clients on the demo's brokers, and what must hold for them.

Every member has a persistent session, subscriptions at QoS 1, a retained message and a will. Some
are dropped (the socket is closed, no DISCONNECT), one broker is restarted under the others, and a
watcher on each broker counts wills. What is asked in the end:

- each dropped client's will was published once, by one broker, after its delay; no other was;
- members of the restarted broker found their sessions (session present), get QoS 1 messages
  without subscribing again, and every acknowledged retained message reaches a new subscriber.

Waiting is for conditions, each with a deadline.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Self

from metaray.demo.mqtt_member import ROOT, Address, Member

RETRY_SECONDS: Final = 0.2
EARLY_SECONDS: Final = 0.05  #: clocks of two processes on one machine agree this well


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was asked, and the answer."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttReport:
    """What became of the fleet."""

    clients: int
    subscriptions: int  #: granted by SUBACK
    retained: int  #: acknowledged by PUBACK
    dropped: int
    wills_once: int  #: dropped clients whose will came exactly once over all brokers
    will_delay_s: float
    will_seconds: tuple[float, ...]  #: from the drop to the will, one for each that came
    resumed: int  #: members that found their session after a restart of their broker
    delivered: int  #: QoS 1 messages that reached them without subscribing again
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Every check held."""
        return all(check.ok for check in self.checks)


class Fleet:
    """The clients of the demo. Use as a context manager; methods block, none for ever."""

    def __init__(
        self,
        brokers: Sequence[Address],
        *,
        clients: int = 60,
        will_delay_s: float,
        deadline_s: float = 60.0,
    ) -> None:
        self._deadline_s = deadline_s
        self._will_delay_s = will_delay_s
        self._changed = threading.Condition()
        self._closing = False
        self._checks: list[Check] = []
        self._resumed = 0
        self._delivered = 0
        self._run = secrets.token_hex(
            4
        )  #: an earlier run's wills, on a cluster that was kept, are not ours
        self.members = [
            Member(
                f"{ROOT}-{each:03}",
                brokers[each % len(brokers)],
                self._changed,
                number=each,
                will=(f"{ROOT}/will/{each}", f"gone in run {self._run}".encode()),
            )
            for each in range(clients)
        ]
        self.watchers = [
            Member(f"{ROOT}-watcher-{each.name}", each, self._changed) for each in brokers
        ]
        self._keeper = threading.Thread(target=self._keep_connected, name="mqtt fleet", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what the demo does ------------------------------------------------------------------

    def connect(self) -> None:
        """Connect everyone, subscribe, publish a retained message each."""
        self._keeper.start()
        everyone = [*self.members, *self.watchers]
        self._check(
            "mqtt clients connect",
            lambda: [each for each in everyone if not each.connects],
            f"{len(everyone)} connected",
        )
        for each in self.watchers:
            each.client.subscribe(f"{ROOT}/will/#", qos=1)
        for each in self.members:
            each.client.subscribe([(f"{ROOT}/to/{each.number}", 1), (f"{ROOT}/all/+", 1)])
            each.client.publish(f"{ROOT}/state/{each.number}", _state(each), qos=1, retain=True)
        self._check(
            "mqtt subscriptions are granted",
            lambda: [
                each for each in everyone if sum(each.subscribed) < (1 if each.number < 0 else 2)
            ],
            f"{2 * len(self.members)} granted",
        )
        self._check(
            "mqtt retained messages are acknowledged",
            lambda: [each for each in self.members if not each.acknowledged],
            f"{len(self.members)} acknowledged",
        )

    def drop(self, count: int) -> tuple[str, ...]:
        """Close the sockets of `count` members, spread over the brokers, without a goodbye."""
        chosen = [each for each in self.members if not each.dropped_at][:count]
        for each in chosen:
            each.drop()
        return tuple(each.name for each in chosen)

    def before_restart(self, broker: str) -> None:
        """Remember who is connected to the broker that is about to be stopped or killed."""
        with self._changed:
            for each in (*self.members, *self.watchers):
                if each.broker.name == broker:
                    each.connects.clear()

    def after_restart(self, broker: str) -> None:
        """The broker runs again: wait for its clients, and check what they find."""
        back = self._of(broker)
        watcher = next(each for each in self.watchers if each.broker.name == broker)
        self._check(
            f"clients of {broker} come back",
            lambda: [each for each in (*back, watcher) if not each.connects],
            f"{len(back)} came back",
        )
        with self._changed:
            strangers = [each.name for each in back if each.connects[:1] != [True]]
            self._resumed += len(back) - len(strangers)
        self._note(
            f"clients of {broker} find their sessions",
            not strangers,
            f"session present for {len(back) - len(strangers)} of {len(back)} {strangers[:5]}",
        )
        token = f"after the restart of {broker}, {time.monotonic_ns()}".encode()
        for each in back:
            watcher.client.publish(f"{ROOT}/to/{each.number}", token, qos=1)
        missing = self._check(
            f"subscriptions of clients of {broker} work without subscribing again",
            lambda: [
                each for each in back if token not in [line.payload for line in each.received]
            ],
            f"{len(back)} messages delivered",
        )
        self._delivered += len(back) - missing
        self._check_retained(watcher.broker)

    def await_wills(self) -> None:
        """Wait until every dropped member's will has come, and check that none came twice."""
        dropped = [each for each in self.members if each.dropped_at]
        self._check(
            "wills of dropped clients are published",
            lambda: [each for each in dropped if not self._wills(each)],
            f"{len(dropped)} published",
            self._will_delay_s,
        )

    def report(self) -> MqttReport:
        """The counts, and every check so far with those on wills, which can only end here."""
        with self._changed:
            dropped = [each for each in self.members if each.dropped_at]
            once = [each for each in dropped if len(self._wills(each)) == 1]
            twice = [each.name for each in dropped if len(self._wills(each)) > 1]
            alive = [each for each in self.members if not each.dropped_at]
            wrong = [each.name for each in alive if self._wills(each)]
            seconds = sorted(
                self._wills(each)[0] - each.dropped_at for each in dropped if self._wills(each)
            )
            counts = {
                "subscriptions": sum(sum(each.subscribed) for each in self.members),
                "retained": sum(each.acknowledged for each in self.members),
            }
        timing = f" {seconds[0]:.2f} to {seconds[-1]:.2f} s after the drop" if seconds else ""
        middle = f", median {median(seconds):.2f}" if seconds else ""
        checks = (
            *self._checks,
            Check(
                name="each will once, over all brokers",
                ok=len(once) == len(dropped) and not wrong,
                detail=f"{len(once)} of {len(dropped)}; twice {twice[:5]}, not dropped {wrong[:5]}",
            ),
            Check(
                name="no will before its delay",
                ok=not seconds or seconds[0] >= self._will_delay_s - EARLY_SECONDS,
                detail=f"delay {self._will_delay_s:.2f} s;{timing}{middle}",
            ),
        )
        return MqttReport(
            clients=len(self.members),
            dropped=len(dropped),
            wills_once=len(once),
            will_delay_s=self._will_delay_s,
            will_seconds=tuple(seconds),
            resumed=self._resumed,
            delivered=self._delivered,
            checks=checks,
            **counts,
        )

    def close(self) -> None:
        """Say goodbye for all that are connected and end every thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._keeper.is_alive():
            self._keeper.join()
        for each in (*self.members, *self.watchers):
            each.leave()
        for each in (*self.members, *self.watchers):
            each.join()

    # -- how ---------------------------------------------------------------------------------

    def _of(self, broker: str) -> list[Member]:
        return [each for each in self.members if each.broker.name == broker and not each.dropped_at]

    def _wills(self, member: Member) -> list[float]:
        """When the member's will came, over all brokers."""
        return [
            line.at
            for watcher in self.watchers
            for line in watcher.received
            if (line.topic, line.payload) == member.will
        ]

    def _check_retained(self, broker: Address) -> None:
        """A new subscriber gets every retained message that was acknowledged, marked as such."""
        wanted = {(f"{ROOT}/state/{each.number}", _state(each)) for each in self.members}
        name = f"{ROOT}-new-{secrets.token_hex(4)}"
        fresh = Member(name, broker, self._changed, persistent=False)
        try:
            fresh.connect()
            fresh.client.subscribe(f"{ROOT}/state/+", qos=1)
            self._check(
                f"retained messages reach a new subscriber of {broker.name}",
                lambda: list(
                    wanted
                    - {(each.topic, each.payload) for each in fresh.received if each.retained}
                ),
                f"{len(wanted)} retained messages",
            )
        except OSError as error:
            self._note(f"a new subscriber connects to {broker.name}", False, repr(error))
        finally:
            fresh.leave()
            fresh.join()

    def _check(
        self, name: str, missing: Callable[[], Sequence[Any]], detail: str, extra_s: float = 0.0
    ) -> int:
        """Wait until nothing is missing. Returns how much still is at the deadline."""
        with self._changed:
            self._changed.wait_for(lambda: not missing(), self._deadline_s + extra_s)
            left = missing()
        names = [getattr(each, "name", each) for each in left[:5]]
        self._note(name, not left, f"missing {len(left)}: {names}" if left else detail)
        return len(left)

    def _note(self, name: str, ok: bool, detail: str) -> None:
        self._checks.append(Check(name=name, ok=ok, detail=detail))

    def _keep_connected(self) -> None:
        """Connect, and connect again, whoever is not and was not dropped."""
        while True:
            with self._changed:
                if self._closing:
                    return
                everyone = (*self.members, *self.watchers)
                lost = [each for each in everyone if each.lost and not each.dropped_at]
                if not lost:
                    self._changed.wait()
                    continue
            for each in lost:
                with contextlib.suppress(OSError):  # then it is lost still
                    each.connect()
            with self._changed:
                self._changed.wait_for(lambda: self._closing, RETRY_SECONDS)


def _state(member: Member) -> bytes:
    return f"{member.name} is at {member.broker.name}".encode()
