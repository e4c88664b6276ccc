"""`metaray watch`: a line a change, of the rows that were asked for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from metaray.cli.app import app
from metaray.client import Change, Part
from state_machines.mqtt.topic import TOPICS, Topic
from state_machines.mqtt.user import User
from tests.door.in_memory import Watching, instead

KEY = ("default", "a/1")
CHANGES: tuple[Change[Topic], ...] = (
    Change(5, KEY, Topic("default", "a/1", 2, 1_700_000_000_000), group="mqtt-1"),
    Change(6, ("other", "a/1"), Topic("other", "a/1", 3, 9), group="mqtt-1"),
    Change(3, ("other", "a/2"), None, group="mqtt-0"),
    Change(7, ("default", "b\n[red]"), Topic("default", "b\n[red]", 1, 9), group="mqtt-1"),
    Change(8, KEY, None, group="mqtt-1"),
)
LINES = (
    "5 default a/1 partitions=2 created_ms=2023-11-14 22:13:20",
    "6 other a/1 partitions=3 created_ms=9",
    "7 default b\\n[red] partitions=1 created_ms=9",
    "8 default a/1 deleted",
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["watch", *arguments])


@pytest.fixture
def watching() -> Watching:
    return Watching(CHANGES, "metadata-0", "mqtt-0", "mqtt-1")


@pytest.mark.parametrize("named", [(), ("--raft-group", "mqtt-0")])
def test_a_line_a_change_until_it_is_interrupted(named: tuple[str, ...]) -> None:
    changes = [replace(each, group="mqtt-0") for each in CHANGES if each.group == "mqtt-1"]
    watching = Watching(changes, "metadata-0", "mqtt-0", *["mqtt-1"] * bool(named))
    with instead(watching):
        result = run("mqtt.topic", *named)
    assert result.exit_code == 130
    assert result.stdout.splitlines() == list(LINES)
    assert watching.asked == {
        "table": "mqtt.topic",
        "from_revision": None,
        "group": "mqtt-0",
        "tenant": "",
        "prefix": "",
    }


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_verifiers_are_not_printed_as_they_go_by(form: tuple[str, ...]) -> None:
    user = User("default", "ann", "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA", False, 5, 9)
    change = Change(7, ("default", "ann"), user, group="mqtt-0")
    with instead(Watching((change,), "metadata-0", "mqtt-0")):
        result = run("mqtt.user", *form)
    assert "scrypt" not in result.output
    assert "ann" in result.stdout
    assert "updated_ms" in result.stdout


def test_all_groups_are_followed_and_each_line_names_its_own(watching: Watching) -> None:
    with instead(watching):
        result = run("mqtt.topic")
    lines = [f"mqtt-1 {line}" for line in LINES]
    lines.insert(2, "mqtt-0 3 other a/2 deleted")
    assert result.stdout.splitlines() == lines
    terms = {"tables": (TOPICS,), "only": (), "progress": False}
    assert watching.asked == {"kind": "mqtt", **terms}
    with instead(watching):
        run("mqtt.topic", "--tenant", "default", "--prefix", "a/")
    assert watching.asked == {"kind": "mqtt", **terms, "only": (Part("default", "a/"),)}


def test_rows_of_the_cluster_are_in_the_first_group() -> None:
    watching = Watching((), "metadata-0", "metadata-1")
    with instead(watching):
        run("metadata.shard", "--from-revision", "4")
    assert (watching.asked["group"], watching.asked["from_revision"]) == ("metadata-0", 4)


def test_json_lines_of_one_tenant_prefix_and_number(watching: Watching) -> None:
    with instead(watching):
        result = run(
            *("mqtt.topic", "--tenant", "default", "--prefix", "a/", "--count", "2", "--json"),
            *("--from-revision", "4", "--raft-group", "mqtt-1"),
        )
    assert result.exit_code == 0, result.output
    first, last = map(json.loads, result.stdout.splitlines())
    assert first == {
        "group": "mqtt-1",
        "revision": 5,
        "table": "mqtt.topic",
        "key": {"tenant": "default", "name": "a/1"},
        "row": {
            "tenant": "default",
            "name": "a/1",
            "partitions": 2,
            "created_ms": 1_700_000_000_000,
        },
    }
    assert (last["revision"], last["row"]) == (8, None)
    assert watching.asked == {
        "table": "mqtt.topic",
        "from_revision": 4,
        "group": "mqtt-1",
        "tenant": "default",
        "prefix": "a/",
    }, "the replica leaves out what is not wanted"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mqtt.nothing",), "Invalid: table: 'mqtt.nothing' is not one of "),
        (("metadata.node", "--tenant", "t"), "Invalid: tenant: rows of metadata.node have none"),
        (("mqtt.topic", "--tenant", ""), "Invalid: tenant: empty"),
        (("mqtt.topic", "--prefix", "a\udcff"), "Invalid: prefix: not UTF-8"),
        (("group.lease", "--prefix", "7"), "Invalid: prefix: keys of group.lease have no text"),
        (("mqtt.session_tally", "--prefix", "a"), "Invalid: prefix: keys of mqtt.session_tally"),
        (("mqtt.topic", "--count", "-1"), "Invalid: count: -1 is negative"),
        (
            ("group.lease",),
            "Invalid: raft_group: name one, each has its group.lease: metadata-0, mqtt-0, mqtt-1\n",
        ),
        (
            ("mqtt.topic", "--raft-group", "mqtt-7"),
            "NotFound: raft_group: there is no group 'mqtt-7'; there are metadata-0, mqtt-0, ",
        ),
        (
            ("mqtt.topic", "--from-revision", "4"),
            "Invalid: from_revision: name its group by --raft-group, one of mqtt-0, mqtt-1\n",
        ),
        (("offset.group",), "NotFound: raft_group: there is no group 'offset-0'; there are "),
    ],
)
def test_what_cannot_be_watched(watching: Watching, arguments: tuple[str, ...], said: str) -> None:
    with instead(watching):
        result = run(*arguments)
    assert watching.asked == {}
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1
