"""What is made from truth, made once more the slow way, and compared with what a store has."""

from __future__ import annotations

from collections import Counter
from typing import Any

from state_machines.keyvalue import KeyValue
from state_machines.metadata import segments, shards
from state_machines.metadata.schemas import BINDINGS, BOUND, SCHEMAS, VERSIONS
from state_machines.metadata.topic import TOPIC_CONFIGS
from state_machines.mqtt import (
    acl,
    auto_subscribe,
    blacklist,
    connectors,
    due,
    retained,
    rewrite,
    share_rows,
    tallies,
    will,
)
from state_machines.mqtt.sessions import SESSIONS, TALLIES, SessionTally
from state_machines.mqtt.subscription import SUBSCRIPTIONS
from state_machines.mqtt.topic import TOPICS
from state_machines.offset import activity, rows
from state_machines.quota import USAGES
from state_machines.tables import Table, Tables

LATEST = 1 << 40


def all_of(store: KeyValue, table: Table[Any]) -> list[Any]:
    """The rows of a table, by key."""
    return [row for _, row, _ in Tables(store, LATEST).scan(table)]


def check(kind: str, store: KeyValue) -> None:
    """Every index, timer, tally and count fits the rows that it is of."""
    {"metadata": _metadata, "mqtt": _mqtt, "offset": _offset}[kind](store)
    topics = [*all_of(store, TOPIC_CONFIGS), *all_of(store, TOPICS)]
    usage = Counter(each.tenant for each in topics)
    assert {each.tenant: each.count for each in all_of(store, USAGES)} == usage


def _metadata(store: KeyValue) -> None:
    versions = Counter((each.tenant, each.name) for each in all_of(store, VERSIONS))
    bindings = Counter((each.tenant, each.name) for each in all_of(store, BINDINGS))
    for each in all_of(store, SCHEMAS):
        key = (each.tenant, each.name)
        assert (each.versions, each.bindings) == (versions[key], bindings[key])
    assert set(all_of(store, BOUND)) == set(all_of(store, BINDINGS))
    places: set[segments.SegmentPlace] = set()
    loads: dict[str, list[int]] = {}
    known = {(each.tenant, each.name): each for each in all_of(store, shards.SHARDS)}
    for segment in all_of(store, segments.SEGMENTS):
        assert known[segment.tenant, segment.shard].uid == segment.uid
        at = (segment.tenant, segment.shard, segment.sequence)
        for place in segments.places(segment):
            places.add(segments.SegmentPlace(*place, *at))
            for number, why in enumerate((segments.HELD, segments.LED)):
                loads.setdefault(place[1], [0, 0])[number] += place[0] == why
    assert set(all_of(store, segments.INDEX)) == places
    some = [segments.NodeLoad(name, *each) for name, each in sorted(loads.items()) if any(each)]
    assert all_of(store, segments.LOADS) == some
    marked = [each for each in known.values() if each.status == segments.PREPARE_DELETE]
    assert {(each.tenant, each.name) for each in all_of(store, shards.MARKS)} == {
        (each.tenant, each.name) for each in marked
    }


def _mqtt(store: KeyValue) -> None:
    _rules(store)
    _timers(store)
    _sessions(store)
    _shares(store)
    waiting = {
        will.OutboxOfTenant(each.tenant, each.outbox_id) for each in _all(store, will.OUTBOX)
    }
    assert set(all_of(store, will.OF_TENANT)) == waiting
    free = {place for each in _all(store, will.OUTBOX) for place in will.places(each)}
    assert set(all_of(store, will.FREE)) == free
    places, loads = set(), Counter[str]()
    for each in all_of(store, connectors.CONNECTORS):
        place = (each.status, each.broker, each.tenant, each.name)
        places.add(connectors.ConnectorPlace(*place))
        loads[each.broker] += bool(each.broker)
    assert set(all_of(store, connectors.PLACES)) == places
    assert {each.broker: each.running for each in all_of(store, connectors.LOADS)} == +loads


def _rules(store: KeyValue) -> None:
    found = Counter[tuple[str, str, str]]()
    for rule in all_of(store, acl.ACLS):
        found[rule.tenant, f"{acl.TALLY}.{rule.resource_type}", rule.resource] += 1
    for rule in all_of(store, auto_subscribe.AUTO_SUBSCRIBE):
        found[rule.tenant, auto_subscribe.TALLY, ""] += 1
    for rule in all_of(store, rewrite.REWRITES):
        found[rule.tenant, rewrite.TALLY, ""] += 1
    for barred in all_of(store, blacklist.BLACKLIST):
        found[barred.tenant, blacklist.TALLY, barred.type] += barred.type in blacklist.PATTERNS
    tallied = {
        (each.tenant, each.kind, each.resource): each.rows
        for each in all_of(store, tallies.RULE_TALLIES)
    }
    assert tallied == +found


def _timers(store: KeyValue) -> None:
    wanted = {
        *((each.due_ms, due.WILL, each.tenant, each.client_id) for each in _all(store, will.WILLS)),
        *(
            (each.expires_ms, due.SESSION, each.tenant, each.client_id)
            for each in _all(store, SESSIONS)
        ),
        *(
            (each.expires_ms, due.RETAINED, each.tenant, each.topic)
            for each in _all(store, retained.RETAINED)
        ),
        *(
            (each.end_ms, due.BLACKLIST, each.tenant, blacklist.timer_name(each))
            for each in _all(store, blacklist.BLACKLIST)
        ),
    }
    armed = {due.Due(*each) for each in wanted if each[0]}
    assert set(all_of(store, due.DUE)) == armed


_all = all_of


def _sessions(store: KeyValue) -> None:
    sessions, connected = Counter[str](), Counter[str]()
    filters = Counter((each.tenant, each.client_id) for each in all_of(store, SUBSCRIPTIONS))
    for each in all_of(store, SESSIONS):
        sessions[each.tenant] += each.connected_ms != 0  # a command has ended it
        connected[each.tenant] += each.connected
        assert each.subscriptions == filters.pop((each.tenant, each.client_id), 0)
    assert not filters
    held = [each for each in all_of(store, TALLIES) if each.sessions]
    assert held == [
        SessionTally(name, count, connected[name])
        for name, count in sorted(sessions.items())
        if count
    ]


def _shares(store: KeyValue) -> None:
    members = all_of(store, share_rows.MEMBERS)
    groups = all_of(store, share_rows.GROUPS)
    counts: dict[tuple[str, str], list[int]] = {}
    for each in members:
        for tenant in (each.tenant, ""):
            counts.setdefault((tenant, each.broker), [0, 0])[0] += 1
    for group in groups:
        assert group.members == sum(
            (each.tenant, each.name) == (group.tenant, group.name) for each in members
        )
        for tenant in (group.tenant, ""):
            counts.setdefault((tenant, group.leader), [0, 0])[1] += 1
    assert {
        (each.tenant, each.broker): [each.members, each.leads]
        for each in all_of(store, share_rows.BROKERS)
    } == counts
    assert {each.leader for each in groups} <= {each.broker for each in members} | {""}
    of_client = {
        share_rows.ShareOfClient(each.tenant, each.client_id, each.name, each.filter)
        for each in members
    }
    assert set(all_of(store, share_rows.OF_CLIENT)) == of_client
    of_broker = {
        share_rows.ShareOfBroker(each.broker, each.tenant, each.name, each.client_id, each.filter)
        for each in members
    }
    assert set(all_of(store, share_rows.OF_BROKER)) == of_broker
    leads = {share_rows.ShareLead(each.leader, each.tenant, each.name) for each in groups}
    assert set(all_of(store, share_rows.LEADS)) == leads


def _offset(store: KeyValue) -> None:
    groups = all_of(store, rows.GROUPS)
    partitions = Counter((each.tenant, each.group) for each in all_of(store, rows.OFFSETS))
    for each in groups:
        assert each.partitions == partitions[each.tenant, each.group]
    heard = {
        activity.Activity(each.last_commit_ms // rows.BUCKET_MS, each.tenant, each.group)
        for each in groups
    }
    assert set(all_of(store, activity.ACTIVITY)) == heard
    fenced = sum(each.fenced for each in groups)
    assert sum(each.groups for each in all_of(store, rows.FENCES)) == fenced
