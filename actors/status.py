"""The operator's face of a replica: its counters, and everything that `status` shows of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_machines.raft import Raft
from state_machines.wire import api_pb2 as api

if TYPE_CHECKING:
    from actors.replica import Replica

STAMPS_SOUGHT = 16  #: entries looked at for the leader's stamp: no-ops and changes have none


@dataclass(slots=True)
class Counters:
    """Running counts, and sums of seconds that belong to them. The hot path only adds."""

    proposals: int = 0
    queries: int = 0
    saves: int = 0
    save_seconds: float = 0.0
    applies: int = 0
    apply_seconds: float = 0.0


def role_of(core: Raft) -> str:
    """Its role in Raft's words; a follower that has no vote is a learner."""
    name = core.role.name
    return "learner" if name == "follower" and not core.votes else name


def late_ms(core: Raft, peer: int, now_ms: int) -> int | None:
    """For how long the oldest committed entry that a peer lacks has been there, by the stamp that
    the leader of its time gave it: 0 if the peer lacks none, None if it is no longer in memory."""
    match = core.progress[peer].match_index
    if match >= core.commit:
        return 0
    for entry in core.kept(match + 1, min(match + STAMPS_SOUGHT, core.commit)):
        if entry.data and (stamp := api.Batch.FromString(entry.data).now_ms):
            return max(0, now_ms - stamp)
    return None


def status_of(replica: Replica) -> dict[str, Any]:
    """What `metaray status` and the dashboards show of a replica. Plain values only."""
    core, configuration = replica.core, replica.core.configuration
    counters, writes, hot = replica.counters, replica.writes, replica.stores.state.hot
    now_ms = replica.stamps.now_ms()
    return {
        "group": replica.group,
        "seat": replica.seat,
        "replica": core.id,
        "role": replica.role,
        "stopped": replica.stopped_because,
        "term": core.term,
        "leader": core.leader,
        "leader_seat": replica.leader_seat,
        "first_index": core.first_index,
        "last_index": core.last_index,
        "commit": core.commit,
        "applied": replica.applied.index,
        "flushed": replica.stores.state.flushed.index,
        "verified": replica.stores.state.verified,
        "configuration_index": core.configuration_index,
        "voters": list(configuration.voters),
        "outgoing": list(configuration.outgoing),
        "learners": list(configuration.learners),
        "progress": {
            peer: {
                "match": each.match_index,
                "state": each.state.value,
                "late_ms": late_ms(core, peer, now_ms),
            }
            for peer, each in sorted(core.progress.items())
        }
        if replica.leads
        else {},
        "seats": {peer: replica.transport.seat_of(peer) for peer in configuration.members},
        "carriers": replica.transport.carriers(),
        "clock_ahead_ms": replica.stamps.clock_ahead_ms,
        "queue": len(writes),
        "reads": len(replica.reads) + len(replica.answers),
        "storage_queue": replica.storage.queued,
        "dirty_bytes": replica.stores.state.dirty_bytes,
        "hot_bytes": hot.size,
        "history": {
            "after": replica.history.floor,
            "changes": replica.history.changes,
            "bytes": replica.history.bytes,
            "watchers": replica.history.watchers,
        },
        "settings": replica.settings.of_replica(),
        "held_for": replica.upkeep.holds.shown(),
        "counters": {
            "elections": replica.leadership.won,
            "slow_writes": writes.slow,
            "overloaded": writes.admission.refused,
            "overloaded_reads": replica.reads.refusals.refused + replica.answers.refused,
            "loop_late_seconds": replica.ticker.late_seconds,
            "proposals": counters.proposals,
            "queries": counters.queries,
            "saves": counters.saves,
            "save_seconds": counters.save_seconds,
            "applies": counters.applies,
            "apply_seconds": counters.apply_seconds,
            "hot_hits": hot.hits,
            "hot_misses": hot.misses,
            "phases": dict(writes.phases),
        },
    }


def leader_of(statuses: Iterable[Any]) -> dict[str, Any] | None:
    """The status of the replica that leads in the highest term, None when nobody leads."""
    leaders = [each for each in statuses if each is not None and each["role"] == "leader"]
    return max(leaders, key=lambda each: int(each["term"])) if leaders else None


def has_quorum(statuses: Iterable[Mapping[str, Any]]) -> bool:
    """Whether who answers is a majority of the voters: of both majorities, while these change. By
    the newest configuration that one of them knows."""
    replicas = [each for each in statuses if each.get("voters") and each["role"] != "stopped"]
    if not replicas:
        return False
    newest = max(replicas, key=lambda each: int(each["configuration_index"]))
    there = {each["replica"] for each in replicas}
    return all(
        len(there.intersection(voters)) > len(voters) // 2
        for voters in (newest["voters"], newest["outgoing"])
        if voters
    )


def voters_of(leader: Mapping[str, Any]) -> dict[str, int]:
    """The seats that may lead a group, each with its replica's id, by the status of its leader."""
    seats = leader["seats"]
    return {str(seats[each]): int(each) for each in leader["voters"] if seats.get(each)}
