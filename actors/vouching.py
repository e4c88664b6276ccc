"""Reads without a round of the leader's own: the caller asks another voter beside it.

A linearizable read needs to know that nobody led after its leader when it arrived (thesis 6.4). The
leader's round shows that: client, leader, follower, leader, client, one after the other. A caller
can ask both at once instead. The leader answers from what it has committed and says its term; the
follower *vouches*: it says its own. If that is not later, the answer is as good as after a round:

    Both spoke after the read began, and terms only grow. So when it began neither had left the
    leader's term. Together they are a majority, which every later leader's election and every
    entry committed by it would have needed one of.

It takes a leader that has committed in its own term (so that it knows all that was committed
before), and two who are a majority: a group of two or three voters that is not joint. For any other
the leader makes its round, as it does for who does not ask so.
"""

from __future__ import annotations

import asyncio

from state_machines.errors import Invalid
from state_machines.raft import Raft
from state_machines.raft.messages import Configuration
from state_machines.raft.quorum import has_quorum
from state_machines.wire import api_pb2 as api


class Vouching:
    """What one replica says for reads that go without a round."""

    def __init__(self, core: Raft) -> None:
        self._core = core
        self._said: tuple[int, Configuration] = (0, Configuration())
        self._partners = b""

    def partners(self, request: api.QueryRequest, applied_term: int) -> bytes:
        """What goes with this leader's answer if it needs a partner: fields of an `api.Reply`.
        Empty if it takes a round. `applied_term`: of the last entry that is applied."""
        core = self._core
        if not request.vouched or applied_term != core.term:
            return b""
        said = core.term, core.configuration
        if said != self._said:
            self._said, self._partners = said, _partners(core)
        return self._partners

    def vouch(
        self, request: api.QueryRequest, reply: asyncio.Future[bytes]
    ) -> asyncio.Future[bytes]:
        """Say who this is, and its term: at once, whatever the disk does. Invalid if anything else
        is asked with it, which nobody would answer."""
        if request.queries:
            count = len(request.queries)
            raise Invalid(f"queries: {count} with a vouch, which goes without queries")
        said = api.Reply(term=self._core.term, replica=self._core.id)
        reply.set_result(said.SerializeToString())
        return reply


def _partners(core: Raft) -> bytes:
    configuration = core.configuration
    others = [each for each in configuration.voters if each != core.id]
    if not others or not all(has_quorum(configuration, (core.id, each)) for each in others):
        return b""
    return api.Reply(term=core.term, partners=others).SerializeToString()
