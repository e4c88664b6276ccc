"""Transactions and leases for users: typed operations in, typed replies out.

    done = await client.transact(
        compare=[Compare.absent(KV, "default", "leader")],
        then=[PutKv(key="leader", value=b"b1")],
        otherwise=[GetKv(key="leader")],
    )
    done.succeeded, done.replies

    lease = await Lease.grant(client, "metadata-0", owner="b1", ttl_ms=10_000)
    await lease.put("brokers/b1", b"10.0.0.1:1883")     # gone when the lease is
    await keep_alive([lease, *others])                  # a third of the time is a good interval

Keep leases alive in a task of its own: any other call may take the client's whole deadline, and
what is kept alive in between such calls may run out. Keeping waits behind none of them.

A lease lives in one group, with the rows that are attached to it. Whoever writes a leased row anew
attaches it again, as `Lease.put` and `Lease.transact` do (`state_machines/lease.py`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from state_machines.batch import Outcome
from state_machines.errors import MetarayError
from state_machines.lease import (
    KEEP_MAX,
    TTL_MS_MIN,
    GetLease,
    GrantLeases,
    KeepLeases,
    LeaseRequest,
    LeaseView,
    RevokeLeases,
)
from state_machines.lease_rows import AttachRows, DetachRows, LeasedRow
from state_machines.metadata.kv import KV, PutKv
from state_machines.transaction import Compare, Transacted, Transaction

__all__ = ["Compare", "Lease", "LeasedRow", "Transacted", "Transaction", "keep_alive", "transact"]

KEEP_TIMEOUT_MS_MAX: Final = 30_000  #: of one keeping, however long the leases are


class Calls(Protocol):
    """What is used of a client."""

    def call(
        self, operation: Any, /, *, timeout_ms: int = 0, group: str = ""
    ) -> Coroutine[Any, Any, Any]:
        """Carry out an operation, in the group that owns it or in the one that is named."""
        ...


async def transact(
    client: Calls,
    *,
    compare: Iterable[Compare] = (),
    then: Iterable[Any] = (),
    otherwise: Iterable[Any] = (),
) -> Transacted:
    """Do `then` if every compare holds, else `otherwise`: all of it or nothing.

    Raises what a step is refused with, its place in front ("then[3]: ..."), and Invalid for rows
    that lie in several groups.
    """
    made = Transaction.of(compare=compare, then=then, otherwise=otherwise)
    return made.answers(await client.call(made))


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that this process has, in the group where its rows are."""

    client: Calls
    group: str
    lease_id: int
    ttl_ms: int

    @classmethod
    async def grant(cls, client: Calls, group: str, *, owner: str, ttl_ms: int) -> Self:
        """A new lease in a group; `owner` is for people to read."""
        wanted = LeaseRequest(owner=owner, ttl_ms=ttl_ms)
        (granted,) = await client.call(GrantLeases(items=(wanted,)), group=group)
        return cls(client, group, granted.lease_id, ttl_ms)

    async def keep(self) -> None:
        """Have the whole time again. NotFound when it is over: its rows are gone. NoQuorum or
        Unknown when its group does not answer within a third of the time."""
        (outcome,) = await keep_alive([self])
        outcome.or_raise()

    async def revoke(self) -> Outcome:
        """End it now, with its rows. NotFound when it is over already.

        Of more than `REVOKE_ROWS_MAX` rows, or `BYTES_TAKEN_MAX` of them, the outcome's detail says
        how many are left, and the controller's next command removes them; it is empty otherwise.
        """
        done: tuple[Outcome, ...] = await self.client.call(
            RevokeLeases(items=(self.lease_id,)), group=self.group
        )
        return done[0].or_raise()

    async def look(self) -> LeaseView | None:
        """How it stands; None when it is over."""
        found: LeaseView | None = await self.client.call(
            GetLease(lease_id=self.lease_id), group=self.group
        )
        return found

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        tenant: str = "default",
    ) -> int:
        """Set a key that goes with the lease. Returns its revision; nothing happens if either the
        key is not at `expected_revision` or the lease is over."""
        put = PutKv(tenant=tenant, key=key, value=value, expected_revision=expected_revision)
        done = await self.transact(then=[put], rows=[LeasedRow.of(KV, tenant, key)])
        revision: int = done.replies[0]
        return revision

    async def transact(
        self,
        *,
        compare: Iterable[Compare] = (),
        then: Iterable[Any] = (),
        rows: Sequence[LeasedRow],
        otherwise: Iterable[Any] = (),
    ) -> Transacted:
        """`transact`, and the rows that `then` has written go with the lease."""
        attach = AttachRows(lease_id=self.lease_id, rows=tuple(rows))
        made = Transaction.of(compare=compare, then=[*then, attach], otherwise=otherwise)
        return made.answers(await self.client.call(made, group=self.group))

    async def attach(self, *rows: LeasedRow) -> int:
        """Rows that are there go with the lease from now on. Returns how many it has."""
        attach = AttachRows(lease_id=self.lease_id, rows=rows)
        count: int = await self.client.call(attach, group=self.group)
        return count

    async def detach(self, *rows: LeasedRow) -> int:
        """These rows stay when it ends. Returns how many it has."""
        detach = DetachRows(lease_id=self.lease_id, rows=rows)
        count: int = await self.client.call(detach, group=self.group)
        return count


async def keep_alive(leases: Sequence[Lease]) -> list[Outcome]:
    """Keep leases alive, a thousand in one command to their group.

    An outcome for each, in order: NOT_FOUND says that it is over; NO_QUORUM or UNKNOWN that its
    group does not answer. It has a third of the shortest time of all these leases, 30 s at most, so
    a silent one ends no lease of another. A slow one may have kept those that are UNKNOWN: keep
    leases that can wait for it longer in a call of their own.
    """
    by_group: defaultdict[str, list[int]] = defaultdict(list)
    for place, lease in enumerate(leases):
        by_group[lease.group].append(place)
    shortest = min([lease.ttl_ms for lease in leases], default=TTL_MS_MIN)
    timeout_ms = min(max(shortest, TTL_MS_MIN) // 3, KEEP_TIMEOUT_MS_MAX)
    outcomes: dict[int, Outcome] = {}

    async def keep(group: str, places: list[int]) -> None:
        keep = KeepLeases(items=tuple([leases[place].lease_id for place in places]))
        client = leases[places[0]].client
        try:
            answers = await client.call(keep, timeout_ms=timeout_ms, group=group)
        except MetarayError as error:
            answers = [Outcome(error.code, error.detail, 0)] * len(places)
        outcomes.update(zip(places, answers, strict=True))

    await asyncio.gather(
        *(
            keep(group, places[at : at + KEEP_MAX])
            for group, places in by_group.items()
            for at in range(0, len(places), KEEP_MAX)
        )
    )
    return [outcomes[place] for place in range(len(leases))]
