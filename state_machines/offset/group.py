"""Consumer groups: who may commit for one, which there are, and how one is deleted.

Whoever coordinates a group (a broker, at every rebalance) takes a new generation with `FenceGroup`
and hands it to the members; from then on the commits of everyone else are refused. `ReleaseGroup`
gives the group back to simple consumers, who know of no generations.

A generation says that there were members, not that there are: who coordinated them may have died
with them and has released nothing. So a group that holds one is forgotten like any other when it
was silent for the retention, and whoever coordinates members that have nothing to commit says that
they live, once an hour or a day (`TouchGroup`). When the last one has left it releases the group,
and the retention begins then, as Kafka's does when a group is empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.budgets import Budget
from state_machines.errors import Fenced, Invalid
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.offset import activity
from state_machines.offset.rows import (
    BUCKET_MS,
    GROUPS,
    NO_GENERATION,
    Group,
    check_generation,
    check_group,
    check_held,
    check_live,
    live_group,
)
from state_machines.op import Stamp, command, query
from state_machines.tables import Tables

DELETE_LIMIT: Final = 1_000  #: of its offsets, if a command does not say
DELETE_MAX: Final = BATCH_ITEMS_MAX


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Consumer groups by name; `next` continues, empty at the end."""

    groups: tuple[Group, ...]
    next: bytes


@command("offset.group.fence")
class FenceGroup:
    """Take a new generation of a consumer group: the reply. All older ones are refused from now on.

    With a `member` nobody else may commit in it. A group that is not there begins.
    """

    tenant: str = names.DEFAULT_TENANT
    group: str
    member: str = ""
    expected_generation: int | None = None

    def validate(self) -> None:
        """Names within their limits."""
        check_group(self.tenant, self.group)
        names.name(self.member, "member", empty=True)
        check_generation(self.expected_generation, "expected_generation")

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def apply(self, db: Tables, at: Stamp) -> int:
        """Fenced unless the generation is the expected one (-1: it has none; None: any)."""
        before = db.get(GROUPS, self.tenant, self.group)
        group = before or Group(self.tenant, self.group, 0, at.now_ms)
        check_live(group)
        check_held(group, self.expected_generation)
        generation = db.unique()
        fenced = replace(group, generation=generation, member=self.member)
        activity.touch(db, before, fenced, at.now_ms)
        return generation


@command("offset.group.release")
class ReleaseGroup:
    """Let everyone commit again, without a generation."""

    tenant: str = names.DEFAULT_TENANT
    group: str
    expected_generation: int | None = None

    def validate(self) -> None:
        """Names within their limits."""
        check_group(self.tenant, self.group)
        check_generation(self.expected_generation, "expected_generation")

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced unless the generation is the expected one; NotFound without the group."""
        group = live_group(db, self.tenant, self.group)
        check_held(group, self.expected_generation)
        released = replace(group, generation=NO_GENERATION, member="")
        activity.touch(db, group, released, at.now_ms)


@command("offset.group.touch")
class TouchGroup:
    """Say that a consumer group has members, though nobody commits: its retention begins anew.

    More often than once an hour is of no use.
    """

    tenant: str = names.DEFAULT_TENANT
    group: str
    generation: int

    def validate(self) -> None:
        """Names within their limits."""
        check_group(self.tenant, self.group)
        check_generation(self.generation, "generation")

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced unless the generation (-1: none) is in force; NotFound without the group."""
        group = live_group(db, self.tenant, self.group)
        if self.generation != group.generation:
            raise Fenced(f"generation: {self.generation}, in force is {group.generation}")
        if group.last_commit_ms // BUCKET_MS < at.now_ms // BUCKET_MS:
            activity.touch(db, group, group, at.now_ms)


@command("offset.delete_group")
class DeleteGroup:
    """Forget a consumer group: at most `limit` of its offsets, fewer if much is kept of them
    (`ROWS_TAKEN_MAX`). The reply is how many.

    There may be more until that is 0: ask again. The group shows none of them any more and takes no
    commits until it is gone; one that nobody asks again for is ended by `offset.expire`.
    """

    tenant: str = names.DEFAULT_TENANT
    group: str
    limit: int = DELETE_LIMIT

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_group(self.tenant, self.group)
        if not 0 < self.limit <= DELETE_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {DELETE_MAX}")

    def weight(self) -> int:
        """Offsets."""
        return self.limit

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def apply(self, db: Tables, at: Stamp) -> int:
        """Nothing to forget is no error: 0."""
        group = db.get(GROUPS, self.tenant, self.group)
        return 0 if group is None else activity.forget(db, group, self.limit, Budget())[0]


@query("offset.group.get")
class GetGroup:
    """Read a consumer group: its generation, how many offsets it has."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    group: str

    def validate(self) -> None:
        """Names within their limits."""
        check_group(self.tenant, self.group)

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def read(self, db: Tables, at: Stamp) -> Group | None:
        """None when there is none."""
        return db.get(GROUPS, self.tenant, self.group)


@query("offset.groups")
class ListGroups:
    """The consumer groups of a tenant, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", empty=True)

    def read(self, db: Tables, at: Stamp) -> GroupPage:
        """Groups whose name begins with `starts`."""
        rows, after = db.page(
            GROUPS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return GroupPage(tuple([row for row, _ in rows]), after)
