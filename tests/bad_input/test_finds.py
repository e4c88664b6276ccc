"""What the battery has found, one test each: the smallest input that once did harm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from actors.caller import Caller
from actors.config import FILE_BYTES_MAX, KEYS_MAX, ClusterConfig, RaftSettings
from actors.requests import REQUEST_FIELDS_MAX
from actors.transport import ActorTransport, Calls
from metaray.join import ask_head
from state_machines import op, packing
from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.restore import RestoreMetadata
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.subscription import PutSubscriptions, TopicFilter
from state_machines.raft import TERM_MAX
from state_machines.raft.messages import (
    Append,
    Configuration,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    SnapshotMeta,
)
from state_machines.wire import api_pb2 as api
from state_machines.wire import bounds, codec
from storage import records
from storage.disk import TABLES
from tests.actors.scripted import Script
from tests.actors.virtual_time import in_virtual_time
from tests.bad_input import area_cli, area_config, area_requests, area_snapshot
from tests.bad_input.area_codec import bombs
from tests.bad_input.battery import Outcome
from tests.bad_input.replica import ROLES, TERM, VOTERS, heard
from tests.bad_input.values import delimited
from tests.wire.test_codec import A, B, envelope


@pytest.mark.parametrize(("what", "data"), bombs(), ids=[what for what, _ in bombs()])
def test_an_envelope_of_many_small_parts_is_refused_before_it_is_made(
    what: str, data: bytes
) -> None:
    """16 MiB of empty messages were 512 MiB once decoded."""
    with pytest.raises(codec.WireError):
        codec.decode_envelope(data)


def test_the_largest_honest_frames_are_let_through() -> None:
    entries = tuple([Entry(1, index, bytes(40)) for index in range(1, 20_001)])
    append = Append(1, 2, 1, prev_index=0, prev_term=0, commit=0, entries=entries)
    data = codec.encode_envelope(
        cluster="c", group="g-0", sender=1, seat="g-0/1", messages=[append]
    )
    assert codec.decode_envelope(data).messages == (append,)
    commands = [api.Command(tag="metadata.kv.put", body=bytes(40))] * BATCH_ITEMS_MAX
    proposal = api.Proposal(client=1, sequence=2, acked=1, commands=commands)
    request = api.ProposeRequest(group="metadata-0", timeout_ms=1, proposal=proposal)
    assert len(request.SerializeToString()) > bounds.SMALL_BYTES
    assert not bounds.too_many_fields(request.SerializeToString(), {2: {}}, REQUEST_FIELDS_MAX)


def test_fields_are_counted_where_they_make_something() -> None:
    small = bounds.SMALL_BYTES // 2
    many = b"\x22\x00" * (small + 1)
    assert bounds.too_many_fields(many, {}, small)
    assert not bounds.too_many_fields(many, {}, small + 1)
    assert not bounds.too_many_fields(delimited(2, many), {}, 1)
    assert bounds.too_many_fields(delimited(2, many), {2: {}}, small)
    assert bounds.too_many_fields(delimited(2, many), {2: None}, small)
    assert bounds.too_many_fields(b"\x3b\x3c" * small + b"\x00", {}, 10 * small), "groups"
    assert not bounds.too_many_fields(many[:-1] + b"\x22\xff", {}, small + 1), "cut short"


BODIES = [each for each in area_requests.bombs() if each[0] != "wide texts"]  # those are let in


@pytest.mark.parametrize("data", [data for _, data in BODIES], ids=[what for what, _ in BODIES])
def test_a_body_of_many_small_values_is_refused_before_they_are_made(data: bytes) -> None:
    """4 MiB of short texts were 86 MiB as objects."""
    with pytest.raises(Invalid, match=r"body: .* limit"):
        packing.load(data)


def test_the_largest_honest_batch_is_let_through() -> None:
    filters = tuple([TopicFilter(filter=f"t/{number}") for number in range(BATCH_ITEMS_MAX)])
    batch = PutSubscriptions(client_id="c", epoch=1, filters=filters)
    assert packing.unpack(PutSubscriptions, packing.pack(batch)) == batch


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("metadata: {raft: {tick: 2001-99-99}}", "not YAML"),  # was ValueError: month
        ("a: !!bool x", "not YAML"),  # was KeyError
        (f"metadata: {{replicas: {'9' * 5_000}}}", "not YAML"),  # was ValueError: 4300 digits
        (f"metadata: {{replicas: 0x{'f' * 5_000}}}", "replicas must be between 1 and 7"),
        (f"metadata: {{raft: {{tick: '{'9' * 5_000}'}}}}", "tick must be a whole number"),
        ("[" * 10_000, "nested deeper than 32"),  # took minutes
        (area_config.BOMB.decode(), "must"),  # nine kilobytes were gigabytes of text
        (area_config.MERGES.decode(), f"more than {KEYS_MAX} keys"),  # a level more: all memory
        ("a" * (FILE_BYTES_MAX + 1), f"larger than {FILE_BYTES_MAX} bytes"),
        ("metadata: {groups: [metadata-0, metadata-1\u0660]}", "is none of"),  # looks like 10
    ],
)
def test_a_file_that_broke_its_reader_is_refused_in_one_line(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(Invalid) as caught:
        ClusterConfig.load(path)
    assert says in caught.value.detail
    assert caught.value.detail.isprintable()
    assert len(caught.value.detail) < 1_000


def test_a_number_too_long_to_write_out_is_refused_like_any_other() -> None:
    with pytest.raises(Invalid, match="tick_ms must be between 5 and 1000, not a number"):
        RaftSettings(tick_ms=10**5_000)
    with pytest.raises(Invalid, match="replicas must be between 1 and 7"):
        ClusterConfig(replicas=10**5_000)


def test_a_term_makes_no_leap() -> None:
    for role in ROLES:
        for message in (HeartbeatReply(2, 1, 2**62), Heartbeat(2, 1, 2**62 - 1, 0)):
            assert heard(role, replace(message, receiver=ROLES[role]().core.id)).core.term < 10


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (SnapshotMeta(30, TERM + 1, VOTERS), "term 4 came in term 3"),  # could never start again
        (SnapshotMeta(2**64 - 1, 1, VOTERS), "meta.index"),  # the next index had no bytes
        (SnapshotMeta(30, 0, VOTERS), "term 0"),
        (SnapshotMeta(30, TERM, Configuration((2, 1, 1))), "voters"),
        (SnapshotMeta(30, TERM, Configuration((1, 2), (), (2,))), "learners"),
    ],
)
def test_a_snapshot_of_a_point_that_no_log_has_is_refused(
    meta: SnapshotMeta, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = area_snapshot.header(records.meta_to(meta)) + area_snapshot.end(0)
    assert area_snapshot.stream(data, 100, 0) is Outcome.REFUSED
    assert says in caplog.text


@pytest.mark.parametrize("name", [b"kv\0", b"\0", b"a\nb", b"kv\xff"])
def test_two_names_of_tables_are_never_one_table(name: bytes) -> None:
    """LMDB ends a name at a NUL: rows of `kv` and of `kv\\0` were in one table."""
    rows = area_snapshot.table(b"kv") + area_snapshot.row(b"k")
    rows += area_snapshot.table(name) + area_snapshot.row(b"l")
    data = area_snapshot.HEAD + rows + area_snapshot.end(2)
    assert area_snapshot.stream(data, 60_000, 2, disk=True) is Outcome.REFUSED


def test_more_tables_than_an_environment_has_are_a_bad_snapshot_and_not_a_bad_disk() -> None:
    rows = [area_snapshot.table(b"t%03d" % n) + area_snapshot.row(b"k") for n in range(TABLES)]
    for count, outcome in ((TABLES - 1, Outcome.TAKEN), (TABLES, Outcome.REFUSED)):
        data = area_snapshot.HEAD + b"".join(rows[:count]) + area_snapshot.end(count)
        assert area_snapshot.stream(data, 60_000, count, disk=True) is outcome


@in_virtual_time
async def test_a_peer_does_not_ask_for_a_snapshot_to_be_installed() -> None:
    """Only the shell asks that. In an envelope it stopped a replica, which had no stream."""
    heard: list[Message] = []
    transport = ActorTransport(
        cluster="a cluster",
        group="mqtt-0",
        replica=7,
        seat="mqtt-0/0",
        seats=("mqtt-0/0", "mqtt-0/1"),
        calls=cast(Calls, None),
        received=heard.extend,
        died=lambda peer: None,
    )
    question = InstallSnapshot(A, B, 6, SnapshotMeta(12, 4, VOTERS))
    with pytest.raises(Invalid, match="install_snapshot"):
        await transport.deliver(envelope(HeartbeatReply(A, B, 6), question))
    assert heard == []


@pytest.mark.parametrize("command", ["kv ls", "offsets", "sessions"])
def test_a_name_with_a_newline_is_no_row_of_its_own(command: str) -> None:
    assert area_cli.rows(command) is Outcome.TAKEN


def test_a_port_beyond_the_last_is_no_address() -> None:
    """gRPC takes 99999 for 34463."""
    for address in ("127.0.0.1:65536", "127.0.0.1:99999", "a\x1bb:1"):
        with pytest.raises(Invalid, match="is not HOST:PORT"):
            ask_head(address)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_ms": 10**400},  # was OverflowError
        {"timeout_ms": -1},
        {"timeout_ms": 2**31},
        {"min_revision": -1},  # was ValueError, and a log of a task that failed
        {"min_revision": 2**64},
        {"group": "\ud800"},  # was UnicodeEncodeError, after the whole deadline
        {"group": "a\nmetadata-0: stopped"},
        {"stale": "yes"},
    ],
)
@in_virtual_time
async def test_an_option_of_a_call_is_refused_before_anything_is_sent(
    options: dict[str, Any],
) -> None:
    script = Script()
    caller = Caller(script, rng=Random(1))
    for operation in (GetKv(key="k"), PutKv(key="k", value=b"")):
        with pytest.raises(Invalid, match=f"^{next(iter(options))}: "):
            await caller.call(operation, **options)
    with pytest.raises(Invalid, match=r"^from_revision: "):
        await caller.watch("metadata-0", ("metadata.kv",), -1)
    with pytest.raises(Invalid, match=r"^tables: "):
        await caller.watch("metadata-0", ("\ud800",), 1)
    assert script.calls == []
    await caller.close()


def test_no_command_takes_the_last_of_the_epochs() -> None:
    """The highest epoch there is would fence every controller to come, for ever."""
    with pytest.raises(Invalid, match=r"controller_epoch: .* range"):
        op.validate(Pulse(controller_epoch=2**63 - 1))
    op.validate(Pulse(controller_epoch=TERM_MAX))


@pytest.mark.parametrize("value", [None, 1, "a", [b"a"], bytearray(b"a")])
def test_a_frame_is_bytes(value: Any) -> None:
    """Ray carries anything, and a TypeError is no answer to a peer."""
    with pytest.raises(Invalid, match="bytes are wanted"):
        codec.decode_envelope(value)
    assert area_snapshot.deliver([value]) is Outcome.REFUSED


def test_a_row_that_cannot_be_read_is_named_with_its_field() -> None:
    """Only its table was."""
    with pytest.raises(Invalid, match=r"^rows of metadata\.kv: "):
        op.validate(RestoreMetadata(table="metadata.kv", rows=(b"",), replace=False))
