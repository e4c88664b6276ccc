"""Nodes: the brokers of the fleet, and whether they live.

A broker registers under its node id and gets an epoch; each registration raises it, and whoever
holds an older one is fenced. Epochs outlive the registration, so a broker that was unregistered and
comes back still fences its own past. A broker that sends no heartbeat for the timeout is marked
offline by the controller; its next heartbeat, if its epoch still holds, brings it back, so a blip
never bars a broker for good. Each controller counts from its own first look on: while metadata had
no leader nobody could be heard. That a node went silent or left is a row of its own besides
(`node_event.py`), which others watch.

A broker may say what it does, its roles: segments are placed on those that say `engine`, connectors
on those that say `connectors`. Where nobody says so, everybody does it (`of_role`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.errors import Fenced, Invalid, NotFound
from state_machines.fence import check_epoch, counting_since, pass_fence
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.metadata import node_event
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

ADDRESSES_MAX: Final = 32
ROLES_MAX: Final = 16

# What a broker may say that it does. Other words place nothing on it.
ENGINE: Final = "engine"  #: it keeps copies of segments
CONNECTORS: Final = "connectors"  #: it runs connectors


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker speaks a protocol: ("mqtt", "10.0.0.1:1883")."""

    protocol: str
    address: str


@dataclass(frozen=True, slots=True)
class Node:
    """A registered broker. Times are the group's, Unix milliseconds, but for `start_ms`."""

    node_id: str
    epoch: int
    online: bool
    addresses: tuple[Address, ...]
    registered_ms: int
    heartbeat_ms: int
    roles: tuple[str, ...] = ()  #: what it does: "engine", "connectors", or any other word
    start_ms: int = 0  #: when its process began, by its own clock; 0: not said


@dataclass(frozen=True, slots=True)
class NodeEpoch:
    """The latest epoch given to a node id; never deleted."""

    node_id: str
    epoch: int


NODES: Final = Table("metadata.node", Node, key=("node_id",), identity_field="epoch")
EPOCHS: Final = Table("metadata.node_epoch", NodeEpoch, key=("node_id",))

FLEET: Final = "metadata.fleet"
"""Where `Tables.memo` has the loads of the nodes that are online (`shard_placement.Fleet`): who
changes a load, or whether a node is online, forgets it."""


@dataclass(frozen=True, slots=True)
class NodePage:
    """Nodes by id; `next` continues after the last one, empty at the end."""

    nodes: tuple[Node, ...]
    next: bytes


def of_role(nodes: Sequence[Node], role: str) -> Sequence[Node]:
    """Of all that are registered those with the role, or all of them if none has it.

    Also who is offline has it: others do not get its work for the time that it is away.
    """
    return [each for each in nodes if role in each.roles] or nodes


@remover(NODES)
def _remove(db: Tables, at: Stamp, node: Node) -> None:
    db.memo.pop(FLEET, None)
    db.delete(NODES, node.node_id)


def _held(db: Tables, node_id: str, epoch: int) -> Node:
    """The node, if the caller's epoch is the one in force."""
    node = db.get(NODES, node_id)
    if node is None:
        raise NotFound(f"node_id: {node_id!r} is not registered")
    if epoch != node.epoch:
        raise Fenced(f"epoch: {epoch}, in force is {node.epoch}")
    return node


@command("metadata.node.register")
class RegisterNode:
    """Join the fleet, or join again with a higher epoch. The reply is the node with its epoch."""

    urgent: ClassVar[bool] = True
    node_id: str
    addresses: tuple[Address, ...] = ()
    roles: tuple[str, ...] = ()
    start_ms: int = 0

    def validate(self) -> None:
        """Names within their limits."""
        names.name(self.node_id, "node_id")
        if len(self.addresses) > ADDRESSES_MAX:
            raise Invalid(f"addresses: {len(self.addresses)}, the limit is {ADDRESSES_MAX}")
        for each in self.addresses:
            names.name(each.protocol, "addresses.protocol")
            names.name(each.address, "addresses.address")
        if len(self.roles) > ROLES_MAX:
            raise Invalid(f"roles: {len(self.roles)}, the limit is {ROLES_MAX}")
        for role in self.roles:
            names.name(role, "roles")
        names.positive(self.start_ms, "start_ms")

    def apply(self, db: Tables, at: Stamp) -> Node:
        """Raise the epoch and fence the former holder."""
        last = db.get(EPOCHS, self.node_id)
        epoch = last.epoch + 1 if last is not None else 1
        db.put(EPOCHS, NodeEpoch(self.node_id, epoch))
        node = Node(
            self.node_id,
            epoch,
            True,
            self.addresses,
            at.now_ms,
            at.now_ms,
            self.roles,
            self.start_ms,
        )
        db.memo.pop(FLEET, None)
        db.put(NODES, node)
        return node


@command("metadata.node.heartbeat")
class HeartbeatNode:
    """Say that the broker lives. NotFound when it has to register again."""

    urgent: ClassVar[bool] = True
    node_id: str
    epoch: int

    def validate(self) -> None:
        """Names within their limits."""
        names.name(self.node_id, "node_id")

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced with an epoch that is not in force."""
        node = _held(db, self.node_id, self.epoch)
        if not node.online:
            db.memo.pop(FLEET, None)
        db.put(NODES, replace(node, online=True, heartbeat_ms=at.now_ms))


@command("metadata.node.unregister")
class UnregisterNode:
    """Leave the fleet."""

    node_id: str
    epoch: int

    def validate(self) -> None:
        """Names within their limits."""
        names.name(self.node_id, "node_id")

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced with an epoch that is not in force."""
        _held(db, self.node_id, self.epoch)
        db.memo.pop(FLEET, None)
        db.delete(NODES, self.node_id)
        node_event.record(db, at, self.node_id, self.epoch, node_event.UNREGISTERED)


@command("metadata.node.expire")
class ExpireNodes:
    """The controller marks silent brokers offline. The reply names them."""

    heavy: ClassVar[bool] = True
    urgent: ClassVar[bool] = True
    controller_epoch: int
    timeout_ms: int

    def validate(self) -> None:
        """A timeout is positive."""
        check_epoch(self.controller_epoch)
        if self.timeout_ms < 1:
            raise Invalid(f"timeout_ms: {self.timeout_ms}, the least is 1")

    def apply(self, db: Tables, at: Stamp) -> tuple[str, ...]:
        """Whether a broker is silent is decided here, by the group's time, not by the caller's."""
        pass_fence(db, self.controller_epoch)
        since_ms = counting_since(db, at.now_ms)
        silent = [
            node
            for _, node, _ in db.scan(NODES)
            if node.online and at.now_ms - max(node.heartbeat_ms, since_ms) > self.timeout_ms
        ][:BATCH_ITEMS_MAX]
        for node in silent:
            db.memo.pop(FLEET, None)
            db.put(NODES, replace(node, online=False))
            node_event.record(db, at, node.node_id, node.epoch, node_event.EXPIRED)
        return tuple([node.node_id for node in silent])


@query("metadata.node.get")
class GetNode:
    """Read a node."""

    single_row: ClassVar[bool] = True
    node_id: str

    def validate(self) -> None:
        """Names within their limits."""
        names.name(self.node_id, "node_id")

    def read(self, db: Tables, at: Stamp) -> Node | None:
        """None when it is not registered."""
        return db.get(NODES, self.node_id)


@query("metadata.node.list")
class ListNodes:
    """All nodes, a page at a time."""

    limit: int = 1_000
    after: bytes = b""

    def read(self, db: Tables, at: Stamp) -> NodePage:
        """Nodes by id."""
        rows, after = db.page(NODES, after=self.after, limit=self.limit)
        return NodePage(tuple([row for row, _ in rows]), after)
