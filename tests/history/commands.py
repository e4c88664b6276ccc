"""The operations of the models as commands and queries of ours, and what their replies say.

    steps = perform("append", "append", "k", "item")    # a get, and a put that expects its revision
    output = drive(steps, call)

One operation may take several requests, so it is a generator: it yields requests, is sent replies,
has refusals thrown at it, and returns the output.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from state_machines.errors import Rejected
from state_machines.metadata.kv import DeleteKv, GetKv, PutKv
from state_machines.metadata.node import ExpireNodes, GetNode, RegisterNode
from state_machines.mqtt.session import CloseSession, DeleteSessions, GetSession, OpenSession
from state_machines.mqtt.subscription import PutSubscriptions, TopicFilter
from state_machines.offset.group import DeleteGroup
from state_machines.offset.offset import CommitOffsets, FetchOffsets, OffsetCommit
from tests.history.operation import Value, refusal

Steps = Generator[Any, Any, Value]

KINDS: Final = {
    "register": "metadata",
    "append": "metadata",
    "counter": "metadata",
    "offset": "offset",
    "session": "mqtt",
    "fence": "metadata",
}
"""The kind of group in which each model is tried."""

LONG_MS: Final = 2**40  #: nobody is silent for so long


def request(model: str, kind: str, key: str, input: Value) -> Any:
    """The one command or query that asks for this. An append takes two: see `perform`."""
    match model, kind:
        case "register", "put":
            return PutKv(key=key, value=input[0].encode(), expected_revision=input[1])
        case "register", "delete":
            return DeleteKv(key=key, expected_revision=input)
        case ("register", "get") | ("append", "read"):
            return GetKv(key=key)
        case "counter", "add":
            return RegisterNode(node_id=key)
        case "counter", "get":
            return GetNode(node_id=key)
        case "offset", "commit":
            return CommitOffsets.of(
                [
                    OffsetCommit(
                        group=key, topic=topic, partition=partition, offset=offset, metadata=note
                    )
                    for topic, partition, offset, note in input
                ]
            )
        case "offset", "swap":
            return CommitOffsets.of(
                [
                    OffsetCommit(
                        group=key, topic=topic, partition=partition, offset=offset, expected=there
                    )
                    for topic, partition, offset, there in input
                ]
            )
        case "offset", "delete_group":
            return DeleteGroup(group=key)
        case "offset", "fetch":
            return FetchOffsets(group=key)
        case "session", "open":
            broker, expiry_s, clean_start = input
            return OpenSession(
                client_id=key, broker=broker, expiry_s=expiry_s, clean_start=clean_start
            )
        case "session", "close":
            epoch, graceful, expiry_s = input
            return CloseSession(client_id=key, epoch=epoch, graceful=graceful, expiry_s=expiry_s)
        case "session", "subscribe":
            filters = (TopicFilter(filter=input[1]),)
            return PutSubscriptions(client_id=key, epoch=input[0], filters=filters)
        case "session", "delete":
            return DeleteSessions(client_ids=(key,))
        case "session", "get":
            return GetSession(client_id=key)
        case "fence", "act":
            return ExpireNodes(controller_epoch=input, timeout_ms=LONG_MS)
    raise AssertionError(f"{model} has no {kind}")


def told(model: str, kind: str, reply: Any) -> Value:
    """What the model knows of a typed reply."""
    match model, kind:
        case "register", "get":
            return None if reply is None else (reply.value.decode(), reply.revision)
        case "append", "read":
            return () if reply is None else tuple(reply.value.decode().split())
        case "counter", "add":
            return reply.epoch
        case "counter", "get":
            return 0 if reply is None else reply.epoch
        case "offset", "commit":
            return reply.committed
        case "offset", "swap":
            return reply.refused.places if reply.refused is not None else ()
        case "offset", "fetch":
            return tuple([(x.topic, x.partition, x.offset, x.metadata, x.commits) for x in reply])
        case "session", "open":
            return reply.epoch, reply.present
        case "session", "get":
            if reply is None:
                return None
            return reply.broker, reply.epoch, reply.connected, reply.expiry_s, reply.subscriptions
        case "fence", "act":
            return None  # whom it found silent is not the fence's business
    return reply


def perform(model: str, kind: str, key: str, input: Value) -> Steps:
    """Requests, one after another, and the output."""
    try:
        if (model, kind) == ("append", "append"):
            found = yield GetKv(key=key)
            items = told("append", "read", found)
            text = " ".join((*items, input))
            revision = found.revision if found is not None else 0
            yield PutKv(key=key, value=text.encode(), expected_revision=revision)
            return len(items) + 1
        reply = yield request(model, kind, key, input)
    except Rejected as error:
        return refusal(error.code)
    return told(model, kind, reply)


def drive(steps: Steps, call: Callable[[Any], Any]) -> Value:
    """The output of an operation whose requests `call` answers or refuses."""
    try:
        wanted = next(steps)
        while True:
            try:
                reply = call(wanted)
            except Rejected as error:
                wanted = steps.throw(error)
            else:
                wanted = steps.send(reply)
    except StopIteration as end:
        return end.value
