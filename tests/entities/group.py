"""A group as the tests of one entity speak to it: what is refused, and that nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from state_machines import op
from state_machines.errors import Invalid, MetarayError
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.machine import alone

BOOKS: Final = frozenset(
    {
        *("group.client", "group.client_seen", "group.client_count"),
        *("group.clock", "group.reply"),
    }
)
"""The tables that every entry writes: the clock, and what is kept of clients."""

Dump = dict[str, dict[bytes, bytes]]


def rows_but_books(store: MemoryKeyValue) -> Dump:
    """Every row of the entities, and of what groups have besides."""
    return {name: rows for name, rows in store.dump().items() if name not in BOOKS}


class Group(alone.Group):
    """One replica's machine and a client of it."""

    def later(self, seconds: int) -> None:
        """Time passes."""
        self.now_ms += seconds * 1_000

    def rows(self, table: str) -> int:
        """How many rows a table has."""
        return len(self.store.dump().get(table, {}))

    @contextmanager
    def refuses(self, error: type[MetarayError], says: str | None = None) -> Iterator[None]:
        """What is done inside is refused in these words, and nothing changes."""
        before = rows_but_books(self.store)
        with pytest.raises(error, match=says):
            yield
        assert rows_but_books(self.store) == before

    def beyond(self, operation: Any, field: str) -> None:
        """A limit is passed: client, leader and replica each say so, naming it; nothing changes."""
        before, rows = self.store.dump(), rows_but_books(self.store)
        with pytest.raises(Invalid, match=f"^{field}: "):
            op.validate(operation)
        if op.is_query(type(operation)):
            reply = self.machine.query([alone.wire(operation)], self.now_ms)
        else:
            proposal = self.proposal(operation)
            with pytest.raises(Invalid, match=f"^{field}: "):
                self.machine.admit(proposal)
            assert self.store.dump() == before, "admission touches nothing"
            (reply,) = self.entry(proposal)  # as if a leader with other limits had let it in
        assert [each.code for each in reply.results] == [api.INVALID]
        assert reply.results[0].detail.startswith(f"{field}: ")
        assert rows_but_books(self.store) == rows
