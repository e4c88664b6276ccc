"""The loop closed on real Ray: a history, Spark's advice, what the controller does, and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs import report
from jobs.advice import LEADERS
from jobs.datasets import frame
from jobs.hotspots import JOB
from jobs.operations import OPERATIONS
from jobs.session import Session
from jobs.sources import Sources, read_files
from metaray import advising, reporting
from metaray.client import BlockingClient, connect_sync
from state_machines.metadata.advice import Advice, UndoAdvice
from state_machines.metadata.config import ConfigName, ConfigValue, DeleteConfigs, SetConfigs
from state_machines.metadata.tenant import GetTenant
from tests.door.seats import ask, leader, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

MINUTE = 60_000
TENANT = "loop-hot"


@pytest.fixture
def client(ray_driver: object) -> Iterator[BlockingClient]:
    from actors.config import ClusterConfig
    from metaray.service import start_service

    for _ in start_service(ClusterConfig()):
        pass
    with connect_sync() as client:
        yield client
        configured = ("advice_mode", "advice_check_ms")
        client.call(DeleteConfigs(items=tuple([ConfigName(key=each) for each in configured])))


def groups() -> dict[str, Any]:
    from metaray.overview import overview

    found: dict[str, Any] = overview()["groups"]
    return found


def node_of(group: str) -> str:
    """The node of the group's leader."""
    (led,) = [each["node"] for each in advising.leaders(groups()) if _leads(each, group)]
    return str(led)


def _leads(row: dict[str, Any], group: str) -> bool:
    return bool(row["group"] == group and row["leads"])


def gather(group: str, node: str) -> None:
    """The group is led on this node."""
    if node_of(group) == node:
        return
    led = leader(group)
    (seat,) = [
        each["seat"]
        for each in advising.leaders(groups())
        if each["group"] == group and each["node"] == node
    ]
    replica = next(number for number, name in led["seats"].items() if name == seat)
    ask(led["seat"], "transfer", replica)
    wait_for(lambda: leader(group)["seat"] == seat, f"{group} is led by {seat}")


def history(end_ms: int) -> pa.RecordBatch:
    """A minute in which one tenant commits nine tenths of `offset-0`, and `mqtt-0` does as much."""
    plain = {"number": 0, "term": 1, "at_ms": end_ms - 1, "client": "1", "sequence": 1, "bytes": 10}
    commits = {f"loop-{n}": 100 for n in range(9)} | {TENANT: 9_100}
    rows = [
        {
            "group": "offset-0",
            "op": "offset.commit",
            "tenant": tenant,
            "subject": tenant,
            "items": n,
        }
        for tenant, n in commits.items()
    ]
    rows += [
        {
            "group": "mqtt-0",
            "op": "mqtt.retained.set",
            "tenant": f"m{n}",
            "subject": "",
            "items": 1_000,
        }
        for n in range(10)
    ]
    # By which the minute is over.
    rows.append({"group": "mqtt-0", "op": "mqtt.pulse", "tenant": "", "subject": ""})
    rows[-1] |= {"items": 1, "at_ms": end_ms}
    return pa.RecordBatch.from_pylist(
        [{**plain, **row, "index": place + 1} for place, row in enumerate(rows)], schema=OPERATIONS
    )


def spread(loads: dict[str, float]) -> float:
    """The highest load that the leaders on one node have."""
    of_node: dict[str, float] = {}
    for group, load in loads.items():
        node = node_of(group)
        of_node[node] = of_node.get(node, 0.0) + load
    return max(of_node.values())


def test_a_hot_tenant_and_a_full_node_are_advised_upon_relieved_and_put_back(
    client: BlockingClient, session: Session, tmp_path: Path
) -> None:
    gather("mqtt-0", node_of("offset-0"))
    loads = {"offset-0": 10_000 / 60, "mqtt-0": 10_000 / 60}
    assert spread(loads) == pytest.approx(20_000 / 60)
    now_ms = time.time_ns() // 1_000_000
    end_ms = now_ms - now_ms % MINUTE
    given = reporting.with_leaders([JOB], Sources(), session.directory)
    made = report.run(
        session,
        JOB,
        {
            "operations": frame(session, OPERATIONS, [history(end_ms)], "operations"),
            "leaders": read_files(session, [given.files["leaders"]], LEADERS, "leaders"),
        },
        JOB.context(now_ms, {}, {}),
        tmp_path,
    )
    assert made.rows["advice"] == 2
    items = advising.read(tmp_path)
    cap, move = sorted(items, key=lambda each: each.kind == "leader")
    assert (cap.target, move.target, move.kind) == (TENANT, "mqtt-0", "leader")
    assert all(each.ok for each in advising.submit(client, items))

    def row(advice_id: str) -> Advice:
        return advising.held(client, advice_id)

    def states() -> set[str]:
        return {row(each.id).state for each in items}

    def limit() -> int:
        found = client.call(GetTenant(name=TENANT))
        return 0 if found is None else int(found.quotas.offset_commits_per_s)

    assert (row(cap.id).state, limit()) == ("proposed", 0)
    configs = (
        ConfigValue(key="advice_mode", text="auto"),
        ConfigValue(key="advice_check_ms", number=200),
    )
    assert all(each.ok for each in client.call(SetConfigs(items=configs)))
    wait_for(lambda: states() == {"applied"}, "both are applied")
    assert row(cap.id).by.startswith("controller-")
    assert limit() == cap.number == 9
    assert leader("mqtt-0")["seat"] == move.destination
    assert spread(loads) == pytest.approx(10_000 / 60), "as it was predicted"
    undone = client.call(UndoAdvice(ids=(cap.id, move.id), by="a test"))
    assert all(each.ok for each in undone)
    wait_for(lambda: states() == {"undone"}, "both are undone")
    assert limit() == 0
    assert leader("mqtt-0")["seat"] == move.source
    assert spread(loads) == pytest.approx(20_000 / 60)
