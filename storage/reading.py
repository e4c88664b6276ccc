"""The state at one moment with what is only in memory, for one query on another thread.

A `StateView` is what a snapshot or an export reads: durable, so it begins with a flush. A query
cannot wait for one. A `Reading` lies over the layers as they are: each is *shared*, and whoever
writes to a shared layer first takes a copy of his own (`State.put`), so the rows here stay as they
were while applies go on. Taking one costs no more than the order of keys that a scan wants anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from state_machines.keyvalue import Part
from storage import keys
from storage.engine import View, unseal
from storage.layer import ABSENT, Below, Layer, merge
from storage.state_view import stored_rows


class Reading:
    """`state_machines.keyvalue.KeyValue`, without its writes. Close it soon, on any thread."""

    def __init__(self, layers: Sequence[dict[str, Layer]], view: View, path: str) -> None:
        self._layers = layers  # the newest first
        self._view = view
        self._path = path

    def get(self, table: str, key: tuple[Part, ...]) -> bytes | None:
        """See `KeyValue`. Raises `CorruptRecord`, or `ViewLost` if the environment grew."""
        encoded = keys.encode(key)
        for layers in self._layers:
            layer = layers.get(table)
            if layer is not None:
                found: bytes | None = layer.rows.get(encoded, ABSENT)
                if found is not ABSENT:
                    return found
        stored = self._view.get(table, encoded)
        return None if stored is None else unseal(self._path, table, encoded, stored)

    def scan(
        self,
        table: str,
        prefix: tuple[Part, ...] = (),
        *,
        starts: str = "",
        after: bytes = b"",
        upto: int | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `KeyValue`. Raises as `get` does."""
        first, end = keys.bounds(prefix, starts, after, upto)
        below: Below = partial(stored_rows, self._view, self._path, table)
        for layers in reversed(self._layers):
            layer = layers.get(table)
            if layer is not None:
                below = partial(merge, layer, below)
        return below(first, end)

    def put(self, table: str, key: tuple[Part, ...], value: bytes) -> None:
        """A query writes nothing."""
        raise AssertionError(f"a query wrote to {table}")

    def get_many(self, table: str, keys: tuple[tuple[Part, ...], ...]) -> list[bytes | None]:
        """See `KeyValue`. Raises as `get` does."""
        return [self.get(table, each) for each in keys]

    def put_many(
        self,
        table: str,
        keys: tuple[tuple[Part, ...], ...],
        values: Sequence[bytes],
        grown: int | None = None,
    ) -> None:
        """A query writes nothing."""
        raise AssertionError(f"a query wrote to {table}")

    def delete(self, table: str, key: tuple[Part, ...]) -> None:
        """A query writes nothing."""
        raise AssertionError(f"a query deleted from {table}")

    def close(self) -> None:
        """Let go of the moment."""
        self._view.close()
