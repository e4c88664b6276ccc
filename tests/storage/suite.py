"""What every engine promises. `test_memory.py` and `test_disk.py` each run all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from storage.engine import (
    ENGINE_KEY_BYTES,
    ENGINE_VALUE_BYTES,
    Engine,
    sealed_slice,
    unseal,
)
from storage.errors import BadKey, MapFull, ViewLost

Reopen = Callable[[Engine], Engine]


class EngineContract:
    """Subclasses give the fixtures `engine`, `reopen` and `small` (an engine that fills soon)."""

    def test_nothing_is_found_where_nothing_was_written(self, engine: Engine) -> None:
        assert engine.get("t", b"k") is None
        assert list(engine.scan("t")) == []
        assert list(engine.scan("t", reverse=True)) == []
        assert engine.tables() == ()
        with engine.view() as view:
            assert view.get("t", b"k") is None
            assert list(view.scan("t")) == []
            assert view.tables() == ()

    def test_what_was_written_is_read(self, engine: Engine) -> None:
        engine.write([("t", b"a", b"1"), ("u", b"a", b"2"), ("t", b"b", b"")])
        assert engine.get("t", b"a") == b"1"
        assert engine.get("u", b"a") == b"2"
        assert engine.get("t", b"b") == b""
        assert engine.get("t", b"c") is None
        assert engine.get("t", b"") is None
        assert engine.tables() == ("t", "u")

    def test_many_keys_are_read_as_each_is(self, engine: Engine) -> None:
        assert engine.find("t", [b"a", b"b"]) == {}
        engine.write([("t", b"a", b"1"), ("t", b"b", b""), ("u", b"c", b"3")])
        asked = [b"c", b"b", b"a", b"b", b"zz"]
        assert engine.find("t", asked) == {b"a": b"1", b"b": b""}
        assert engine.find("t", []) == {}
        engine.write([("t", b"zz", b"4"), ("t", b"a", None)])
        assert engine.find("t", asked) == {b"b": b"", b"zz": b"4"}

    def test_values_are_plain_bytes(self, engine: Engine) -> None:
        engine.write([("t", b"a", b"1")])
        assert type(engine.get("t", b"a")) is bytes
        assert [(type(k), type(v)) for k, v in engine.scan("t")] == [(bytes, bytes)]

    def test_overwrite_and_delete(self, engine: Engine) -> None:
        engine.write([("t", b"a", b"1"), ("t", b"b", b"2")])
        engine.write([("t", b"a", b"3"), ("t", b"b", None), ("t", b"none", None)])
        assert list(engine.scan("t")) == [(b"a", b"3")]

    def test_the_later_of_two_changes_holds(self, engine: Engine) -> None:
        engine.write([("t", b"a", b"1"), ("t", b"a", None), ("t", b"b", None), ("t", b"b", b"2")])
        assert list(engine.scan("t")) == [(b"b", b"2")]

    def test_a_delete_alone_makes_no_table(self, engine: Engine) -> None:
        engine.write([("t", b"a", None)])
        assert engine.tables() == ()

    def test_an_empty_write_is_fine(self, engine: Engine) -> None:
        engine.write([])
        assert engine.tables() == ()

    @pytest.mark.parametrize("size", [0, ENGINE_KEY_BYTES + 1, 600, 65_535])
    def test_a_key_out_of_limits_is_refused_and_nothing_is_written(
        self, engine: Engine, size: int
    ) -> None:
        with pytest.raises(BadKey, match=str(size)):
            engine.write([("t", b"a", b"1"), ("t", b"k" * size, b"2")])
        assert engine.get("t", b"a") is None
        engine.write([("t", b"a", b"3")])
        assert list(engine.scan("t")) == [(b"a", b"3")]

    def test_the_longest_key_is_taken(self, engine: Engine) -> None:
        key = b"\xff" * ENGINE_KEY_BYTES
        engine.write([("t", key, b"1")])
        assert engine.get("t", key) == b"1"
        assert list(engine.scan("t", b"a")) == [(key, b"1")]

    def test_a_value_out_of_limits_is_refused(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="at most"):
            engine.write([("t", b"a", bytes(ENGINE_VALUE_BYTES + 1))])
        assert engine.get("t", b"a") is None

    def test_a_large_value_is_taken(self, engine: Engine) -> None:
        value = bytes(range(256)) * (4 << 12)
        engine.write([("t", b"a", value)])
        assert engine.get("t", b"a") == value
        assert list(engine.scan("t")) == [(b"a", value)]

    def test_scan_bounds(self, engine: Engine) -> None:
        engine.write(("t", bytes((n,)), b"%d" % n) for n in range(1, 10))

        def found(
            start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
        ) -> list[int]:
            return [key[0] for key, _ in engine.scan("t", start, end, reverse)]

        assert found() == list(range(1, 10))
        assert found(b"\x03") == list(range(3, 10))
        assert found(b"\x03", b"\x06") == [3, 4, 5]
        assert found(b"\x03\x00", b"\x06\x00") == [4, 5, 6]
        assert found(b"\x06", b"\x03") == []
        assert found(b"\x06", b"\x06") == []
        assert found(b"", b"") == []
        assert found(b"\x0a") == []
        assert found(reverse=True) == list(range(9, 0, -1))
        assert found(b"\x03", b"\x06", reverse=True) == [5, 4, 3]
        assert found(b"\x03", b"\xff", reverse=True) == list(range(9, 2, -1))
        assert found(b"", b"\x01", reverse=True) == []
        assert found(b"", b"", reverse=True) == []
        assert found(b"\x0a", reverse=True) == []
        assert found(b"k" * 2000) == []
        assert found(b"", b"k" * 2000) == list(range(1, 10))
        assert found(b"", b"k" * 2000, reverse=True) == list(range(9, 0, -1))

    def test_scan_of_many_rows_is_whole_both_ways(self, engine: Engine) -> None:
        rows = [(b"%05d" % n, b"v%d" % n) for n in range(3000)]
        engine.write(("t", key, value) for key, value in rows)
        assert list(engine.scan("t")) == rows
        assert list(engine.scan("t", reverse=True)) == rows[::-1]
        assert list(engine.scan("t", b"00017", b"01400")) == rows[17:1400]
        assert list(engine.scan("t", b"00017", b"01400", reverse=True)) == rows[1399:16:-1]

    @pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 80])
    def test_a_scan_goes_on_at_the_very_next_key(self, engine: Engine, rows: int) -> None:
        """Wherever a batch of it ends: behind a key comes the same with a zero byte more."""
        ends = [b"m", b"m\0", b"m\0\0", b"m\0\1", b"m\1", b"n"]
        keys = [b"a%03d" % number for number in range(rows)] + ends
        engine.write([("t", each, b"") for each in keys])
        assert [key for key, _ in engine.scan("t")] == keys
        more = ends + [b"z%03d" % number for number in range(rows)]
        engine.write([("u", each, b"") for each in more])
        assert [key for key, _ in engine.scan("u", reverse=True)] == more[::-1]

    def test_runs_are_written_beside_a_thread_that_reads(self, engine: Engine) -> None:
        engine.write([("t", b"%03d" % n, b"old") for n in range(0, 200, 2)])
        assert engine.get("t", b"000") == b"old"  # whoever reads has begun to
        rows: dict[bytes, bytes | None] = {b"%03d" % n: b"new" for n in range(1, 200, 2)}
        rows |= {b"000": None, b"002": b"changed", b"none": None}
        slices = [
            sealed_slice("t", list(rows), rows),
            sealed_slice("fresh", [b"k"], {b"k": b"1"}),
            sealed_slice("fresh", [b"j"], {b"j": b"2"}),
            sealed_slice("never", [b"k"], {b"k": None}),
        ]
        engine.make_room(sum(run.rows for run in slices), sum(run.size for run in slices))
        thread = threading.Thread(target=engine.write_slices, args=(slices,))
        thread.start()
        while thread.is_alive():
            assert engine.get("t", b"004") == b"old"
            assert engine.get("t", b"000") in (b"old", None)
            assert sum(1 for _ in engine.scan("t")) in (100, 199)
        engine.renew()
        assert engine.tables() == ("fresh", "t")
        assert [key for key, _ in engine.scan("fresh")] == [b"j", b"k"]
        found = {
            key: unseal("", "t", key, value) for key, value in engine.scan("t", b"002", b"004")
        }
        assert found == {b"002": b"changed", b"003": b"new"}
        assert engine.get("t", b"000") is None
        engine.write([("fresh", b"k", None)])
        assert engine.stats().records == 199 + 1

    def test_runs_that_do_not_fit_change_nothing(self, small: Engine) -> None:
        rows: dict[bytes, bytes | None] = {b"%03d" % n: bytes(10_000) for n in range(100)}
        run = sealed_slice("t", list(rows), rows)
        small.make_room(run.rows, run.size)
        with pytest.raises(MapFull, match="nothing was written"):
            small.write_slices([run])
        small.renew()
        assert small.tables() == ()

    def test_a_scan_sees_one_moment(self, engine: Engine) -> None:
        rows = [(b"%05d" % n, b"old") for n in range(1000)]
        engine.write(("t", key, value) for key, value in rows)
        scan = engine.scan("t")
        seen = [next(scan)]
        engine.write(("t", key, b"new") for key, _ in rows)
        assert seen + list(scan) == rows

    def test_an_abandoned_scan_holds_nothing(self, engine: Engine) -> None:
        engine.write(("t", b"%05d" % n, b"x") for n in range(1000))
        scan = engine.scan("t")
        next(scan)
        del scan
        assert engine.stats().views == 0

    def test_a_view_sees_one_moment(self, engine: Engine) -> None:
        engine.write([("t", b"a", b"1"), ("t", b"b", b"2")])
        with engine.view() as view:
            engine.write([("t", b"a", b"3"), ("t", b"b", None), ("u", b"a", b"4")])
            assert view.get("t", b"a") == b"1"
            assert list(view.scan("t")) == [(b"a", b"1"), (b"b", b"2")]
            assert view.get("u", b"a") is None
            assert list(view.scan("u")) == []
            assert (view.records("t"), view.records("u")) == (2, 0)
            assert view.count_of("t", [b"a", b"b", b"c"]) == 2
            assert view.count_of("u", [b"a"]) == 0
            assert view.tables() == ("t",)
        assert engine.get("t", b"a") == b"3"
        assert engine.tables() == ("t", "u")

    def test_a_view_is_read_on_another_thread(self, engine: Engine) -> None:
        engine.write(("t", b"%05d" % n, b"x") for n in range(2000))
        view = engine.view()
        counts: list[int] = []

        def read() -> None:
            counts.append(sum(1 for _ in view.scan("t")))
            view.close()

        thread = threading.Thread(target=read)
        thread.start()
        for n in range(20):
            engine.write([("t", b"%05d" % n, None)])
        thread.join(30)
        assert counts == [2000]
        assert engine.stats().views == 0

    def test_a_closed_view_says_so(self, engine: Engine) -> None:
        engine.write([("t", b"a", b"1")])
        view = engine.view()
        scan = view.scan("t")
        view.close()
        view.close()
        for use in (
            lambda: view.get("t", b"a"),
            lambda: next(scan),
            lambda: list(view.scan("t")),
            view.tables,
        ):
            with pytest.raises(ViewLost):
                use()

    def test_closing_the_engine_takes_its_views_away(self, engine: Engine) -> None:
        engine.write([("t", b"a", b"1")])
        view = engine.view()
        engine.close()
        engine.close()
        with pytest.raises(ViewLost):
            view.get("t", b"a")
        view.close()

    def test_stats(self, engine: Engine) -> None:
        engine.write([("t", b"a", b"1"), ("u", b"a", b"2")])
        with engine.view():
            stats = engine.stats()
        assert (stats.records, stats.views, stats.path) == (2, 1, engine.path)
        assert 0 < stats.used_bytes <= stats.map_bytes <= stats.limit_bytes

    def test_full_drops_the_whole_write_and_keeps_the_rest(self, small: Engine) -> None:
        def fill() -> None:
            for n in range(10_000):
                small.write([("t", b"%05d" % n, bytes(10_000)), ("last", b"n", b"%d" % n)])

        with pytest.raises(MapFull, match="nothing was written"):
            fill()
        written = sum(1 for _ in small.scan("t"))
        assert written > 3
        # The write that failed left nothing: neither its row nor its other table's.
        assert small.get("last", b"n") == b"%d" % (written - 1)
        assert [key for key, _ in small.scan("t")] == [b"%05d" % n for n in range(written)]
        # And the engine is not spoilt: room made is room found, once LMDB has no use for the old
        # pages (two commits later).
        small.write(("t", b"%05d" % n, None) for n in range(written))
        small.write([("last", b"n", b"again")])
        small.write([("t", b"again", bytes(10_000))])
        assert [key for key, _ in small.scan("t")] == [b"again"]

    def test_agrees_with_a_dict(self, engine: Engine, reopen: Reopen) -> None:
        rng = Random(11)
        tables = ["a", "b", "c"]
        model: dict[str, dict[bytes, bytes]] = {name: {} for name in tables}
        for _ in range(60):
            changes = []
            for _ in range(rng.randrange(40)):
                table, key = rng.choice(tables), rng.randbytes(rng.randrange(1, 4))
                value = None if rng.random() < 0.3 else rng.randbytes(rng.randrange(50))
                changes.append((table, key, value))
                if value is None:
                    model[table].pop(key, None)
                else:
                    model[table][key] = value
            engine.write(changes)
            if rng.random() < 0.2:
                engine = reopen(engine)
            table = rng.choice(tables)
            start, end = rng.randbytes(2), rng.choice([None, rng.randbytes(2)])
            expected = [
                (key, value)
                for key, value in sorted(model[table].items())
                if key >= start and (end is None or key < end)
            ]
            assert list(engine.scan(table, start, end)) == expected
            assert list(engine.scan(table, start, end, reverse=True)) == expected[::-1]
            for key in list(model[table])[:20]:
                assert engine.get(table, key) == model[table][key]
        assert engine.stats().records == sum(len(rows) for rows in model.values())
        engine.close()
