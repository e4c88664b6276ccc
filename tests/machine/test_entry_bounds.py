"""What one entry may change: it is applied as a whole, so what comes behind too much is refused."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines import machine, op
from state_machines.errors import QuotaExceeded
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.kv_batch import KvItem, PutAllKv
from state_machines.metadata.topic import CreateTopicConfigs, GetTopicConfig, NewTopic
from tests.machine.alone import Group
from tests.machine.test_runs import carried_out, wire

FULL = f"QUOTA_EXCEEDED {op.ENTRY_FULL}"


def items(*keys: str) -> PutAllKv:
    return PutAllKv(items=tuple([KvItem(key=key, value=b"v") for key in keys]))


def topic(name: str) -> Any:
    return CreateTopicConfigs(items=(NewTopic(name=name, protocol="kafka"),))


def test_commands_behind_too_many_rows_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ENTRY_ROWS_MAX", 3)
    group = Group("metadata")
    found = group.together(items("a", "b"), items("c", "d"), items("e"), PutKv(key="f", value=b"v"))
    assert [type(each) for each in found[2:]] == [QuotaExceeded] * 2
    assert [each.detail for each in found[2:]] == [op.ENTRY_FULL] * 2
    assert [group.ask(GetKv(key=key)) is not None for key in "abcdef"] == [True] * 4 + [False] * 2
    assert group.run(items("e"))[0].ok, "in an entry of its own"


def test_commands_behind_too_many_bytes_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group("metadata")
    group.run(topic("first"))
    size = max(map(len, group.store.dump()["metadata.topic"].values()))
    monkeypatch.setattr(machine, "ENTRY_BYTES_MAX", size)
    found = group.together(topic("a"), topic("b"), topic("c"))
    assert isinstance(found[-1], QuotaExceeded)
    assert found[0][0].ok
    assert group.ask(GetTopicConfig(name="c")) is None
    assert group.run(topic("c"))[0].ok


def test_a_run_behind_too_much_is_asked_for_again_and_reads_are_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in another proposal of the entry, which another client may have sent."""
    monkeypatch.setattr(machine, "ENTRY_ROWS_MAX", 1)
    group = Group("metadata")
    group.run(items("other"))
    puts = [PutKv(key=key, value=b"v") for key in "xyz"]
    first, second = group.proposal(items("a", "b")), group.proposal()
    second.acked = 0
    second.commands.append(wire(puts))
    _, reply = group.entry(first, second)
    (result,) = reply.results
    assert [(each.place, each.detail) for each in result.refusals] == [
        (place, op.ENTRY_FULL) for place in range(3)
    ]
    assert group.ask(GetKv(key="a")) is not None
    assert group.ask(GetKv(key="x")) is None
    assert FULL not in carried_out(group, puts)
