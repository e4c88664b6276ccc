"""Reading whole tables of a group at one applied index, page by page, for reports and exports.

`take` asks a replica that has nothing better to do: an analytics learner if there is one, else a
follower, and the leader only when nobody else has caught up. Whoever it is has applied what the
leader had committed, so what was acknowledged before is in the cut. A group that has no leader is
given the time of an election; only one that has lost its majority is cut without, as far as the
replica that has applied most has come: there is nothing better to be had of it.

A small state is read from a view of the replica itself, which costs no process. A large one is put
aside by the replica and read by an exporter on its node (`actors.exporter`), which belongs to this
process and ends with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.exceptions import RayError

from actors import calls, remote
from actors.ray_env import NAMESPACE
from actors.status import has_quorum, leader_of
from state_machines.errors import (
    MetarayError,
    NoQuorum,
    NotFound,
    Rejected,
    Stopped,
    Unavailable,
)

PAGE_ROWS: Final = 20_000
CALL_SECONDS: Final = 60.0  #: our own deadline for one page
CLOSE_SECONDS: Final = 5.0  #: for one that does not answer: its cuts close themselves
COPY_SECONDS: Final = 300.0  #: our own deadline for putting a state aside
CATCH_UP_SECONDS: Final = 5.0  #: how long is waited for a follower that is a little behind
ELECTION_SECONDS: Final = 10.0  #: and for a leader: three of the longest election timeout
POLL_SECONDS: Final = 0.02
LEADER_POLL_SECONDS: Final = 0.2
FOLLOWER_BEHIND_MAX: Final = 10_000  #: entries; a replica that lacks more is cut after the leader
VIEW_BYTES: Final = 16 << 20
"""A state of so many bytes is read from a view: less than a second, and little to pin."""

ROLES: Final = ("learner", "follower", "leader")  #: in the order in which they are asked

log = logging.getLogger(__name__)

Statuses = Mapping[str, Mapping[str, Any]]
"""What seats say of themselves, by their names; only of those that answer."""


class Exporters:
    """The exporters of this process, one a node, made when they are needed. Close them."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    def beside(self, seat: str) -> Any:
        """The exporter on a seat's node. Raises Stopped when the seat does not answer."""
        node = calls.each_call([seat], "node", seconds=CALL_SECONDS)[seat]
        if not isinstance(node, str):
            raise Stopped(f"{seat} does not answer: {node}")
        if node not in self._handles:
            self._handles[node] = remote.create_exporter(node)
        return self._handles[node]

    def forget(self, handle: Any) -> None:
        """One that has failed is not asked again."""
        self._handles = {node: each for node, each in self._handles.items() if each is not handle}

    def close(self) -> None:
        """End them."""
        for handle in self._handles.values():
            remote.end_exporter(handle)
        self._handles.clear()


@dataclass(slots=True)
class Cut:
    """One group's rows at one applied index. Close it, or it closes itself after a while."""

    group: str
    seat: str
    name: str
    index: int
    cluster: str = ""
    now_ms: int = 0
    """When it was taken, by the replica's clock."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows each of its tables has."""
    exporter: Any = None
    """The actor that reads it, if it was put aside."""
    exporters: Exporters | None = None
    """Where that comes from, if they are this cut's alone."""

    def pages(self, table: str, rows: int = PAGE_ROWS) -> Iterator[bytes]:
        """The table's rows as Arrow IPC pages, in key order. Two pages are in memory at a time: one
        is read while the other is used.

        Raises NotFound when the cut is gone (closed, too old, or its replica started again), and
        Invalid for a table it was not taken of; Stopped when the replica does not answer.
        """
        try:
            handle = self.exporter or ray.get_actor(self.seat, namespace=NAMESPACE)
        except ValueError as error:
            raise self._lost(table, error) from error
        read = handle.export_page if self.exporter is None else handle.page
        asked = read.remote(self.name, table, b"", rows)
        while True:
            try:
                page, after = ray.get(asked, timeout=CALL_SECONDS)
            except RayError as error:
                raise self._lost(table, error) from error
            if after:
                asked = read.remote(self.name, table, after, rows)
            yield page
            if not after:
                return

    def _lost(self, table: str, error: Exception) -> MetarayError:
        said = calls.said_by_actor(error)
        if isinstance(said, MetarayError):
            return said
        return Stopped(f"{self.seat} does not answer for {table}; take a new cut: {_line(said)}")

    def close(self) -> None:
        """Let the replica's view go, or the copy."""
        exporter, self.exporter = self.exporter, None
        if exporter is not None:
            exporter.close.remote(self.name)
        if self.exporters is not None:
            self.exporters.close()
        calls.each_call([self.seat], "export_close", self.name, seconds=CLOSE_SECONDS)


def take(
    group: str,
    tables: tuple[str, ...],
    *,
    min_index: int = 0,
    source: str = "",
    exporters: Exporters | None = None,
    view_bytes: int = VIEW_BYTES,
    avoid: Iterable[str] = (),
) -> Cut:
    """Take a cut of a group, of a replica that has applied as much as its leader has committed.

    `source` asks one alone: leader, follower, learner, or a seat. `min_index` has to be in the cut;
    whoever has written up to there reads his own writes. The seats of `avoid` are asked last.

    Raises NoQuorum when no replica could give a cut, or a majority answers and has no leader;
    NotFound when there is no such replica.
    """
    living = _settled(group)
    leader = leader_of(living.values())
    wanted = max(min_index, leader["commit"] if leader else 0)
    ranked = order(living, source=source, wanted=wanted, avoid=frozenset(avoid))
    if living and not ranked:
        if source == "leader":
            raise NoQuorum(f"{group} has no leader now")
        raise NotFound(f"from: {group} has no {source!r} that answers")
    if living and leader is None:
        if has_quorum(living.values()):  # one of them has all that was acknowledged, but who?
            raise NoQuorum(f"{group} has no leader now; try again when it has one")
        log.warning("%s has lost its majority: what was acknowledged last may be missing", group)
        ranked.sort(key=lambda seat: -int(living[seat].get("applied", 0)))
    said = "no replica answers"
    for seat in ranked:
        if not _reaches(seat, wanted):
            said = f"{seat}: it has not applied {wanted} yet"
            continue
        try:
            return _taken(group, seat, tables, exporters, view_bytes)
        except Unavailable as error:
            said = f"{seat}: {error.detail}"
    raise NoQuorum(f"{group}: no cut to be had; {said}")


def _settled(group: str) -> Statuses:
    """What the replicas of a group say once one of them leads, or at the end of the time."""
    deadline = time.monotonic() + ELECTION_SECONDS
    while True:
        seats = [name for name in sorted(calls.named_actors()) if name.rpartition("/")[0] == group]
        answers = calls.each_call(seats, "status", seconds=CALL_SECONDS)
        living = {seat: each for seat, each in answers.items() if isinstance(each, dict)}
        if not seats or leader_of(living.values()) or time.monotonic() >= deadline:
            return living
        time.sleep(LEADER_POLL_SECONDS)


def order(
    living: Statuses,
    *,
    source: str = "",
    wanted: int = 0,
    avoid: frozenset[str] = frozenset(),
) -> list[str]:
    """The seats to ask for a cut, by what they say of themselves (`status`), the best one first."""
    leader = leader_of(living.values())
    learners = leader["learners"] if leader else ()

    def role(seat: str) -> str:
        said = living[seat]
        if leader is not None and seat == leader["seat"]:
            return "leader"
        learns = said.get("role") == "learner" or said.get("replica") in learners
        return "learner" if learns else "follower"

    def place(seat: str) -> tuple[bool, bool, int, str]:
        behind = wanted - living[seat].get("applied", 0) > FOLLOWER_BEHIND_MAX
        return behind, seat in avoid, ROLES.index(role(seat)), seat

    asked = [seat for seat in living if source in ("", seat, role(seat))]
    return sorted(asked, key=place)


def _reaches(seat: str, index: int) -> bool:
    """Whether a replica has applied up to there, or does so soon."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while True:
        said = calls.each_call([seat], "status", seconds=CALL_SECONDS)[seat]
        if not isinstance(said, dict):
            return False
        if said.get("applied", 0) >= index:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)


def _taken(
    group: str,
    seat: str,
    tables: tuple[str, ...],
    exporters: Exporters | None,
    view_bytes: int,
) -> Cut:
    """A cut of this replica. Raises Unavailable, and Rejected where every replica would."""
    said = _ask(seat, "export_open", CALL_SECONDS, tables)
    index, cluster, now_ms = said["index"], said["cluster"], said["now_ms"]
    cut = Cut(group, seat, said["cut"], index, cluster, now_ms, said["rows"])
    if said["bytes"] <= view_bytes:
        return cut
    if exporters is None:
        exporters = cut.exporters = Exporters()
    try:
        cut.exporter = exporters.beside(seat)  # it starts while the copy is made
        path = _ask(seat, "export_aside", COPY_SECONDS, cut.name)
        opened = cut.exporter.open.remote(cut.name, path, index, tables)
        if ray.get(opened, timeout=CALL_SECONDS) != cut.rows:
            raise Stopped("its copy has other rows than its view had")
    except RayError as error:
        exporters.forget(cut.exporter)
        cut.close()
        raise Stopped(f"its exporter: {_line(calls.said_by_actor(error))}") from error
    except Rejected as error:  # the cut is lost, which another one need not be
        cut.close()
        raise Stopped(error.detail) from None
    except Unavailable:
        cut.close()
        raise
    return cut


def _ask(seat: str, method: str, seconds: float, *args: Any) -> Any:
    """The answer of a seat. Raises what it raised on purpose, else Stopped."""
    said = calls.each_call([seat], method, *args, seconds=seconds)[seat]
    if isinstance(said, MetarayError):
        raise said
    if isinstance(said, Exception):
        raise Stopped(f"{seat} does not answer: {_line(said)}")
    return said


def _line(error: Exception) -> str:
    """Ray tells long stories; their last line is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
