"""metaray beside its peers: who takes turns, what a result says, who leads by how much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench import command, report
from bench.compare import order, ratio, summed
from bench.peers import PEERS, NotInstalled, need
from bench.rows import EVERYONE, ROWS, Load, failover_figures
from metaray.cli.app import app


@pytest.mark.parametrize(
    ("better", "own", "peers", "wanted"),
    [
        ("higher", 300.0, [100.0, 150.0], 2.0),
        ("higher", 75.0, [150.0], 0.5),
        ("lower", 100.0, [1_300.0, 600.0], 6.0),
        ("lower", 1_200.0, [600.0, 1_300.0], 0.5),
        ("higher", 300.0, [0.0], None),
        ("lower", 0.0, [600.0], None),
    ],
)
def test_a_ratio_above_one_is_ahead_of_the_better_peer_in_either_direction(
    better: str, own: float, peers: list[float], wanted: float | None
) -> None:
    assert ratio(better, own, peers) == wanted


def test_each_round_begins_with_another_system() -> None:
    names = ["metaray", "etcd", "zookeeper"]
    rounds = [order(names, number) for number in range(4)]
    assert [each[0] for each in rounds] == ["metaray", "etcd", "zookeeper", "metaray"]
    assert all(sorted(each) == sorted(names) for each in rounds)


def test_what_must_be_reached_is_told_as_the_ratio_is() -> None:
    """Also where less is better: then twice as good is half the time."""
    for row in ROWS:
        further = row.aim >= row.must
        if row.absolute and row.better == "lower":
            further = row.aim <= row.must
        assert further, row.name
        assert row.must >= 1, row.name


def test_what_no_peer_has_the_like_of_has_bounds_of_its_own() -> None:
    alone = [row.name for row in ROWS if row.load is None]
    assert alone == ["sessions-1000", "isolation", "job"]
    assert alone == [row.name for row in ROWS if row.absolute]


def test_a_load_is_a_word_to_its_program() -> None:
    assert Load("put", 100).word(2.0) == "put:100:2.0"
    assert Load("commit", 8, 128).word(0.5) == "commit:8:0.5:128"
    assert Load("failover", 20).word(60.0, 4_711) == "failover:20:60.0:4711"


def test_one_killed_leader_has_two_figures() -> None:
    assert failover_figures(90.0, 250.0, everyone=False)["figure"] == 90.0
    assert failover_figures(90.0, 250.0, everyone=True) == {
        "figure": 250.0,
        "first_ms": 90.0,
        "all_ms": 250.0,
    }


def result_of(**systems: list[float]) -> dict[str, Any]:
    """As if each row's rounds had had these figures."""
    found = {
        name: {
            row.name: [{"figure": each, "errors": float(row.name == "read-1")} for each in figures]
            if name == "metaray" or row.load
            else []
            for row in ROWS
        }
        for name, figures in systems.items()
    }
    return {"machine": {}, "versions": {}, "rows": [summed(row, found) for row in ROWS]}


def test_a_row_has_every_round_of_every_system() -> None:
    result = result_of(
        metaray=[800.0, 600.0, 700.0], etcd=[100.0, 300.0, 200.0], zookeeper=[350.0, 340.0, 360.0]
    )
    rows = {row["workload"]: row for row in result["rows"]}
    put = rows["put-100"]
    assert [each["figure"] for each in put["etcd"]["rounds"]] == [100.0, 300.0, 200.0]
    assert (put["metaray"]["median"], put["etcd"]["median"], put["zookeeper"]["median"]) == (
        700.0,
        200.0,
        350.0,
    )
    assert (put["unit"], put["better"], put["must"], put["aim"]) == ("ops/s", "higher", 5.0, 10.0)
    assert put["ratio"] == 2.0
    assert rows["failover"]["ratio"] == rows[EVERYONE]["ratio"] == 200.0 / 700.0
    assert rows["sessions-1000"]["ratio"] is None
    assert "etcd" not in rows["sessions-1000"]


@pytest.mark.parametrize("others", [["etcd", "zookeeper"], ["zookeeper"], []])
def test_a_result_is_shown_with_the_systems_it_has(others: list[str], tmp_path: Path) -> None:
    result = result_of(**{name: [100.0, 300.0, 200.0] for name in ["metaray", *others]})
    assert report.systems(result) == ["metaray", *others]
    table = report.table(result, phases=False)
    headers = [str(column.header) for column in table.columns]
    assert headers[2 : 3 + len(others)] == ["metaray", *others]
    assert ("ratio" in headers) == bool(others)
    cells = {str(each.header): str(next(iter(each.cells))) for each in table.columns}
    assert [cells[each] for each in ["metaray", *others]] == ["200"] * (1 + len(others))
    assert cells["must"] == ("1.10" if others else "")
    assert cells.get("ratio", "") == ("1.00" if others else "")
    assert str(table.caption).startswith("calls that failed: metaray read-1 3")
    values, picture = report.write(result, tmp_path)
    assert json.loads(values.read_text()) == result
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_widest_table_fits_on_a_page() -> None:
    result = result_of(metaray=[1e6], etcd=[1e6], zookeeper=[1e6])
    for row in result["rows"]:
        row["metaray"]["medians"] |= {f"share_{name}": 1.0 for name in report.PHASES}
    page = Console(width=report.PAGE_COLUMNS)
    with page.capture() as shown:
        page.print(report.table(result, phases=True))
    lines = shown.get().splitlines()
    for row in result["rows"]:
        assert any(row["workload"] in line for line in lines), "a name is on one line"
    assert "…" not in shown.get(), "nothing is cut off"


def test_ratios_are_green_from_the_aim_on_and_red_below_what_must_be() -> None:
    styles = [
        str(report._ratio({"ratio": each, "must": 2.0, "aim": 4.0}).style)  # type: ignore[union-attr]
        for each in (4.0, 2.0, 1.99)
    ]
    assert styles == ["green", "", "red"]


def test_a_peer_that_is_not_installed_is_refused_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    both = list(PEERS.values())
    with pytest.raises(NotInstalled, match="etcd lacks setpriv, etcd, go"):
        need(both)
    with pytest.raises(NotInstalled, match="zookeeper lacks setpriv, java, javac") as refused:
        need([PEERS["zookeeper"]])
    assert refused.value.detail.endswith("apt-get install zookeeper default-jdk libslf4j-java")
    assert command.bench.__name__ == "bench"
    out = tmp_path / "out"
    ran = CliRunner().invoke(app, ["bench", "--peers", "zookeeper,etcd", "--out", str(out)])
    assert ran.exit_code == 2
    assert (
        "apt-get install etcd-server etcd-client golang-go golang-etcd-server-dev "
        "zookeeper default-jdk libslf4j-java"
    ) in " ".join(ran.output.split())
    assert not out.exists()


def test_no_peers_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    need([])
