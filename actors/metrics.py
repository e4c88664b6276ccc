"""What replicas and the controller show in Ray's metrics: gauges set once a second from counters.

The hot path only adds to plain numbers (`status.Counters`); this module reads them. Names appear
as `ray_metaray_<name>` on the metrics port of each node: a replica's with the tags `group` and
`seat`, those of the controller's duties, `ray_metaray_duty_<name>`, with the tag `duty`, and what
duties count, `ray_metaray_<name>`, with the tag `state`.

What a learner lacks only its leader knows: the leader shows it under the learner's seat, and 0 once
it leads no more, so the largest value of a learner's seat is the true one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.util.metrics import Gauge

from actors.pending import PHASES
from actors.seat_names import is_learner

if TYPE_CHECKING:
    from actors.replica import Replica

TAGS = ("group", "seat")

_GAUGES = {
    "term": "Raft term",
    "leads": "1 on the leader of the group",
    "commit_index": "highest index known to be committed",
    "applied_index": "highest index applied to the state",
    "flushed_index": "highest index whose rows are durable in the state environment",
    "queue": "proposals waiting to enter the log",
    "storage_queue": "jobs waiting for the storage thread",
    "dirty_bytes": "bytes of rows not yet flushed",
    "hot_bytes": "bytes of rows kept because they were read or written lately",
    "hot_hits_total": "rows that were found there",
    "hot_misses_total": "rows that had to be looked for in LMDB",
    "history_changes": "changes kept so that watches can be resumed",
    "history_bytes": "memory that they take, about",
    "watchers": "watches that wait at this replica",
    "elections_total": "elections won",
    "slow_writes_total": "writes slower than the slow-write threshold",
    "overloaded_total": "proposal calls refused because too much waited",
    "overloaded_reads_total": "query calls refused because too many waited",
    "loop_late_seconds": "longest that the event loop was held, of five to ten minutes",
    "clock_ahead_ms": "how far the node's clock is ahead of the group's time, on its leader",
    "links": "other seats that are reached over TCP, not by actor calls",
    "proposals_total": "proposal calls taken",
    "queries_total": "query calls taken",
    "append_seconds_total": "time spent saving to the log",
    "appends_total": "saves to the log",
    "apply_seconds_total": "time spent applying entries",
    "applies_total": "apply rounds",
    **{
        f"write_{phase}_seconds_total": f"time that writes have spent in the phase {phase}"
        for phase in PHASES
    },
}

_LEARNER_GAUGES = {
    "learner_lag_entries": "committed entries that a learner lacks, as its leader sees it",
    "learner_lag_ms": "for how long the oldest of them has been there, -1 if nobody knows any more",
}

_DUTY_GAUGES = {
    "runs_total": "runs of the duty under this controller",
    "actions_total": "what it did in these runs",
    "last_seconds": "how long its last run took",
    "running_seconds": "for how long a run has been under way, 0 if none is",
    "failing": "1 if its last run failed",
    "paused": "1 if operators let it rest",
    "alarms": "what its last run has found and leaves to an operator",
}

_COUNTED = {"failover": ("segments", "segments that something ails, by what it is")}
"""Of the duties that count something: the gauge of it. Its tag `state` says which of them."""


CACHE_TAGS = ("node",)

_CACHE_GAUGES = {
    "bytes": "rows and recent changes kept, about",
    "rows": "rows kept",
    "slices": "tables, of one tenant or of all, that are kept",
    "streams": "watches at groups",
    "watchers": "watches of this node's processes that wait here",
    "hits": "reads answered at once",
    "misses": "reads that had to wait for rows or for a revision",
    "evicted": "slices let go for want of room",
    "refused": "slices too large to be kept",
    "reloads": "times that everything was read again, because what came between was compacted",
}


def learners_of(status: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """By a leader's status: which entries, and for how many milliseconds, the replica of each
    learner's seat lacks. Nothing by that of another replica."""
    found = {}
    for replica, progress in status["progress"].items():
        seat = status["seats"].get(replica, "")
        if is_learner(seat):
            late = progress["late_ms"]
            found[seat] = (
                max(0, status["commit"] - progress["match"]),
                -1 if late is None else late,
            )
    return found


class CacheMetrics:
    """The gauges of one node's cache: `metaray_cache_<name>`."""

    def __init__(self, node: str) -> None:
        self._tags = {"node": node}
        self._gauges = {
            name: Gauge(f"metaray_cache_{name}", description=text, tag_keys=CACHE_TAGS)
            for name, text in _CACHE_GAUGES.items()
        }

    def set(self, status: Mapping[str, Any]) -> None:
        """Copy the cache's numbers."""
        for name, gauge in self._gauges.items():
            gauge.set(status[name], tags=self._tags)


class Metrics:
    """The gauges of one seat."""

    def __init__(self, group: str, seat: str) -> None:
        self._tags = {"group": group, "seat": seat}
        self._gauges = {
            name: Gauge(f"metaray_{name}", description=text, tag_keys=TAGS)
            for name, text in _GAUGES.items()
        }
        self._learners = {
            name: Gauge(f"metaray_{name}", description=text, tag_keys=TAGS)
            for name, text in _LEARNER_GAUGES.items()
        }
        self._shown: frozenset[str] = frozenset()  # the learners' seats of which it said more

    def set(self, replica: Replica) -> None:
        """Copy the replica's numbers."""
        status = replica.status()
        counters = status["counters"]
        values = {
            "term": status["term"],
            "leads": int(replica.leads),
            "commit_index": status["commit"],
            "applied_index": status["applied"],
            "flushed_index": status["flushed"],
            "queue": status["queue"],
            "storage_queue": status["storage_queue"],
            "dirty_bytes": status["dirty_bytes"],
            "hot_bytes": status["hot_bytes"],
            "hot_hits_total": counters["hot_hits"],
            "hot_misses_total": counters["hot_misses"],
            "history_changes": status["history"]["changes"],
            "history_bytes": status["history"]["bytes"],
            "watchers": status["history"]["watchers"],
            "elections_total": counters["elections"],
            "slow_writes_total": counters["slow_writes"],
            "overloaded_total": counters["overloaded"],
            "overloaded_reads_total": counters["overloaded_reads"],
            "loop_late_seconds": counters["loop_late_seconds"],
            "clock_ahead_ms": status["clock_ahead_ms"] if replica.leads else 0,
            "links": list(status["carriers"].values()).count("tcp"),
            "proposals_total": counters["proposals"],
            "queries_total": counters["queries"],
            "append_seconds_total": counters["save_seconds"],
            "appends_total": counters["saves"],
            "apply_seconds_total": counters["apply_seconds"],
            "applies_total": counters["applies"],
            **{
                f"write_{phase}_seconds_total": seconds
                for phase, seconds in counters["phases"].items()
            },
        }
        for name, value in values.items():
            self._gauges[name].set(value, tags=self._tags)
        self._set_learners(learners_of(status))

    def _set_learners(self, lags: Mapping[str, tuple[int, int]]) -> None:
        for seat in sorted(self._shown.union(lags)):
            tags = {**self._tags, "seat": seat}
            for gauge, value in zip(self._learners.values(), lags.get(seat, (0, 0)), strict=True):
                gauge.set(value, tags=tags)
        self._shown = frozenset(lags)


class DutyMetrics:
    """The gauges of a controller's duties."""

    def __init__(self) -> None:
        self._gauges = {
            name: Gauge(f"metaray_duty_{name}", description=text, tag_keys=("duty",))
            for name, text in _DUTY_GAUGES.items()
        }
        self._counted = {
            duty: Gauge(f"metaray_{name}", description=text, tag_keys=("state",))
            for duty, (name, text) in _COUNTED.items()
        }

    def set(self, duties: dict[str, dict[str, Any]]) -> None:
        """Copy what `Controller.status` says of its duties."""
        for name, duty in duties.items():
            values = {
                "runs_total": duty["runs"],
                "actions_total": duty["actions"],
                "last_seconds": duty["last_seconds"],
                "running_seconds": duty["running_seconds"],
                "failing": int(bool(duty["last_error"])),
                "paused": int(duty["paused"] is not None),
                "alarms": len(duty["alarms"]),
            }
            for gauge, value in values.items():
                self._gauges[gauge].set(value, tags={"duty": name})
            for state, value in duty["numbers"].items():
                self._counted[name].set(value, tags={"state": state})
