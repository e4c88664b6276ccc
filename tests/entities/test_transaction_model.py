"""Any history of transactions is that of a dict: what they answer, and what is there afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines import op
from state_machines.metadata.kv import KV, DeleteKv, GetKv, KvEntry, PutKv, RangeKv
from state_machines.transaction import (
    ABSENT,
    EQUAL,
    EXISTS,
    GREATER,
    LESS,
    NOT_EQUAL,
    Compare,
    Transaction,
)
from state_machines.wire import api_pb2 as api
from tests.entities.group import Group


def revision_is(key: str, relation: str, revision: int) -> Compare:
    return Compare.revision_is(KV, "default", key, relation=relation, revision=revision)


KEYS = ("a", "b", "c")

steps = st.lists(
    st.one_of(
        st.builds(
            PutKv,
            key=st.sampled_from(KEYS),
            value=st.binary(max_size=2),
            expected_revision=st.none() | st.integers(0, 12),
        ),
        st.builds(
            DeleteKv, key=st.sampled_from(KEYS), expected_revision=st.none() | st.integers(0, 12)
        ),
        st.builds(GetKv, key=st.sampled_from(KEYS)),
    ),
    max_size=4,
)
compares = st.lists(
    st.one_of(
        st.builds(
            revision_is,
            st.sampled_from(KEYS),
            st.sampled_from((EQUAL, NOT_EQUAL, LESS, GREATER)),
            st.integers(0, 12),
        ),
        st.sampled_from(KEYS).map(lambda key: Compare.exists(KV, "default", key)),
        st.sampled_from(KEYS).map(lambda key: Compare.absent(KV, "default", key)),
    ),
    max_size=2,
)


class Model:
    """What keys hold, in a dict; `floors` as far as one entry can see."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[bytes, int]] = {}

    def holds(self, compare: Compare) -> bool:
        (_, key) = msgpack.unpackb(compare.key)
        revision = self.rows[key][1] if key in self.rows else 0
        return {
            EXISTS: key in self.rows,
            ABSENT: key not in self.rows,
            EQUAL: revision == compare.revision,
            NOT_EQUAL: revision != compare.revision,
            LESS: revision < compare.revision,
            GREATER: revision > compare.revision,
        }[compare.relation]

    def run(self, index: int, steps: Sequence[Any]) -> tuple[Any, ...] | str:
        """The replies, or the step that is refused."""
        rows, floors, replies = dict(self.rows), dict[str, int](), list[Any]()
        for place, step in enumerate(steps):
            _, revision = rows.get(step.key, (b"", 0))
            expected = getattr(step, "expected_revision", None)
            if expected is not None and expected != revision:
                return f"[{place}]: expected_revision"
            match step:
                case PutKv():
                    new = max(index, max(revision, floors.get(step.key, 0)) + 1)
                    rows[step.key] = (step.value, new)
                    replies.append(new)
                case DeleteKv():
                    if step.key not in rows:
                        return f"[{place}]: key"
                    floors[step.key] = revision
                    del rows[step.key]
                    replies.append(None)
                case GetKv():
                    there = step.key in rows
                    replies.append(KvEntry(step.key, *rows[step.key]) if there else None)
        self.rows = rows
        return tuple(replies)


@given(st.lists(st.tuples(compares, steps, steps, st.booleans()), max_size=8))
@settings(max_examples=150)
def test_any_history_of_transactions_is_that_of_a_dict(
    history: list[tuple[list[Compare], list[Any], list[Any], bool]],
) -> None:
    group, model = Group("metadata"), Model()
    for compare, then, otherwise, again in history:
        if not (compare or then or otherwise):
            continue
        made = Transaction.of(compare=compare, then=then, otherwise=otherwise)
        proposal = group.proposal(made)
        (reply,) = group.entry(proposal)
        succeeded = all(map(model.holds, compare))
        expected = model.run(group.index, then if succeeded else otherwise)
        result = reply.results[0]
        if isinstance(expected, str):
            branch = "then" if succeeded else "otherwise"
            assert result.code != api.OK
            assert result.detail.startswith(branch + expected)
        else:
            assert result.code == api.OK, result.detail
            done = made.answers(op.decode_reply(made, result.body))
            assert (done.succeeded, done.replies) == (succeeded, expected)
        if again:
            assert group.entry(proposal) == [reply]
        page = group.ask(RangeKv())
        assert {each.key: (each.value, each.revision) for each in page.entries} == model.rows
