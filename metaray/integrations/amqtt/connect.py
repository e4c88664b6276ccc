"""The CONNECT of a client, read: amqtt's own reading, of those that it can read.

amqtt reads a whole CONNECT as one of MQTT 3.1.1 before it looks at the level of the protocol. Of
one of MQTT 5 it takes the properties for the length of a name, and waits for that name; the client
waits for its CONNACK. So the level is looked at first, and whoever speaks another is told
(MQTT-3.1.2-2).
"""

from __future__ import annotations

import io
from typing import Any, Final

from amqtt.adapters import ReaderAdapter, WriterAdapter
from amqtt.errors import MQTTError, NoDataError
from amqtt.mqtt.connack import UNACCEPTABLE_PROTOCOL_VERSION, ConnackPacket
from amqtt.mqtt.connect import ConnectVariableHeader
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.session import Session

NAME: Final = "MQTT"
LEVEL: Final = 4  #: of MQTT 3.1.1


class _Again(ReaderAdapter):  # type: ignore[misc]  # amqtt is not typed for us
    """What was read already, and then what comes."""

    def __init__(self, read: bytes, reader: ReaderAdapter) -> None:
        self._read = io.BytesIO(read)
        self._reader = reader

    async def read(self, n: int = -1) -> bytes:
        """As whoever read it the first time asked for it: never across the end."""
        return self._read.read(n) or bytes(await self._reader.read(n))

    def feed_eof(self) -> None:
        """See `ReaderAdapter`."""
        self._reader.feed_eof()


async def read_connect(
    reader: ReaderAdapter, writer: WriterAdapter, plugins: Any
) -> tuple[BrokerProtocolHandler, Session]:
    """The handler and the session of a client that connects.

    Raises what amqtt does for one that sends nothing valid, and MQTTError, after its CONNACK, for
    one that speaks another protocol.
    """
    fixed = await MQTTFixedHeader.from_stream(reader)
    if fixed is None:
        raise NoDataError("no CONNECT")
    header = await ConnectVariableHeader.from_stream(reader, fixed)
    if header.proto_name != NAME:
        raise MQTTError(f"protocol name {header.proto_name[:80]!r}")
    if header.proto_level != LEVEL:
        await ConnackPacket.build(0, UNACCEPTABLE_PROTOCOL_VERSION).to_stream(writer)
        raise MQTTError(f"protocol level {header.proto_level}, MQTT 3.1.1 has {LEVEL}")
    again = _Again(fixed.to_bytes() + bytes(header.to_bytes()), reader)
    handler, session = await BrokerProtocolHandler.init_from_connect(again, writer, plugins)
    return handler, session
