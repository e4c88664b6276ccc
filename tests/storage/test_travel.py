"""What a snapshot of a group takes along, and in which pieces (laws 9 and 14)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from state_machines.machine import Machine
from state_machines.metadata.node import RegisterNode
from state_machines.raft.messages import Entry, SnapshotMeta
from state_machines.wire import api_pb2 as api
from state_machines.wire import raft_pb2
from storage import records, snapshot
from storage.engine import Change
from storage.errors import BadSnapshot, SnapshotRefused
from storage.shelf import DiskShelf, MemoryShelf
from storage.snapshot import Chunk, Staging, write_stream
from storage.state import State
from tests.machine.alone import EMPTY, NOW_MS, wire
from tests.storage.faults import MEMBERS, open_files, point

MESSAGE_BYTES_MAX = 64 << 10


def chunks_of(state: State) -> list[Chunk]:
    with state.view() as view:
        return list(write_stream(view))


def installed(chunks: Sequence[Chunk]) -> State:
    """Another replica, which was sent these."""
    state = State(MemoryShelf(), founding=MEMBERS)
    staging = state.stage()
    for chunk in chunks:
        staging.add(chunk)
    state.install(staging, staging.finish())
    return state


def apply(state: State, index: int, proposal: api.Proposal) -> api.Reply:
    batch = api.Batch(now_ms=NOW_MS, proposals=[proposal])
    machine = Machine("metadata", "metadata-0", state)
    (applied,) = machine.apply(Entry(1, index, batch.SerializeToString()))
    state.set_applied(SnapshotMeta(index, 1, MEMBERS))
    return api.Reply.FromString(applied.reply)


def test_a_retry_after_an_install_finds_its_reply() -> None:
    state = State(MemoryShelf(), founding=MEMBERS)
    register = api.Proposal(sequence=1, commands=[api.Command(tag="client.register", body=EMPTY)])
    client = apply(state, 1, register).client
    join = api.Proposal(client=client, sequence=1, commands=[wire(RegisterNode(node_id="b"))])
    first = apply(state, 2, join)
    assert apply(installed(chunks_of(state)), 3, join) == first


def test_a_chunk_fits_into_a_message() -> None:
    state = State(MemoryShelf(), founding=MEMBERS)
    for number in range(40):
        state.put("t", (number,), bytes(10_000))
    state.set_applied(point(5))
    chunks = chunks_of(state)
    assert len(chunks) > 5
    for chunk in chunks:
        message = raft_pb2.SnapshotChunk(
            cluster="c" * 32,
            group="g" * 128,
            sender=2**63 - 1,
            receiver=2**63 - 1,
            term=2**62,
            meta=raft_pb2.SnapshotMeta.FromString(records.meta_to(point(5))),
            number=chunk.number,
            data=chunk.data,
            crc=chunk.crc,
            last=chunk.last,
            records=chunk.records,
            digest=chunk.digest,
        )
        assert message.ByteSize() <= MESSAGE_BYTES_MAX


@pytest.mark.parametrize(("limit", "most"), [("STAGE_ROWS", 20), ("STAGE_BYTES", 20_000)])
def test_what_arrives_is_written_little_by_little(
    limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large a snapshot is, its receiver holds little of it."""
    state = State(MemoryShelf())
    for number in range(300):
        state.put("t", (number,), bytes(1_000))
    state.set_applied(point(5))
    with state.view() as view:
        chunks = list(write_stream(view, 2_000))
    shelf, written = MemoryShelf(), list[int]()
    monkeypatch.setattr(snapshot, limit, most)
    staging = Staging(shelf)
    assert shelf.staged is not None
    write = shelf.staged.write

    def noted(changes: Iterable[Change]) -> None:
        some = list(changes)
        written.append(len(some))
        write(some)

    monkeypatch.setattr(shelf.staged, "write", noted)
    for chunk in chunks:
        staging.add(chunk)
    assert shelf.staged.tables() == ("t",)  # it is no state before it is verified
    staging.finish()
    assert all(18 <= each <= 22 for each in written[:-1])
    assert sum(written) == 300 + 2  # each row once, and the point


def test_what_was_read_before_an_install_is_forgotten_with_it() -> None:
    """Rows that are kept in memory, and keys at which there was nothing."""
    ahead = State(MemoryShelf(), founding=MEMBERS)
    ahead.put("t", ("changed",), b"new")
    ahead.put("t", ("made",), b"there")
    ahead.set_applied(point(9))
    behind = State(MemoryShelf(), founding=MEMBERS)
    for name in ("changed", "gone"):
        behind.put("t", (name,), b"old")
    behind.set_applied(point(1))
    behind.flush()
    behind.put("u", ("other",), b"")
    behind.set_applied(point(2))
    behind.flush()  # the rows of `t` have left the layers
    for _ in range(40):
        assert behind.get("t", ("changed",)) == behind.get("t", ("gone",)) == b"old"
        assert behind.get("t", ("made",)) is None
    staging = behind.stage()
    for chunk in chunks_of(ahead):
        staging.add(chunk)
    behind.install(staging, staging.finish())
    assert [behind.get("t", (name,)) for name in ("changed", "gone", "made")] == [
        *(b"new", None, b"there")
    ]
    assert behind.get_many("t", (("changed",), ("gone",), ("made",))) == [b"new", None, b"there"]


@pytest.mark.parametrize("how", ["behind", "of another point", "installed"])
def test_nothing_of_a_snapshot_or_of_what_it_replaced_stays_on_the_disk(
    how: str, tmp_path: Path
) -> None:
    ahead = State(MemoryShelf(), founding=MEMBERS)
    ahead.put("t", ("k",), b"v")
    ahead.set_applied(point(9))
    state = State(DiskShelf(tmp_path / "state", tmp_path / "staging"), founding=MEMBERS)
    if how == "behind":
        state.set_applied(point(12))
    staging = state.stage()
    for chunk in chunks_of(ahead):
        staging.add(chunk)
    meta = staging.finish()
    match how:
        case "behind":
            with pytest.raises(SnapshotRefused):
                state.install(staging, meta)
        case "of another point":
            with pytest.raises(BadSnapshot):
                state.install(staging, point(8))
        case _:
            state.install(staging, meta)
    assert sum(each.is_dir() for each in (tmp_path / "state").iterdir()) == 1
    assert list((tmp_path / "staging").iterdir()) == []
    state.close()


def test_what_is_staged_and_not_wanted_is_let_go(tmp_path: Path) -> None:
    before = open_files()
    shelf = DiskShelf(tmp_path / "state", tmp_path / "staging")
    opened, staged = open_files(), [shelf.stage()]
    shelf.discard()
    assert open_files() == opened
    staged.append(shelf.stage())
    shelf.close()
    assert open_files() == before
    assert list((tmp_path / "staging").iterdir()) == []
    assert len(staged) == 2  # nobody else has closed them
