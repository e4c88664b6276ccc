"""kill -9 of replicas' processes, and a lost disk: nothing acknowledged is lost, all comes back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from actors import calls
from metaray import Client, connect, connect_sync
from metaray.cli.app import app
from metaray.local import LocalCluster
from metaray.overview import overview
from state_machines.errors import Fenced, NoQuorum, Unknown
from state_machines.metadata.config import ConfigName, ConfigValue, DeleteConfigs, SetConfigs
from state_machines.metadata.kv import PutKv
from state_machines.metadata.node import ExpireNodes, RegisterNode, UnregisterNode
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.mqtt.sessions import Session
from state_machines.offset.offset import OffsetCommit
from tests.door.seats import ask, follower, leader, seats, statuses, wait_for, wait_until_whole

pytestmark = pytest.mark.ray

WRITERS = 8
AFTER = 40  #: writes of each writer after the fault
NEVER_MS = 1 << 40  #: no broker is silent for this long


def kill_process(seat: str) -> None:
    os.kill(ask(seat, "process"), signal.SIGKILL)


async def write_through(tenant: str, fault: Callable[[], None]) -> dict[str, int]:
    """Writers that go on while the fault happens; how many writes of each were acknowledged."""
    acknowledged: dict[str, int] = {}
    under_way, hurt = asyncio.Event(), asyncio.Event()

    async def write(client: Client, writer: str) -> None:
        left = AFTER
        while left:
            left -= hurt.is_set()
            done = acknowledged.get(writer, 0)
            commit = OffsetCommit(group=writer, topic="t", partition=0, offset=done + 1)
            await client.commit_offsets([commit], tenant=tenant)
            acknowledged[writer] = done + 1
            under_way.set()

    async def hurt_it() -> None:
        await under_way.wait()
        try:
            await asyncio.to_thread(fault)
        finally:
            hurt.set()

    async with connect() as client:
        await asyncio.gather(hurt_it(), *(write(client, f"w{number}") for number in range(WRITERS)))
    return acknowledged


@pytest.mark.parametrize("role", ["follower", "leader"])
@pytest.mark.usefixtures("service")
def test_no_acknowledged_write_is_lost_with_a_process(tenant: str, role: str) -> None:
    wait_until_whole("offset-0")
    before = statuses("offset-0")
    seat = str(leader("offset-0")["seat"]) if role == "leader" else follower("offset-0")
    node = ask(seat, "node")
    acknowledged = asyncio.run(write_through(tenant, lambda: kill_process(seat)))
    assert min(acknowledged.values()) >= AFTER
    with connect_sync() as client:
        for writer, count in acknowledged.items():
            [row] = client.fetch_offsets(writer, tenant=tenant)
            assert (row.commits, row.offset) == (count, count)  # each once, none lost

    def back() -> Any:
        return statuses("offset-0").get(seat)

    after = wait_for(back, f"{seat} is back")
    assert after["replica"] == before[seat]["replica"]
    assert after["boot"] == before[seat]["boot"] + 1
    assert ask(seat, "node") == node
    wait_until_whole("offset-0")
    if role == "leader":
        assert leader("offset-0")["term"] > before[seat]["term"]


@pytest.mark.usefixtures("service")
def test_the_controller_follows_the_metadata_leader_and_the_old_epoch_is_fenced() -> None:
    wait_until_whole("metadata-0")
    old = leader("metadata-0")
    kill_process(old["seat"])
    new = wait_for(
        lambda: next(
            (
                each
                for each in statuses("metadata-0").values()
                if each["role"] == "leader" and each["term"] > old["term"]
            ),
            None,
        ),
        "another leader",
    )

    def standing() -> dict[str, Any] | None:
        """The only controller there is, if it is the leader's and beside it."""
        leads = leader("metadata-0")
        names = [each for each in calls.named_actors() if each.startswith("controller-")]
        if names != [f"controller-{leads['term']}"]:
            return None
        try:
            status: dict[str, Any] = ask(names[0], "status")
            return status if status["node"] == ask(leads["seat"], "node") else None
        except Exception:  # noqa: BLE001 - it is just being made
            return None

    controller = wait_for(standing, "one controller, beside the leader")
    assert controller["epoch"] >= new["term"]
    assert not controller["fenced"]
    epoch = controller["epoch"]
    with connect_sync() as client:
        client.call(ExpireNodes(controller_epoch=epoch, timeout_ms=NEVER_MS))
        with pytest.raises(Fenced):
            client.call(ExpireNodes(controller_epoch=epoch - 1, timeout_ms=NEVER_MS))
    wait_until_whole("metadata-0")


@pytest.mark.usefixtures("service")
def test_offsets_and_sessions_go_on_while_metadata_is_frozen(tenant: str) -> None:
    wait_until_whole("metadata-0")
    frozen = [ask(seat, "process") for seat in seats("metadata-0")]
    commit = OffsetCommit(group="g", topic="t", partition=0, offset=1)
    with connect_sync() as old:
        old.commit_offsets([commit], tenant=tenant)
        try:
            for each in frozen:
                os.kill(each, signal.SIGSTOP)
            with connect_sync(timeout_ms=20_000) as new:
                for client in (old, new):
                    client.commit_offsets([commit], tenant=tenant)
                    opened = client.call(OpenSession(tenant=tenant, client_id="c", broker="b"))
                [row] = new.fetch_offsets("g", tenant=tenant)
                with pytest.raises((NoQuorum, Unknown)):
                    new.call(PutKv(key=tenant, value=b""), timeout_ms=500)
        finally:
            for each in frozen:
                os.kill(each, signal.SIGCONT)
    assert row.commits == 3
    assert opened.present is False, "the one before ended with its connection"
    wait_until_whole("metadata-0")


@pytest.mark.usefixtures("service")
def test_the_sessions_of_a_broker_that_dies_are_closed(tenant: str) -> None:
    """By the controller: no other broker is there, and nobody else asks."""
    timeout = ConfigValue(key="heartbeat_timeout_ms", number=1_000)
    with connect_sync() as client:

        def session(name: str) -> Session:
            found = client.call(GetSession(tenant=tenant, client_id=name))
            assert found is not None
            return found

        node = client.call(RegisterNode(node_id=f"broker of {tenant}"))
        for name, broker in (("lost", node.node_id), ("kept", "no broker of the fleet")):
            open_it = OpenSession(tenant=tenant, client_id=name, broker=broker, expiry_s=3_600)
            client.call(open_it)
        try:
            client.call(SetConfigs(items=(timeout,)))
            wait_for(lambda: not session("lost").connected, "the session is closed")
            assert session("lost").expires_ms
            assert session("kept").connected
        finally:
            client.call(DeleteConfigs(items=(ConfigName(key=timeout.key),)))
            client.call(UnregisterNode(node_id=node.node_id, epoch=node.epoch))


def rows_at(seat: str, table: str) -> list[dict[str, Any]]:
    """All rows of a table as this seat's replica has them."""
    cut = ask(seat, "export_open", (table,))["cut"]
    page, after = ask(seat, "export_page", cut, table, b"", 50_000)
    ask(seat, "export_close", cut)
    assert not after, "one page is enough here"
    rows: list[dict[str, Any]] = pa.ipc.open_stream(page).read_all().to_pylist()
    return rows


@pytest.mark.long
def test_a_seat_whose_disk_is_lost_joins_as_someone_new(service: LocalCluster, tenant: str) -> None:
    group = "offset-0"
    commits = [OffsetCommit(group=f"g{n}", topic="t", partition=0, offset=n) for n in range(200)]
    wait_until_whole(group)
    with connect_sync() as client:
        client.commit_offsets(commits, tenant=tenant)
        seat = follower(group)
        lost = statuses(group)[seat]
        [directory] = directories(service, group, lost["replica"])
        shutil.rmtree(directory)
        kill_process(seat)

        def replaced() -> bool:
            known = statuses(group)
            if seat not in known or not known[seat]["replica"]:
                return False
            assert known[seat]["replica"] != lost["replica"], "it speaks as the one that is lost"
            leads = leader(group)
            return (
                known[seat]["replica"] in leads["voters"]
                and lost["replica"] not in leads["voters"]
                and not leads["outgoing"]
                and not leads["learners"]
            )

        wait_for(replaced, "the vacant seat has a new voter and the lost one is out")
        assert len(leader(group)["voters"]) == 3
        client.commit_offsets(
            [OffsetCommit(group="last", topic="t", partition=0, offset=1)], tenant=tenant
        )
    wait_until_whole(group)
    assert not directories(service, group, lost["replica"])
    expected = rows_at(leader(group)["seat"], "offset.offset")
    assert len([row for row in expected if row["tenant"] == tenant]) == 201
    for each in seats(group):
        assert rows_at(each, "offset.offset") == expected
    assert seat in statuses(group)


def directories(cluster: LocalCluster, group: str, replica: int) -> list[Path]:
    """The data directories of a replica, on all nodes."""
    found = [node.data.rglob(f"{group}/{replica:016x}") for node in cluster.nodes]
    return [path for paths in found for path in paths]


@pytest.mark.usefixtures("service")
def test_a_seat_that_does_not_answer_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until_whole("mqtt-0")
    seat = follower("mqtt-0")
    pid = ask(seat, "process")
    monkeypatch.setattr("metaray.overview.CALL_SECONDS", 1.0)
    os.kill(pid, signal.SIGSTOP)
    try:
        seen = overview()
        said = CliRunner().invoke(app, ["status"], env={"COLUMNS": "80"})
    finally:
        os.kill(pid, signal.SIGCONT)
    [alarm] = [alarm for alarm in seen["alarms"] if seat in alarm]
    assert alarm.startswith(f"{seat}: silent")
    assert f"alarm: {alarm}"[:60] in said.stdout
    wait_until_whole("mqtt-0")
