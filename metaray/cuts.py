"""Reading whole tables of a group at one applied index, page by page, for reports and exports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ray
from ray.exceptions import RayError

from actors import calls
from actors.ray_env import NAMESPACE
from actors.status import leader_of
from state_machines.errors import MetarayError, NoQuorum, Rejected, Stopped

PAGE_ROWS = 20_000
CALL_SECONDS = 60.0  #: our own deadline for one page


@dataclass(slots=True)
class Cut:
    """One group's rows at one applied index. Close it, or it closes itself after a while."""

    group: str
    seat: str
    name: str
    index: int

    def pages(self, table: str, rows: int = PAGE_ROWS) -> Iterator[bytes]:
        """The table's rows as Arrow IPC pages, in key order. One page is in memory at a time.

        Raises NotFound when the cut is gone (closed, too old, or its replica started again), and
        Invalid for a table it was not taken of; Stopped when the replica does not answer.
        """
        try:
            handle = ray.get_actor(self.seat, namespace=NAMESPACE)
        except ValueError as error:
            raise self._lost(table, error) from error
        after = b""
        while True:
            asked = handle.export_page.remote(self.name, table, after, rows)
            try:
                page, after = ray.get(asked, timeout=CALL_SECONDS)
            except RayError as error:
                raise self._lost(table, error) from error
            yield page
            if not after:
                return

    def _lost(self, table: str, error: Exception) -> MetarayError:
        said = calls.said_by_actor(error)
        if isinstance(said, MetarayError):
            return said
        return Stopped(f"{self.seat} does not answer for {table}; take a new cut: {said}")

    def close(self) -> None:
        """Let the replica's view go."""
        calls.each_call([self.seat], "export_close", self.name, seconds=CALL_SECONDS)


def take(group: str, tables: tuple[str, ...], *, min_index: int = 0) -> Cut:
    """Take a cut of a group, of a follower that has applied as much as its leader has committed.

    The leader has enough to do; it is asked only when no follower has caught up. Raises NoQuorum
    when no replica could give a cut.
    """
    seats = [name for name in sorted(calls.named_actors()) if name.rpartition("/")[0] == group]
    answers = calls.each_call(seats, "status", seconds=CALL_SECONDS)
    living = {seat: each for seat, each in answers.items() if isinstance(each, dict)}
    leader = leader_of(living.values())
    wanted = max(min_index, leader["commit"] if leader else 0)
    ranked = sorted(
        living,
        key=lambda seat: (
            living[seat].get("applied", 0) < wanted,
            leader is not None and seat == leader["seat"],
            seat,
        ),
    )
    said = "no replica answers"
    for seat in ranked:
        answer = calls.each_call([seat], "export_open", tables, seconds=CALL_SECONDS)[seat]
        if isinstance(answer, dict) and answer["index"] >= min_index:
            return Cut(group, seat, answer["cut"], answer["index"])
        if isinstance(answer, Rejected):
            raise answer  # the same at every replica: there is no such table
        said = f"{seat}: {answer}"
    raise NoQuorum(f"{group}: no cut to be had; {said}")
