"""`metaray fsck` and `metaray repair` against a running cluster, by what ordinary commands leave.

A topic that is deleted leaves the offsets that were committed for it. fsck finds them in a cut of
the cluster, and repair deletes them, unless somebody has committed meanwhile.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from jobs.integrity.rule import FINDINGS
from metaray import connect_sync
from metaray.cli.app import app
from metaray.local import LocalCluster
from metaray.repairing import CHANGED, DONE, HELD, OUTCOMES, REFUSED, RIGHT, Told
from state_machines.metadata.topic import (
    CreateTopicConfigs,
    DeleteTopicConfigs,
    NewTopic,
    TopicName,
)
from state_machines.offset.offset import OffsetCommit

RULES = "offset_of_deleted_topic,offset_without_group,group_partitions"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def said(*arguments: str, status: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def test_a_plan_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = run("repair", "--plan", str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert result.stderr.startswith("Invalid: plan: ")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_plan_is_shown_as_it_is_though_it_looks_like_markup(tmp_path: Path) -> None:
    plan = tmp_path / "plan[v2]"
    words = {field.name: "[red]" for field in FINDINGS if field.type == pa.string()}
    pq.write_table(pa.Table.from_pylist([words], schema=FINDINGS), plan)
    result = run("repair", "--plan", str(plan))
    assert result.stdout.count("[red]") == 2
    assert f"--plan {plan}` does it" in result.stdout


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ((), 0),
        ((DONE, RIGHT, CHANGED), 0),
        ((DONE, REFUSED), 1),
        ((DONE, HELD), 1),
    ],
)
def test_what_is_refused_or_held_back_is_status_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: tuple[str, ...],
    status: int,
) -> None:
    told = Told()
    for outcome in outcomes:
        told.add({"rule": "a_rule", "table": "mqtt.session", "key": "{}"}, outcome, "because")

    async def executed(*_: Any) -> Told:
        return told

    monkeypatch.setattr("metaray.cli.repair.join_cluster", lambda *_: None)
    monkeypatch.setattr("metaray.cli.repair.connect", lambda *_: nullcontext())
    monkeypatch.setattr("metaray.repairing.repair", executed)
    asked = ("repair", "--apply", "--plan", str(tmp_path / "plan"))
    shown = said(*asked, status=status)
    assert {each: shown[each] for each in OUTCOMES} == {
        each: outcomes.count(each) for each in OUTCOMES
    }
    assert run(*asked).exit_code == status


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # pyspark's (tests/jobs)
def test_offsets_of_a_deleted_topic_are_found_and_deleted(
    service: LocalCluster, tenant: str, tmp_path: Path
) -> None:
    cluster = ("--data", str(service.data))
    with connect_sync(data=service.data) as client:
        new = NewTopic(name="orders", protocol="kafka")
        client.call(CreateTopicConfigs(tenant=tenant, items=(new,)))
        commits = [
            OffsetCommit(group="g", topic="orders", partition=0, offset=5),
            OffsetCommit(group="g", topic="orders", partition=1, offset=5),
            OffsetCommit(group="g", topic="other", partition=0, offset=5),
        ]
        client.commit_offsets(commits, tenant=tenant)
        client.call(DeleteTopicConfigs(tenant=tenant, items=(TopicName(name="orders"),)))

        found = said(
            *("fsck", *cluster, "--local-spark", "--out", str(tmp_path), "--set", "grace_ms=0"),
            *("--set", f"rules={RULES}"),  # all of them: tests/jobs/test_fsck.py
            status=1,
        )
        assert "offset_of_deleted_topic" in {each["rule"] for each in found["rules"]}
        # Others have rows in this cluster, too: of all that was found this test repairs its own.
        every = pq.read_table(found["plan"])
        mine = every.filter(pc.equal(every["tenant"], tenant))
        assert set(mine["rule"].to_pylist()) == {"offset_of_deleted_topic"}
        assert mine.num_rows == 2
        plan = tmp_path / "mine.parquet"
        pq.write_table(mine, plan)

        shown = said("repair", "--plan", str(plan))
        assert shown["repairs"] == [
            {"rule": "offset_of_deleted_topic", "command": "offset.delete", "rows": 2}
        ]
        assert len(client.fetch_offsets("g", tenant=tenant)) == 3, "nothing was done"

        client.commit_offsets([commits[1]._replace(offset=6)], tenant=tenant)
        told = said("repair", "--apply", "--plan", str(plan), *cluster)
        assert (told["done"], told["changed"]) == (1, 1)
        left = {(each.topic, each.partition) for each in client.fetch_offsets("g", tenant=tenant)}
        assert left == {("orders", 1), ("other", 0)}

        again = said("repair", "--apply", "--plan", str(plan), *cluster)
        assert (again["done"], again["changed"]) == (0, 2)
