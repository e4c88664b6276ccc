"""What the controller does for shared subscriptions: brokers that are gone, members left behind.

Both observe in an order that makes what they find safe to act on. `plan_gone` is given brokers that
were read *before* the nodes: a broker registers before its clients join, so one that joined later
is in neither list. One that was in both may be back by the next command: it is asked again before
each of them. `plan_orphans` is given members that were read *before* their sessions: a
session is opened before its client joins, so a member whose session was not there then, or another
in its place, has none, unless it joined anew since: then apply sees another `member_id` and leaves
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from state_machines.metadata.node import Node
from state_machines.mqtt.sessions import Session
from state_machines.mqtt.share_group import ShareOrphan
from state_machines.mqtt.share_rows import ShareMember


def plan_gone(brokers: Iterable[str], nodes: Iterable[Node]) -> list[str]:
    """The brokers with members or groups that are not online: gone, or never registered."""
    online = {node.node_id for node in nodes if node.online}
    return sorted(set(brokers) - online)


def plan_orphans(
    members: Sequence[ShareMember], sessions: Sequence[Session | None]
) -> list[ShareOrphan]:
    """The members whose session is not there; beside each what its client has for one."""
    return [
        ShareOrphan(
            tenant=member.tenant,
            name=member.name,
            client_id=member.client_id,
            filter=member.filter,
            member_id=member.member_id,
        )
        for member, session in zip(members, sessions, strict=True)
        if session is None or member.session_created_ms not in (0, session.created_ms)
    ]
