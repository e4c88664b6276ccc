"""What holds for every command and query, asked of all that are registered."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import typing
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state_machines import op, packing, slots
from state_machines.errors import Invalid, Rejected
from state_machines.machine import Machine
from state_machines.raft.messages import Entry
from state_machines.tables import TABLES
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.machine import operations, replay
from tests.machine.alone import Group, wire
from tests.machine.plausible import history

ROOT = Path(__file__).parents[2]
ALL = {**op.COMMANDS, **op.QUERIES}

each_operation = pytest.mark.parametrize("tag", sorted(ALL))
each_kind = pytest.mark.parametrize("kind", operations.KINDS)
relaxed = settings(suppress_health_check=[HealthCheck.too_slow])


@each_operation
@given(data=st.data())
@settings(max_examples=20)
def test_it_comes_back_from_its_bytes_and_gives_the_same_bytes_twice(
    tag: str, data: st.DataObject
) -> None:
    operation = data.draw(operations.instances(ALL[tag]))
    body = op.encode(operation)
    assert body == packing.pack(operation)
    packing.check(operation)
    again = packing.unpack(ALL[tag], body)
    assert again == operation
    assert op.encode(again) == body


@each_operation
def test_its_reply_has_a_type_that_a_client_can_decode(tag: str) -> None:
    cls: Any = ALL[tag]
    packing.decoder(op.reply_type(cls))


@each_operation
def test_it_says_what_it_is(tag: str) -> None:
    cls: Any = ALL[tag]
    method = cls.read if op.is_query(cls) else cls.apply
    for documented in (cls, method):
        assert documented.__doc__, f"{tag}: {documented.__name__} has no docstring"
    assert op.kind(cls) in ("", *operations.KINDS)
    for each in dataclasses.fields(cls):
        assert each.default_factory is dataclasses.MISSING, f"{tag}.{each.name}"


@each_operation
def test_it_has_one_way_to_its_group(tag: str) -> None:
    cls = ALL[tag]
    many = hasattr(cls, "slot_keys")
    assert many == hasattr(cls, "select"), tag
    assert not (many and hasattr(cls, "slot_key")), tag
    if many:
        assert hasattr(cls, "join"), tag


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_is_keyed_by_fields_and_its_rows_can_be_read(name: str) -> None:
    table = TABLES[name]
    hints = typing.get_type_hints(table.row)
    assert {hints[each] for each in table.key} <= {int, str, bytes}
    row: Any = table.row
    packing.decoder(row)


@each_kind
@given(data=st.data())
@settings(relaxed, max_examples=60)
def test_no_sequence_of_commands_raises_out_of_apply(kind: str, data: st.DataObject) -> None:
    """Whatever is decoded is applied or refused; admission does not come first here."""
    group = Group(kind)
    made = data.draw(st.lists(operations.commands(kind), min_size=1, max_size=12))
    for each in made:
        (reply,) = group.entry(group.proposal(each))
        assert reply.code == api.OK
        assert len(reply.results) == 1


@each_kind
@given(data=st.data())
@settings(relaxed, max_examples=60)
def test_no_query_raises_or_writes(kind: str, data: st.DataObject) -> None:
    group = Group(kind)
    for each in data.draw(st.lists(operations.commands(kind), max_size=4)):
        group.entry(group.proposal(each))
    before = group.store.dump()
    made = data.draw(st.lists(operations.queries(kind), min_size=1, max_size=6))
    reply = group.machine.query([wire(each) for each in made], 5)
    assert len(reply.results) == len(made)
    assert group.store.dump() == before
    for each, result in zip(made, reply.results, strict=True):
        if result.code == api.OK:
            op.decode_reply(each, result.body)


@cache
def lived_in(kind: str) -> dict[str, dict[bytes, bytes]]:
    """The rows of a group that has done something."""
    store = MemoryKeyValue()
    machine = Machine(kind, f"{kind}-0", store)
    for index, batch in enumerate(history(kind, Random(3), 60), 1):
        machine.apply(Entry(1, index, batch.SerializeToString()))
    return store.dump()


@each_kind
@given(data=st.data())
@settings(relaxed, max_examples=60)
def test_what_is_refused_changes_nothing(kind: str, data: st.DataObject) -> None:
    store = MemoryKeyValue()
    restore(store, lived_in(kind))
    group = Group(kind, store)
    command = data.draw(operations.commands(kind))

    def rows() -> dict[str, dict[bytes, bytes]]:
        books = ("group.client", "group.client_seen", "group.reply", "group.clock")
        return {name: kept for name, kept in group.store.dump().items() if name not in books}

    before = rows()
    (reply,) = group.entry(group.proposal(command))
    if reply.results[0].code != api.OK:
        assert rows() == before
        assert reply.results[0].detail


@each_kind
@given(data=st.data())
@settings(relaxed, max_examples=60)
def test_whatever_is_admitted_is_valid_and_whatever_is_not_says_why(
    kind: str, data: st.DataObject
) -> None:
    group = Group(kind)
    command = data.draw(operations.commands(kind))
    try:
        op.validate(command)
    except Invalid:
        with pytest.raises(Invalid, match=r"\w+: .+"):
            group.machine.admit(group.proposal(command))
    else:
        group.machine.admit(group.proposal(command))
        for key in slots.slot_keys(command):
            assert 0 <= slots.slot_of(key) < slots.SLOTS


@each_kind
def test_a_plausible_history_mostly_succeeds(kind: str) -> None:
    """The tests below would prove little over a history of refusals."""
    store = MemoryKeyValue()
    machine = Machine(kind, f"{kind}-0", store)
    codes = []
    used: set[str] = set()  # at some time: what comes and goes may be gone at the end
    for index, batch in enumerate(history(kind, Random(5), 200), 1):
        for each in machine.apply(Entry(1, index, batch.SerializeToString())):
            codes += [result.code for result in api.Reply.FromString(each.reply).results]
        used.update(store.dump())
    assert codes.count(api.OK) > len(codes) * 0.5, codes
    assert {name for name in TABLES if name.startswith(kind)} - used <= {
        "metadata.slots",
        "metadata.kv_floor",
        "metadata.revision_floor",
    }


@each_kind
def test_a_state_that_was_copied_goes_on_the_same(kind: str) -> None:
    """A snapshot is the rows and nothing else: the machine remembers nothing by itself."""
    batches = list(history(kind, Random(8), 120))
    store = MemoryKeyValue()
    machine = Machine(kind, f"{kind}-0", store)
    for index, batch in enumerate(batches, 1):
        entry = Entry(1, index, batch.SerializeToString())
        if index % 40 == 0:
            copy = MemoryKeyValue()
            restore(copy, store.dump())
            other = Machine(kind, f"{kind}-0", copy)
            assert other.apply(entry) == machine.apply(entry)
            assert copy.dump() == store.dump()
            store, machine = copy, other
        else:
            machine.apply(entry)


def restore(store: MemoryKeyValue, dump: dict[str, dict[bytes, bytes]]) -> None:
    """What an installed snapshot does: encoded keys and values as they were."""
    for name, rows in dump.items():
        store.put(name, ("restored",), b"")
        table = store._tables[name]
        table.delete(next(iter(table.rows)))
        for key, value in rows.items():
            table.put(key, value)


def test_the_same_log_gives_the_same_state_in_every_process() -> None:
    """With other hash seeds, locales and time zones."""
    outputs = []
    for seed, locale, zone in (("1", "C", "UTC"), ("4242", "C.UTF-8", "Asia/Tokyo")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "LC_ALL": locale,
            "TZ": zone,
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.machine.replay", "11", "150"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        outputs.append(done.stdout)
    here = "".join(f"{kind} {digest}\n" for kind, digest in sorted(replay.run(11, 150).items()))
    assert outputs == [here, here]


def test_a_refusal_is_one_of_ours() -> None:
    for cls in Rejected.__subclasses__():
        assert cls.code in api.Code.keys()  # noqa: SIM118 - an enum, not a dict
