"""Cuts of a group that goes on writing: one moment, whole, page by page."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from actors.export import CUTS_MAX
from metaray import BlockingClient, connect_sync, cuts
from metaray.cuts import Cut
from state_machines.errors import Invalid, NoQuorum, NotFound
from state_machines.offset.offset import OffsetCommit
from tests.door.seats import seats

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]

TABLE = "offset.offset"
PAIRS = 40
CUTS = 5


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with connect_sync() as client:
        yield client


def rows_of(cut: Cut, tenant: str, rows: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for page in cut.pages(TABLE, rows):
        table = pa.ipc.open_stream(page).read_all()
        assert table.num_rows <= rows
        found += table.to_pylist()
    return [row for row in found if row["tenant"] == tenant]


def commit_pairs(client: BlockingClient, tenant: str, number: int) -> None:
    """One command that writes two rows of each group; both, or neither."""
    client.commit_offsets(
        [
            OffsetCommit(group=f"g{pair:03}", topic=topic, partition=0, offset=number)
            for pair in range(PAIRS)
            for topic in ("a", "b")
        ],
        tenant=tenant,
    )


def test_a_cut_is_one_moment_while_writers_go_on(client: BlockingClient, tenant: str) -> None:
    commit_pairs(client, tenant, 1)
    ended = threading.Event()
    written = [1]

    def write() -> None:
        with connect_sync() as writer:
            while not ended.is_set():
                commit_pairs(writer, tenant, written[0] + 1)
                written[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(CUTS):
            acknowledged = written[0]
            cut = cuts.take("offset-0", (TABLE,))
            began = written[0]
            rows = rows_of(cut, tenant, 7)
            again = rows_of(cut, tenant, 1_000)
            cut.close()
            assert rows == again, "a cut does not move"
            assert [(row["group"], row["topic"]) for row in rows] == [
                (f"g{pair:03}", topic) for pair in range(PAIRS) for topic in ("a", "b")
            ]
            [number] = {row["offset"] for row in rows}  # all of one command, or none
            assert acknowledged <= number <= began + 2
            assert {row["commits"] for row in rows} == {number}
            [revision] = {row["revision"] for row in rows}
            assert revision <= cut.index
    finally:
        ended.set()
        thread.join(30)
    assert not thread.is_alive()


def test_pages_that_end_with_the_table_and_an_empty_table(client: BlockingClient) -> None:
    cut = cuts.take("offset-0", (TABLE, "offset.group"))
    total = sum(pa.ipc.open_stream(page).read_all().num_rows for page in cut.pages(TABLE, 1_000))
    for rows in (1, 3, total or 1, total + 1):
        sizes = [pa.ipc.open_stream(page).read_all().num_rows for page in cut.pages(TABLE, rows)]
        assert sum(sizes) == total
        assert max(sizes) <= rows
        if rows == 1:
            break_even = len(sizes)
            assert break_even in (total, total + 1)
    cut.close()
    assert client.groups()


def test_a_cut_that_is_gone_is_not_found() -> None:
    cut = cuts.take("offset-0", (TABLE,))
    with pytest.raises(Invalid, match="is not in this cut"):
        next(cut.pages("offset.group"))
    with pytest.raises(Invalid, match="rows: 0, the limit is"):
        next(cut.pages(TABLE, 0))
    cut.close()
    cut.close()
    with pytest.raises(NotFound, match=r"cut: .* is not open here"):
        next(cut.pages(TABLE))
    with pytest.raises(NotFound, match="'never' is not open here"):
        next(Cut("offset-0", cut.seat, "never", 0).pages(TABLE))
    with pytest.raises(NotFound, match=r"there is no table 'offset\.nothing'"):
        cuts.take("offset-0", ("offset.nothing",))
    with pytest.raises(NoQuorum, match="mqtt-77: no cut to be had"):
        cuts.take("mqtt-77", (TABLE,))


def test_many_cuts_spread_over_the_replicas_and_then_there_is_no_more() -> None:
    taken: list[Cut] = []
    try:
        taken.extend(cuts.take("mqtt-0", ("mqtt.session",)) for _ in range(3 * CUTS_MAX))
        assert Counter(cut.seat for cut in taken) == dict.fromkeys(seats("mqtt-0"), CUTS_MAX)
        with pytest.raises(NoQuorum, match="cuts are open at this replica already"):
            cuts.take("mqtt-0", ("mqtt.session",))
    finally:
        for cut in taken:
            cut.close()
    cuts.take("mqtt-0", ("mqtt.session",)).close()
