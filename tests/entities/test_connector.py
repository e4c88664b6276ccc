"""Connectors: one broker runs each, and whoever had it before is told so."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from actors.planners.connectors import plan_connectors, plan_releases
from state_machines.batch import Outcome
from state_machines.errors import Fenced, Invalid
from state_machines.json_text import JSON_DEPTH_MAX
from state_machines.machine import Machine
from state_machines.mqtt.connector import (
    CONFIG_BYTES_MAX,
    DEAD_LETTER,
    RETRY,
    TIMES_MAX,
    TYPES,
    WAIT_MS_MAX,
    ConnectorItem,
    CreateConnectors,
    DeleteConnectors,
    StartConnectors,
    StopConnectors,
    UpdateConnectors,
)
from state_machines.mqtt.connector_duty import (
    REASON_BYTES_MAX,
    SOME_MAX,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    AssignConnectors,
    ConnectorAssignment,
    ConnectorHeartbeat,
    ExpireConnectors,
    HeartbeatConnectors,
    ReleaseConnectors,
)
from state_machines.mqtt.connector_queries import (
    ConnectorLoads,
    GetConnector,
    ListConnectors,
    ListConnectorsByStatus,
)
from state_machines.mqtt.connectors import (
    BEATS,
    CHECKS,
    CONNECTORS,
    FAILED,
    IDLE,
    LOADS,
    PLACES,
    RUNNING,
    STATUSES,
    STOPPED,
    Connector,
    ConnectorFailure,
    ConnectorLoad,
)
from state_machines.mqtt.tenant_purge import PurgeMqtt
from state_machines.quota import GroupQuota, SetQuotas
from state_machines.raft.messages import Entry
from state_machines.slots import SlotMap, SlotRange
from state_machines.tables import Tables
from storage.memory import MemoryKeyValue
from tests.entities.engine import one, outcome
from tests.entities.group import Group
from tests.machine.alone import NOW_MS
from tests.machine.plausible import history
from tests.machine.plausible_repairs import OWN as REPAIRED


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def item(name: str = "k", **changes: Any) -> ConnectorItem:
    return ConnectorItem(**{"name": name, "type": "kafka", "topic_filter": "t/#", **changes})


def create(group: Group, *names: str) -> None:
    outcomes = group.run(CreateConnectors(items=tuple([item(each) for each in names or ("k",)])))
    assert all(each.ok for each in outcomes)


def connector(group: Group, name: str = "k") -> Connector:
    found = group.ask(GetConnector(name=name))
    assert isinstance(found, Connector)
    return found


def assign(group: Group, broker: str = "b1", name: str = "k", **changes: Any) -> Outcome:
    made = ConnectorAssignment(
        **{"name": name, "epoch": connector(group, name).epoch, **changes}, broker=broker
    )
    return outcome(group.run(AssignConnectors(controller_epoch=1, items=(made,))))


def beat(group: Group, broker: str = "b1", name: str = "k", **changes: Any) -> Outcome:
    fields = {"name": name, "epoch": connector(group, name).epoch, **changes}
    made = ConnectorHeartbeat(**fields)
    return outcome(group.run(HeartbeatConnectors(broker=broker, items=(made,))))


def expire(group: Group, **changes: Any) -> int:
    count = group.run(ExpireConnectors(controller_epoch=1, **changes))
    assert isinstance(count, int)
    return count


def of_status(group: Group, status: str, broker: str = "") -> list[str]:
    page = group.ask(ListConnectorsByStatus(status=status, broker=broker))
    return [each.name for each in page.connectors]


def loads(group: Group) -> dict[str, int]:
    return {each.broker: each.running for each in group.ask(ConnectorLoads())}


# -- what an operator does ----------------------------------------------------------------------


def test_a_connector_waits_for_a_broker_unless_it_is_not_to_start(group: Group) -> None:
    failure = ConnectorFailure(RETRY, times=3, wait_ms=100)
    made = item(config='{"url": "http://x", "n": 1.5}', failure=failure)
    one(group.run(CreateConnectors(items=(made,))))
    one(group.run(CreateConnectors(tenant="acme", items=(made,), start=False)))
    found = connector(group)
    assert found == Connector(
        *("default", "k", "kafka", made.config, "t/#", failure, IDLE, "", found.epoch, ""),
        *(NOW_MS, NOW_MS),
    )
    assert group.ask(GetConnector(tenant="acme", name="k")).status == STOPPED
    assert of_status(group, IDLE) == ["k"]
    assert group.ask(GetConnector(name="other")) is None


def test_each_item_of_a_batch_has_an_outcome(group: Group) -> None:
    create(group, "a")
    outcomes = group.run(CreateConnectors(items=(item("a"), item("b"), item("b"))))
    assert [each.code for each in outcomes] == ["ALREADY_EXISTS", "OK", "ALREADY_EXISTS"]
    outcomes = group.run(UpdateConnectors(items=(item("a"), item("x"))))
    assert [each.code for each in outcomes] == ["OK", "NOT_FOUND"]
    for kind in (StartConnectors, StopConnectors, DeleteConnectors):
        outcomes = group.run(kind(names=("a", "x")))
        assert [each.code for each in outcomes] == ["OK", "NOT_FOUND"]
    assert outcomes[1].detail == "name: 'x' is not there"


def test_a_change_takes_it_from_whoever_runs_it(group: Group) -> None:
    create(group)
    assign(group)
    epoch = connector(group).epoch
    group.later(1)
    one(group.run(UpdateConnectors(items=(item(config='{"a": 1}'),))))
    found = connector(group)
    assert (found.status, found.broker, found.config) == (IDLE, "", '{"a": 1}')
    assert (found.created_ms, found.updated_ms) == (NOW_MS, NOW_MS + 1_000)
    refused = beat(group, epoch=epoch)
    assert (refused.code, refused.detail) == ("FENCED", "broker: 'b1' does not run it, '' does")
    one(group.run(StopConnectors(names=("k",))))
    one(group.run(UpdateConnectors(items=(item(),))))
    assert connector(group).status == STOPPED, "what is not to run stays so"


def test_stop_and_start(group: Group) -> None:
    create(group)
    assign(group)
    one(group.run(StartConnectors(names=("k",))))
    assert connector(group).status == RUNNING, "it runs already"
    one(group.run(StopConnectors(names=("k",))))
    stopped = connector(group)
    assert (stopped.status, stopped.broker) == (STOPPED, "")
    one(group.run(StopConnectors(names=("k",))))
    assert connector(group) == stopped
    assert assign(group).detail == "status: 'k' is stopped"
    assert loads(group) == {}
    one(group.run(StartConnectors(names=("k",))))
    assert of_status(group, IDLE) == ["k"]


def test_a_name_made_again_has_a_higher_epoch(group: Group) -> None:
    create(group)
    assign(group)
    epoch = connector(group).epoch
    one(group.run(DeleteConnectors(names=("k",))))
    assert group.ask(GetConnector(name="k")) is None
    made = ConnectorHeartbeat(name="k", epoch=epoch)
    gone = outcome(group.run(HeartbeatConnectors(broker="b1", items=(made,))))
    assert (gone.code, gone.detail) == ("NOT_FOUND", "name: 'k' is not there")
    create(group)
    assert connector(group).epoch > epoch
    assert group.rows("mqtt.connector_beat") == group.rows("mqtt.connector_load") == 0


# -- what brokers and the controller do ---------------------------------------------------------


def test_an_idle_connector_is_given_to_one_broker(group: Group) -> None:
    create(group)
    before = connector(group).epoch
    assert assign(group, "b1").ok
    found = connector(group)
    assert (found.status, found.broker, found.epoch) == (RUNNING, "b1", before + 1)
    assert assign(group, "b2").detail == "status: 'k' is running"
    group.run(ReleaseConnectors(controller_epoch=1, broker="b1"))
    refused = assign(group, "b2", epoch=before)
    assert (refused.code, refused.detail) == (
        "CONFLICT",
        f"epoch: {before}, in force is {before + 2}",
    )


def test_only_who_has_it_speaks_for_it(group: Group) -> None:
    create(group)
    assert beat(group).code == "FENCED"
    assign(group, "b1")
    assert beat(group, "b1").ok
    refused = beat(group, "b2")
    assert (refused.code, refused.detail) == ("FENCED", "broker: 'b2' does not run it, 'b1' does")
    epoch = connector(group).epoch
    refused = beat(group, "b1", epoch=epoch - 1)
    assert refused.detail == f"epoch: {epoch - 1}, in force is {epoch}"
    assert beat(group, "b1", epoch=epoch - 1, failure="gone").code == "FENCED"
    assert connector(group).status == RUNNING


def test_a_connector_that_fails_waits_for_an_operator(group: Group) -> None:
    create(group)
    assign(group)
    epoch = connector(group).epoch
    assert beat(group, failure="no route to host").ok
    found = connector(group)
    assert (found.status, found.broker, found.reason) == (FAILED, "", "no route to host")
    assert found.epoch == epoch + 1
    assert of_status(group, FAILED) == ["k"]
    assert assign(group).detail == "status: 'k' is failed"
    one(group.run(StartConnectors(names=("k",))))
    assert (connector(group).status, connector(group).reason) == (IDLE, "")


def test_a_heartbeat_costs_one_small_row(group: Group) -> None:
    one(group.run(CreateConnectors(items=(item(config='{"a": "' + "x" * 60_000 + '"}'),))))
    assign(group)
    group.later(1)
    group.machine.take_changes()
    beat(group)
    changes = list(group.machine.take_changes())
    assert [(table, key) for table, key, _ in changes] == [(BEATS.name, ("default", "k"))]
    assert len(changes[0][2] or b"") < 100


def test_silence_is_decided_by_the_group(group: Group) -> None:
    create(group, "k", "l")
    assign(group, name="k")
    assign(group, name="l")
    group.now_ms += TIMEOUT_MS
    assert expire(group) == 0, "silent for exactly the timeout is not too long"
    assert beat(group, name="l").ok
    group.now_ms += 1
    assert expire(group) == 1
    assert (of_status(group, IDLE), of_status(group, RUNNING, "b1")) == (["k"], ["l"])
    assert loads(group) == {"b1": 1}
    refused = beat(group, name="k", epoch=connector(group, "k").epoch - 1)
    assert refused.code == "FENCED", "the silent one is told when it speaks again"
    group.now_ms += TIMEOUT_MS - 1
    assert expire(group) == 0
    group.now_ms += 1
    assert expire(group) == 1
    assert group.rows("mqtt.connector_check") == group.rows("mqtt.connector_beat") == 0


def test_a_connector_is_looked_at_once_a_timeout(group: Group) -> None:
    create(group)
    assign(group)
    looked = 0
    for _ in range(90):
        group.later(1)
        beat(group)
        before = group.store.dump()["mqtt.connector_check"]
        assert expire(group) == 0
        looked += before != group.store.dump()["mqtt.connector_check"]
    assert looked == 2
    assert group.rows("mqtt.connector_check") == 1


def test_an_expiry_is_bounded(group: Group) -> None:
    create(group, "a", "b", "c")
    for name in ("a", "b", "c"):
        assign(group, name=name)
    group.later(60)
    assert [expire(group, limit=2) for _ in range(3)] == [2, 1, 0]


def test_the_connectors_of_a_dead_broker_are_taken_back(group: Group) -> None:
    create(group, "a", "b", "c")
    for name, broker in (("a", "b1"), ("b", "b1"), ("c", "b2")):
        assign(group, broker, name)
    release = ReleaseConnectors(controller_epoch=1, broker="b1", limit=1)
    assert [group.run(release) for _ in range(3)] == [1, 1, 0]
    assert (of_status(group, IDLE), loads(group)) == (["a", "b"], {"b2": 1})


def test_an_old_controller_is_fenced(group: Group) -> None:
    """Reference defect 15: two controllers may live at once; the older one assigns nothing."""
    create(group)
    group.run(ExpireConnectors(controller_epoch=7))
    made = ConnectorAssignment(name="k", epoch=connector(group).epoch, broker="b1")
    for command in (
        AssignConnectors(controller_epoch=6, items=(made,)),
        ExpireConnectors(controller_epoch=6),
        ReleaseConnectors(controller_epoch=6, broker="b1"),
    ):
        with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
            group.run(command)


def test_tenants_do_not_cancel_each_others_heartbeats(group: Group) -> None:
    """Reference defect 13: what is waited for is known by tenant and name, not by name alone."""
    for tenant in ("acme", "other"):
        one(group.run(CreateConnectors(tenant=tenant, items=(item(),))))
        epoch = group.ask(GetConnector(tenant=tenant, name="k")).epoch
        made = ConnectorAssignment(tenant=tenant, name="k", epoch=epoch, broker="b1")
        one(group.run(AssignConnectors(controller_epoch=1, items=(made,))))
    group.later(20)
    epoch = group.ask(GetConnector(tenant="acme", name="k")).epoch
    alive = ConnectorHeartbeat(tenant="acme", name="k", epoch=epoch)
    one(group.run(HeartbeatConnectors(broker="b1", items=(alive,))))
    group.later(11)
    assert expire(group) == 1
    assert group.ask(GetConnector(tenant="acme", name="k")).status == RUNNING
    assert group.ask(GetConnector(tenant="other", name="k")).status == IDLE


def test_a_deleted_tenant_takes_its_connectors_along(group: Group) -> None:
    """Reference, 2.3: there a tenant is deleted and all that it has stays."""
    create(group, "stays")
    assign(group, name="stays")
    for number in range(3):
        name = f"k{number}"
        one(group.run(CreateConnectors(tenant="acme", items=(item(name),))))
        epoch = group.ask(GetConnector(tenant="acme", name=name)).epoch
        made = ConnectorAssignment(tenant="acme", name=name, epoch=epoch, broker="b1")
        one(group.run(AssignConnectors(controller_epoch=1, items=(made,))))
    closed = GroupQuota("acme", 1, closed=True)
    one(group.run(SetQuotas(controller_epoch=1, items=(closed,))))
    while group.run(PurgeMqtt(controller_epoch=1, tenant="acme", limit=1)).left:
        check(Tables(group.store, 0))
    assert group.ask(ListConnectors(tenant="acme")).connectors == ()
    assert loads(group) == {"b1": 1}
    tables = ("connector", "connector_place", "connector_beat", "connector_check")
    assert [group.rows(f"mqtt.{each}") for each in tables] == [1] * 4


def test_a_fleet_of_brokers_runs_everything_that_is_to_run(group: Group) -> None:
    """The planners and the commands, until nothing is left to do; then a broker dies."""
    luck = Random(3)
    create(group, *[f"k{each}" for each in range(20)])

    def controlled(live: list[str]) -> None:
        for broker in plan_releases(group.ask(ConnectorLoads()), live):
            group.run(ReleaseConnectors(controller_epoch=1, broker=broker))
        idle = group.ask(ListConnectorsByStatus(status=IDLE)).connectors
        plan = plan_connectors(idle, group.ask(ConnectorLoads()), live)
        if plan:
            made = group.run(AssignConnectors(controller_epoch=1, items=tuple(plan)))
            assert all(each.ok for each in made)

    for live in (["b1", "b2", "b3"], ["b2", "b3"], ["b1", "b3"], luck.sample(["b1", "b4"], 2)):
        controlled(live)
        assert set(loads(group)) <= set(live)
        assert sum(loads(group).values()) == 20
    controlled([])
    assert len(of_status(group, IDLE)) == 20


def test_the_index_is_what_the_rows_say_whatever_happens() -> None:
    store = MemoryKeyValue()
    machine = Machine("mqtt", "mqtt-0", store)
    for index, batch in enumerate(history("mqtt", Random(22), 250), 1):
        machine.apply(Entry(1, index, batch.SerializeToString()))
        if index % 5 == 0:
            check(Tables(store, 0))


def check(db: Tables) -> None:
    def rows(table: Any) -> Iterator[Any]:
        return (row for _, row, _ in db.scan(table))

    there = {(row.tenant, row.name): row for row in rows(CONNECTORS)}
    assert {(row.status, row.broker, row.tenant, row.name) for row in rows(PLACES)} == {
        (row.status, row.broker, *key) for key, row in there.items()
    }
    running = {key: row for key, row in there.items() if row.status == RUNNING}
    assert {(row.tenant, row.name): (row.broker, row.epoch) for row in rows(BEATS)} == {
        key: (row.broker, row.epoch) for key, row in running.items()
    }
    assert {(row.since_ms, row.tenant, row.name) for row in rows(CHECKS)} == {
        (row.since_ms, row.tenant, row.name) for row in rows(BEATS)
    }
    brokers = sorted(row.broker for row in running.values())
    assert {row.broker: row.running for row in rows(LOADS) if row.broker != REPAIRED} == {
        broker: brokers.count(broker) for broker in brokers
    }
    assert all(bool(row.broker) == (row.status == RUNNING) for row in there.values())


# -- lists --------------------------------------------------------------------------------------


def test_lists_are_in_pages(group: Group) -> None:
    create(group, *[f"k{each}" for each in range(5)], "other")
    names, after = [], b""
    while True:
        page = group.ask(ListConnectors(starts="k", limit=2, after=after))
        names += [each.name for each in page.connectors]
        after = page.next
        if not after:
            break
    assert names == [f"k{each}" for each in range(5)]
    page = group.ask(ListConnectorsByStatus(status=IDLE, limit=4))
    rest = group.ask(ListConnectorsByStatus(status=IDLE, limit=4, after=page.next))
    assert len(page.connectors + rest.connectors) == 6
    assert rest.next == b""


def test_a_page_of_large_configurations_is_bounded_by_their_size(group: Group) -> None:
    config = '{"a": "' + "x" * 60_000 + '"}'
    for each in range(30):
        one(group.run(CreateConnectors(items=(item(f"k{each:02}", config=config),))))
    page = group.ask(ListConnectorsByStatus(status=IDLE))
    assert len(page.connectors) == 18, "1 MiB of them"
    rest = group.ask(ListConnectorsByStatus(status=IDLE, after=page.next))
    assert len(rest.connectors) == 12


def test_what_goes_to_several_groups_comes_back_in_order() -> None:
    ranges = (SlotRange(0, 8_000, "mqtt-0"), SlotRange(8_001, 16_383, "mqtt-1"))
    slots = SlotMap(1, {"mqtt": ranges})
    asked = CreateConnectors(items=tuple([item(f"k{each}") for each in range(8)]))
    parts = slots.route(asked)
    assert [group for group, _ in parts] == ["mqtt-0", "mqtt-1"]
    answers = [tuple([Outcome("OK", each.name, 0) for each in part.items]) for _, part in parts]
    joined = asked.join([part for _, part in parts], answers)
    assert [each.detail for each in joined] == [f"k{each}" for each in range(8)]
    loads = ConnectorLoads().join(
        [], [(ConnectorLoad("b2", 1),), (ConnectorLoad("b1", 2), ConnectorLoad("b2", 3))]
    )
    assert loads == (ConnectorLoad("b1", 2), ConnectorLoad("b2", 4))
    assert ExpireConnectors(controller_epoch=1).join([], [2, 3]) == 5
    assert ReleaseConnectors(controller_epoch=1, broker="b").join([], [2, 3]) == 5


# -- limits -------------------------------------------------------------------------------------


def made(**changes: Any) -> CreateConnectors:
    return CreateConnectors(items=(item(**changes),))


def fails(*values: Any, **changes: Any) -> CreateConnectors:
    return made(failure=ConnectorFailure(*values, **changes))


def heartbeat(**changes: Any) -> HeartbeatConnectors:
    beat = ConnectorHeartbeat(**{"name": "k", "epoch": 1, **changes})
    return HeartbeatConnectors(broker="b", items=(beat,))


def assigned(**changes: Any) -> AssignConnectors:
    assignment = ConnectorAssignment(**{"name": "k", "epoch": 1, "broker": "b", **changes})
    return AssignConnectors(controller_epoch=1, items=(assignment,))


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (CreateConnectors(tenant="", items=(item(),)), "tenant"),
        (CreateConnectors(items=()), "items"),
        (made(name=""), "items.name"),
        (made(name="k" * 257), "items.name"),
        (made(type="carrier pigeon"), "items.type"),
        (made(topic_filter="a/#/b"), "items.topic_filter"),
        (made(config=""), "items.config"),
        (made(config="[]"), "items.config"),
        (made(config="{"), "items.config"),
        (made(config='{"a": "' + "x" * CONFIG_BYTES_MAX + '"}'), "items.config"),
        (fails("pray"), "items.failure.strategy"),
        (fails(RETRY), "items.failure.times"),
        (fails(RETRY, times=TIMES_MAX + 1), "items.failure.times"),
        (fails(times=1), "items.failure.times"),
        (fails(RETRY, times=1, wait_ms=WAIT_MS_MAX + 1), "items.failure.wait_ms"),
        (fails(RETRY, times=1, wait_ms=-1), "items.failure.wait_ms"),
        (fails(wait_ms=1), "items.failure.wait_ms"),
        (fails(topic="t"), "items.failure.topic"),
        (fails(DEAD_LETTER), "items.failure.topic"),
        (fails(DEAD_LETTER, topic="t/#"), "items.failure.topic"),
        (UpdateConnectors(items=()), "items"),
        (UpdateConnectors(tenant="", items=(item(),)), "tenant"),
        (DeleteConnectors(names=()), "names"),
        (StartConnectors(names=("",)), "names"),
        (StopConnectors(tenant="", names=("k",)), "tenant"),
        (HeartbeatConnectors(broker="", items=()), "broker"),
        (HeartbeatConnectors(broker="b", items=()), "items"),
        (heartbeat(tenant=""), "items.tenant"),
        (heartbeat(name=""), "items.name"),
        (heartbeat(epoch=-1), "items.epoch"),
        (heartbeat(failure="x" * (REASON_BYTES_MAX + 1)), "items.failure"),
        (AssignConnectors(controller_epoch=0, items=()), "controller_epoch"),
        (AssignConnectors(controller_epoch=1, items=()), "items"),
        (assigned(tenant=""), "items.tenant"),
        (assigned(name=""), "items.name"),
        (assigned(epoch=-1), "items.epoch"),
        (assigned(broker=""), "items.broker"),
        (ExpireConnectors(controller_epoch=0), "controller_epoch"),
        (ExpireConnectors(controller_epoch=1, timeout_ms=0), "timeout_ms"),
        (ExpireConnectors(controller_epoch=1, timeout_ms=TIMEOUT_MS_MAX + 1), "timeout_ms"),
        (ExpireConnectors(controller_epoch=1, limit=0), "limit"),
        (ExpireConnectors(controller_epoch=1, limit=SOME_MAX + 1), "limit"),
        (ReleaseConnectors(controller_epoch=0, broker="b"), "controller_epoch"),
        (ReleaseConnectors(controller_epoch=1, broker=""), "broker"),
        (ReleaseConnectors(controller_epoch=1, broker="b", limit=0), "limit"),
        (GetConnector(name=""), "name"),
        (GetConnector(tenant="", name="k"), "tenant"),
        (ListConnectors(tenant=""), "tenant"),
        (ListConnectors(starts="k" * 257), "starts"),
        (ListConnectorsByStatus(status="sleeping"), "status"),
        (ListConnectorsByStatus(status=IDLE, broker="b" * 257), "broker"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    create(group)
    group.beyond(operation, field)


def test_the_limits_themselves_are_within(group: Group) -> None:
    room = CONFIG_BYTES_MAX - len('{"a": ""}')
    made = [
        item("k" * 256, config='{"a": "' + "x" * room + '"}'),
        item("deep", config='{"a":' * JSON_DEPTH_MAX + "1" + "}" * JSON_DEPTH_MAX),
        item("retry", failure=ConnectorFailure(RETRY, times=TIMES_MAX, wait_ms=WAIT_MS_MAX)),
        item("letter", failure=ConnectorFailure(DEAD_LETTER, topic="dead/letters")),
        *[item(each, type=each) for each in TYPES],
    ]
    assert all(each.ok for each in group.run(CreateConnectors(items=tuple(made))))
    for status in STATUSES:
        group.ask(ListConnectorsByStatus(status=status))
    with pytest.raises(Invalid, match=r"^limit: 0"):
        group.ask(ListConnectorsByStatus(status=IDLE, limit=0))
