"""One real MQTT client of the demo: paho, its network thread, and what it has been told.

paho's own reconnecting is off: the fleet connects a lost member again, so that one that was dropped
stays dropped. Everything a callback notes down is written under the fleet's condition, and told.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

ROOT: Final = "metaray-demo"  #: first level of every topic, and the start of every client id
KEEP_ALIVE_SECONDS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a broker listens."""

    name: str
    port: int
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One message, and when it came (monotonic seconds)."""

    topic: str
    payload: bytes
    at: float
    retained: bool


class Member:
    """A client of one broker. Never call it with the condition held: paho has locks of its own."""

    def __init__(
        self,
        name: str,
        broker: Address,
        changed: threading.Condition,
        *,
        number: int = -1,
        persistent: bool = True,
        will: tuple[str, bytes] | None = None,
    ) -> None:
        self.name = name
        self.broker = broker
        self.number = number  #: -1: not one of the fleet's members
        self.will = will
        self.lost = True  #: not connected
        self.dropped_at = 0.0
        self.connects: list[bool] = []  #: session present, for each CONNACK that accepted it
        self.refusals = 0
        self.subscribed: list[bool] = []  #: granted or refused, for each filter of each SUBACK
        self.unsubscribed = 0  #: UNSUBACKs
        self.acknowledged = 0  #: PUBACKs, and publishes at QoS 0 that have left
        self.received: list[Received] = []
        self._changed = changed
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            clean_session=not persistent,
            reconnect_on_failure=False,
        )
        if will is not None:
            self.client.will_set(*will, qos=1)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = self._on_subscribe
        self.client.on_unsubscribe = self._on_unsubscribe
        self.client.on_publish = self._on_publish
        self.client.on_message = self._on_message

    def connect(self) -> None:
        """Connect, also again; CONNACK comes later. Raises OSError when nobody listens."""
        self.join()  # the last connection's thread is ending, or there was none
        self.lost = False
        try:
            self.client.connect(self.broker.host, self.broker.port, KEEP_ALIVE_SECONDS)
        except OSError:
            self.lost = True
            raise
        self.client.loop_start()

    def drop(self) -> None:
        """Close the socket without DISCONNECT, as a crash or a cut cable does."""
        connection = self.client.socket()
        with self._changed:
            self.dropped_at = time.monotonic()
        if isinstance(connection, socket.socket):
            connection.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Say goodbye, if connected."""
        self.client.disconnect()

    def join(self) -> None:
        """Wait for the network thread to end, after `leave` or `drop`."""
        self.client.loop_stop()
        # paho 2.2.0 forgets the socket pair that wakes its thread when it makes the next one.
        self.client._reset_sockets()

    def _on_connect(self, _c: Any, _u: Any, flags: Any, reason: Any, _p: Any) -> None:
        with self._changed:
            if reason.is_failure:
                self.refusals += 1
            else:
                self.connects.append(bool(flags.session_present))
            self._changed.notify_all()

    def _on_disconnect(self, _c: Any, _u: Any, _flags: Any, _reason: Any, _p: Any) -> None:
        with self._changed:
            self.lost = True
            self._changed.notify_all()

    def _on_subscribe(self, _c: Any, _u: Any, _mid: int, reasons: Any, _p: Any) -> None:
        with self._changed:
            self.subscribed += [not each.is_failure for each in reasons]
            self._changed.notify_all()

    def _on_unsubscribe(self, _c: Any, _u: Any, _mid: int, _reasons: Any, _p: Any) -> None:
        with self._changed:
            self.unsubscribed += 1
            self._changed.notify_all()

    def _on_publish(self, _c: Any, _u: Any, _mid: int, _reason: Any, _p: Any) -> None:
        with self._changed:
            self.acknowledged += 1
            self._changed.notify_all()

    def _on_message(self, _c: Any, _u: Any, message: Any) -> None:
        with self._changed:
            self.received.append(
                Received(
                    topic=message.topic,
                    payload=bytes(message.payload),
                    at=time.monotonic(),
                    retained=bool(message.retain),
                )
            )
            self._changed.notify_all()
