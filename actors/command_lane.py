"""Commands of one process for one group.

A call of commands is a proposal. It carries (client, sequence) and is retried with the same pair,
which the group answers once (law 9). The client's id is asked for when the first call is made, and
again when the group has forgotten it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from actors.attempts import Attempt, Groups
from actors.queue_lane import QueueLane
from actors.shared_call import Reached, Trace, UnderWay, commands_of, error_of, gone, resolve
from state_machines import op
from state_machines.errors import MetarayError
from state_machines.limits import WINDOW_MAX
from state_machines.wire import api_pb2 as api

HALVED_FROM = 256  #: commands that wait while no call is under way
AHEAD_MAX = WINDOW_MAX - 64  #: calls past one that is not answered; some have their number by then
EMPTY_BODY = b"\x80"  #: msgpack of a command without fields


class _Proposal:
    """How a call of commands is sent: at every attempt the same."""

    __slots__ = ("_call", "_lane", "_said", "client", "sequence", "trace")

    def __init__(self, lane: CommandLane, call: UnderWay, client: int, sequence: int) -> None:
        self._lane = lane
        self._call = call
        self._said: api.Proposal | None = None
        self.client = client
        self.sequence = sequence
        self.trace = Trace(command=True)

    def __call__(self, seat: str, timeout_ms: int) -> Awaitable[bytes]:
        """Send it. Whose deadline passed before the first time was told that it was never sent;
        from then on the batch is what it is, for the same sequence stands for the same commands."""
        lane, call = self._lane, self._call
        if self._said is None:
            call.trace = self.trace
            if gone(call.batch):
                call.commands, _ = commands_of(call.batch)  # fewer, so all have room
            self._said = api.Proposal(
                client=self.client,
                sequence=self.sequence,
                acked=lane.acked(self),
                commands=call.commands,
            )
        return lane.propose(seat, self._said, timeout_ms)


class CommandLane(QueueLane):
    """Proposals with (client, sequence), several under way."""

    halved_from = HALVED_FROM

    def __init__(
        self,
        group: str,
        groups: Groups,
        rng: Random,
        unheard: Callable[[str], None],
        reached: Reached,
    ) -> None:
        super().__init__(group, groups, rng, unheard, reached)
        self._client = 0
        self._sequence = 0
        self._out: set[int] = set()  # numbers of this client that may not have been answered
        self._registering = asyncio.Lock()

    def propose(self, seat: str, proposal: api.Proposal, timeout_ms: int) -> Awaitable[bytes]:
        """Send it to this seat, which has so long."""
        request = api.ProposeRequest(group=self._group, proposal=proposal, timeout_ms=timeout_ms)
        return self._groups.propose(seat, request.SerializeToString())

    def acked(self, made: _Proposal) -> int:
        """Up to which number all before it have been answered. Where one is not for so long that
        the group would soon keep no more replies of those behind it, what waits here waits on."""
        oldest = min(self._out, default=made.sequence)
        if made.sequence - oldest >= AHEAD_MAX and made.client == self._client:
            self._held = True
        return oldest - 1

    def _first(self, call: UnderWay) -> Attempt | None:
        if not self._client:
            return None
        made = self._numbered(call, self._client)
        return self._try_first(made, call.deadline, made.trace, any_seat=False)

    def _settle(self, call: UnderWay, reply: api.Reply, seat: str) -> bool:
        self._heard(seat, any_seat=False)
        self._replied(call.made)
        self._tell(call, reply)
        return True

    async def _carry_out(self, call: UnderWay, first: Attempt | None) -> None:
        while True:
            made = call.made
            if made is None:
                client = self._client or await self._registered(call.deadline)
                made = self._numbered(call, client)
            try:
                reply = await self._attempts(made, call.deadline, made.trace, first=first)
            finally:
                self._replied(made)
            if reply.code == api.SESSION_EXPIRED and self._client == made.client:
                self._client, self._held = 0, False
            in_logs = made.trace.attempts - made.trace.unproposed
            if reply.code == api.SESSION_EXPIRED and in_logs == 1:
                call.made = call.trace = first = None
                continue  # in one log and refused: it was not applied, so a new id is safe
            if reply.code == api.INVALID and len(call.batch) > 1:
                await self._in_halves(call)
                return
            self._tell(call, reply)
            return

    async def _in_halves(self, call: UnderWay) -> None:
        """A call is refused whole if one of its commands is none to the leader, which may be of
        another version. Nothing of it was proposed: the other callers' commands go without that."""
        middle = len(call.batch) // 2
        later = UnderWay(call.batch[middle:], deadline=call.deadline)  # not sent until then
        del call.batch[middle:]
        self._under_way[later] = None
        self.in_flight_max += 1  # both have the place of one
        try:
            await self._anew(call)
        except MetarayError as error:
            self._failed(call, error)
        except Exception as error:
            self._failed(later, error)
            raise
        finally:
            self.in_flight_max -= 1
            if not self._closed:  # else it is told that it was never sent
                del self._under_way[later]
        call.batch = later.batch
        self._pump()  # some of the first half may wait again, and not for the other
        await self._anew(call)

    async def _anew(self, call: UnderWay) -> None:
        """As if nothing of it had been sent."""
        call.made = call.trace = None
        gone(call.batch)
        call.commands, _ = commands_of(call.batch)
        if call.commands:
            await self._carry_out(call, None)

    def _numbered(self, call: UnderWay, client: int) -> _Proposal:
        self._sequence += 1
        self._out.add(self._sequence)
        made = call.made = _Proposal(self, call, client, self._sequence)
        return made

    def _replied(self, made: _Proposal) -> None:
        if self._client == made.client:
            self._out.discard(made.sequence)
            if self._held:
                self._held = self._sequence - min(self._out, default=self._sequence) >= AHEAD_MAX

    def _tell(self, call: UnderWay, reply: api.Reply) -> None:
        self._reached.heard(reply.revision)
        # failpoint: client.before_result
        self._back(resolve(call.batch, call.commands, reply))

    async def _registered(self, deadline: float) -> int:
        """The id this group knows us by. Losing a reply here leaves an unused id, nothing more."""
        async with self._registering:
            if self._client:
                return self._client
            # failpoint: client.before_registering
            proposal = api.Proposal(
                sequence=self._rng.randrange(1, 2**62),
                commands=[api.Command(tag=op.REGISTER_TAG, body=EMPTY_BODY)],
            )

            def send(seat: str, timeout_ms: int) -> Awaitable[bytes]:
                return self.propose(seat, proposal, timeout_ms)

            reply = await self._attempts(send, deadline, Trace(command=False))
            if reply.code != api.OK:
                raise error_of(reply)
            self._client = reply.client
            # failpoint: client.registered
            self._sequence = 0
            self._out.clear()
            return self._client
