from __future__ import annotations

import pytest

from state_machines.raft.messages import Configuration, Entry, EntryKind, HardState, SnapshotMeta
from storage import keys, records
from storage.engine import seal
from storage.errors import CorruptLog, CorruptRecord
from storage.log import ENTRIES, META, PURGE_ENTRIES, LoadedLog, RaftLog
from storage.memory import MemoryEngine
from tests.storage.faults import MEMBERS, Crashed, CrashingEngine, Disk, entry, flip, point


def stored(log: RaftLog) -> int:
    """How many records there are."""
    return sum(1 for table in (ENTRIES, META) for _ in log.engine.scan(table))


def opened(disk: Disk) -> tuple[RaftLog, LoadedLog]:
    log = RaftLog(disk.log())
    return log, log.load()


def filled(last: int = 20, base: int = 0) -> MemoryEngine:
    """An engine with a log of (base, last], all in term 1."""
    engine = MemoryEngine()
    log = RaftLog(engine)
    log.load()
    log.save(point(base) if base else None, [entry(i) for i in range(base + 1, last + 1)], None)
    log.save(None, (), HardState(1, 2, 3))
    return engine


def test_a_new_log_is_empty(disk: Disk) -> None:
    log, loaded = opened(disk)
    assert loaded == LoadedLog(SnapshotMeta(0, 0, Configuration()), (), HardState())
    assert log.last_index == 0


def test_a_new_log_begins_with_the_founding_members(disk: Disk) -> None:
    loaded = RaftLog(disk.log()).load(point(0, 0), founding=MEMBERS)
    assert loaded.snapshot == SnapshotMeta(0, 0, MEMBERS)


def test_what_was_saved_is_loaded(disk: Disk) -> None:
    log, _ = opened(disk)
    entries = [entry(i, 1 + i // 10) for i in range(1, 30)]
    log.save(point(0, 0), entries[:10], HardState(2, 3, 0))
    log.save(None, entries[10:], HardState(3, 1, 9))
    log.save(None, (), None)
    _, loaded = opened(disk)
    assert loaded == LoadedLog(point(0, 0), tuple(entries), HardState(3, 1, 9))


def test_entries_of_every_kind_come_back_as_they_were(disk: Disk) -> None:
    log, _ = opened(disk)
    members = Configuration((1, 5, (1 << 63) - 1), (7,), (8, 9))
    entries = [
        Entry(1, 1, b""),
        Entry(1, 2, bytes(range(256)) * 4000),
        Entry(1, 3, b"", EntryKind.CONFIGURATION, members),
        Entry((1 << 63) - 1, 4, b"\0"),
        Entry((1 << 63) - 1, 5, b"", EntryKind.CONFIGURATION, Configuration()),
    ]
    log.save(None, entries, HardState((1 << 63) - 1, 0, 0))
    assert opened(disk)[1].entries == tuple(entries)


def test_the_hard_state_alone_is_saved(disk: Disk) -> None:
    opened(disk)[0].save(None, (), HardState(7, 2, 0))
    log, loaded = opened(disk)
    assert loaded.hard_state == HardState(7, 2, 0)
    log.save(None, [entry(1, 7)], None)
    assert opened(disk)[1].hard_state == HardState(7, 2, 0)


def test_entries_replace_the_tail(disk: Disk) -> None:
    log, _ = opened(disk)
    log.save(None, [entry(i) for i in range(1, 11)], HardState(1, 0, 0))
    log.save(None, [entry(5, 2), entry(6, 2)], HardState(2, 0, 4))
    assert log.last_index == 6
    _, loaded = opened(disk)
    assert loaded.entries == (*(entry(i) for i in range(1, 5)), entry(5, 2), entry(6, 2))


def test_a_gap_or_an_overlap_with_the_base_is_a_bug(disk: Disk) -> None:
    log, _ = opened(disk)
    log.save(None, [entry(i) for i in range(1, 11)], HardState(1, 0, 0))
    log.compact(point(5))
    for entries in ([entry(12)], [entry(5)], [entry(11), entry(13)]):
        with pytest.raises(AssertionError):
            log.save(None, entries, None)
    assert opened(disk)[1].entries == tuple(entry(i) for i in range(6, 11))


def test_compaction_takes_what_the_state_holds(disk: Disk) -> None:
    log, _ = opened(disk)
    log.save(None, [entry(i) for i in range(1, 31)], HardState(1, 0, 0))
    for upto in (10, 10, 4, 25):
        log.compact(point(upto))
    assert stored(log) == 5 + 3  # five entries; base, hard state and tail
    log, loaded = opened(disk)
    assert loaded.snapshot == point(25)
    assert loaded.entries == tuple(entry(i) for i in range(26, 31))
    log.compact(point(30))
    log, loaded = opened(disk)
    assert (loaded.snapshot, loaded.entries) == (point(30), ())
    log.save(None, [entry(31)], None)
    assert opened(disk)[1].entries == (entry(31),)


def test_compaction_of_the_wrong_term_or_beyond_the_end_is_a_bug(disk: Disk) -> None:
    log, _ = opened(disk)
    log.save(None, [entry(i) for i in range(1, 11)], None)
    for wrong in (point(5, 2), point(11)):
        with pytest.raises(AssertionError):
            log.compact(wrong)


def test_a_long_purge_is_many_transactions_and_may_be_cut_anywhere() -> None:
    last = 3 * PURGE_ENTRIES
    for cut in range(6):
        engine = MemoryEngine()
        log = RaftLog(engine)
        log.load()
        entries = [entry(i, data=b"x") for i in range(1, last + 11)]
        log.save(None, entries, HardState(1, 0, 0))
        crashing = CrashingEngine(engine, cut)
        log.engine = crashing
        if cut < 4:
            with pytest.raises(Crashed):
                log.compact(point(last))
        else:
            log.compact(point(last))
            assert crashing.left == cut - 4  # the base, then three transactions
        log = RaftLog(engine)
        loaded = log.load()
        expected = last if cut else 0
        assert loaded.snapshot.index == expected
        assert [each.index for each in loaded.entries] == list(range(expected + 1, last + 11))
        assert engine.stats().records == len(loaded.entries) + (3 if cut else 2)  # all purged


def test_a_snapshot_begins_the_log_anew(disk: Disk) -> None:
    log, _ = opened(disk)
    log.save(None, [entry(i) for i in range(1, 31)], HardState(1, 1, 1))
    log.save(point(20, 3), (), HardState(3, 0, 20))
    log, loaded = opened(disk)
    assert loaded == LoadedLog(point(20, 3), (), HardState(3, 0, 20))
    assert stored(log) == 3  # entries on both sides of the point are gone
    log.save(point(50, 3), [entry(51, 3), entry(52, 3)], None)
    _, loaded = opened(disk)
    assert (loaded.snapshot, loaded.entries) == (point(50, 3), (entry(51, 3), entry(52, 3)))


def test_a_snapshot_that_is_cut_short_is_whole_or_absent() -> None:
    for cut in range(4):
        engine = filled(2500)
        log = RaftLog(CrashingEngine(engine, cut))
        log.load()
        if cut < 3:
            with pytest.raises(Crashed):
                log.save(point(2000, 3), (), HardState(3, 0, 0))
        else:
            log.save(point(2000, 3), (), HardState(3, 0, 0))
        loaded = RaftLog(engine).load()
        if cut == 0:
            assert (loaded.snapshot.index, len(loaded.entries)) == (0, 2500)
        else:
            assert loaded == LoadedLog(point(2000, 3), (), HardState(3, 0, 0))
            assert engine.stats().records == 3


def test_a_snapshot_far_ahead_takes_as_long_as_what_is_stored() -> None:
    """It used to delete each index between the log's end and the snapshot, a thousand a write."""
    for cut in range(5):
        engine = filled(2500)
        crashing = CrashingEngine(engine, cut)
        log = RaftLog(crashing)
        log.load()
        if cut < 4:
            with pytest.raises(Crashed):
                log.save(point(10**9, 3), (), HardState(3, 0, 0))
        else:
            log.save(point(10**9, 3), (), HardState(3, 0, 0))
        again = CrashingEngine(engine, 4)
        loaded = RaftLog(again).load()
        assert loaded.snapshot.index == (10**9 if cut else 0)
        assert engine.stats().records == (3 if cut else 2500 + 2)
        assert 4 - again.left == max(0, 4 - cut) if cut else again.left == 4


def test_what_was_not_saved_is_not_counted_and_nothing_is_not_written() -> None:
    log = RaftLog(CrashingEngine(filled(6), 0))
    log.load()
    log.save(None, (), None)
    with pytest.raises(Crashed):
        log.save(point(9, 2), [entry(10, 2)], None)
    assert (log.base.index, log.last_index) == (0, 6)


@pytest.mark.parametrize("again", [False, True])
def test_a_log_that_begins_far_ahead_lets_go_of_what_it_has(again: bool) -> None:
    engine = filled(10)
    log = RaftLog(engine)
    log.load()
    log.save(point(10**9, 3), (), HardState(3, 0, 0))
    few = CrashingEngine(engine, 3)  # an entry is saved, the base is moved, the entry goes
    if again:
        log = RaftLog(engine)
        log.load()
    log.engine = few
    log.save(None, [entry(10**9 + 1, 3)], None)
    log.compact(point(10**9 + 1, 3))
    assert (few.left, engine.stats().records) == (0, 3)


# The state beside the log.


def test_a_state_inside_the_log_changes_nothing() -> None:
    engine = filled(20, base=5)
    plain = RaftLog(engine).load()
    for index in (5, 6, 13, 20):
        for installed in (False, True):
            assert RaftLog(engine).load(point(index), installed=installed) == plain


def test_a_state_is_in_the_log_if_its_own_entry_is_of_its_term() -> None:
    engine = filled(12, base=5)
    log = RaftLog(engine)
    log.load()
    log.save(None, [entry(n, 2) for n in range(13, 21)], HardState(2, 0, 5))
    plain = RaftLog(engine).load()
    for flushed in (point(12), point(13, 2)):
        assert RaftLog(engine).load(flushed) == plain
    for flushed in (point(12, 2), point(13)):
        with pytest.raises(CorruptLog, match="not in it"):
            RaftLog(engine).load(flushed)


def test_a_state_that_ends_before_the_log_begins_is_refused() -> None:
    engine = filled(20, base=5)
    for flushed in (point(4), point(0, 0)):
        with pytest.raises(CorruptLog, match="begins after index 5"):
            RaftLog(engine).load(flushed)
    with pytest.raises(CorruptLog, match="of term 2"):
        RaftLog(engine).load(point(5, 2))


@pytest.mark.parametrize("flushed", [point(21), point(900, 4), point(12, 4), point(20, 2)])
def test_a_snapshot_that_the_log_does_not_know_restarts_it(flushed: SnapshotMeta) -> None:
    """The crash came between the switch of the state and the save of the log."""
    engine = filled(20, base=5)
    log = RaftLog(engine)
    loaded = log.load(flushed, installed=True)
    kept = 2 if flushed.term == 1 else 0  # no vote is known in a term of which nothing is known
    expected = LoadedLog(flushed, (), HardState(flushed.term, kept, flushed.index))
    assert loaded == expected
    assert RaftLog(engine).load(flushed, installed=True) == expected
    log.save(None, [entry(flushed.index + 1, flushed.term)], None)
    assert RaftLog(engine).load(flushed).entries == (entry(flushed.index + 1, flushed.term),)


def test_a_promise_above_the_term_of_a_snapshot_outlives_a_restart_of_the_log() -> None:
    """Law 3: it voted in term 7, and must not vote in that once more."""
    engine = filled(20, base=5)
    log = RaftLog(engine)
    log.load()
    log.save(None, (), HardState(7, 3, 20))
    loaded = RaftLog(engine).load(point(900, 4), installed=True)
    assert loaded.hard_state == HardState(7, 3, 900)


@pytest.mark.parametrize("flushed", [point(21), point(900, 4), point(12, 4)])
def test_an_applied_entry_that_is_not_in_the_log_is_a_lost_entry(flushed: SnapshotMeta) -> None:
    with pytest.raises(CorruptLog, match="not in it"):
        RaftLog(filled(20, base=5)).load(flushed, installed=False)


# Corruption.


def test_every_flipped_bit_is_found_and_named() -> None:
    engine = filled(6)
    before = RaftLog(engine).load()
    for table in engine.tables():
        for key, value in list(engine.scan(table)):
            for bit in range(len(value) * 8):
                engine.write([(table, key, flip(value, bit))])
                with pytest.raises(CorruptRecord) as caught:
                    RaftLog(engine).load()
                assert (caught.value.table, caught.value.key) == (table, repr(key))
            engine.write([(table, key, value)])
    assert RaftLog(engine).load() == before


def test_a_value_under_another_key_is_found() -> None:
    engine = filled(6)
    rows = dict(engine.scan(ENTRIES))
    engine.write([(ENTRIES, keys.entry_key(3), rows[keys.entry_key(4)])])
    with pytest.raises(CorruptRecord, match="checksum"):
        RaftLog(engine).load()
    # Even with a checksum that fits the key, the entry says where it belongs.
    key = keys.entry_key(3)
    engine.write([(ENTRIES, key, seal(ENTRIES, key, records.entry_to(entry(4))))])
    with pytest.raises(CorruptRecord, match="holds entry 4"):
        RaftLog(engine).load()
    engine, key = filled(1), keys.entry_key(1)
    longer = records.sealed(ENTRIES, b"\0" + key, records.entry_to(entry(1)))
    engine.write([(ENTRIES, key, None), longer])
    with pytest.raises(CorruptRecord, match="holds entry 1"):
        RaftLog(engine).load()


@pytest.mark.parametrize("index", range(1, 7))
def test_a_missing_entry_is_found(index: int) -> None:
    engine = filled(6)
    engine.write([(ENTRIES, keys.entry_key(index), None)])
    with pytest.raises(CorruptLog, match="should be"):
        RaftLog(engine).load()


def test_an_entry_too_many_is_found() -> None:
    engine = filled(6)
    engine.write([records.sealed(ENTRIES, keys.entry_key(8), records.entry_to(entry(8)))])
    with pytest.raises(CorruptLog, match="entry 8 is where entry 7 should be"):
        RaftLog(engine).load()
    engine = filled(6)
    engine.write([records.sealed(ENTRIES, keys.entry_key(7), records.entry_to(entry(7)))])
    with pytest.raises(CorruptLog, match="last entry 7"):
        RaftLog(engine).load()


def test_a_missing_base_or_tail_is_found() -> None:
    engine = filled(20, base=5)
    engine.write([(META, b"base", None)])
    with pytest.raises(CorruptLog):
        RaftLog(engine).load()
    for engine in (filled(20), filled(5, base=5)):
        engine.write([(META, b"tail", None)])
        with pytest.raises(CorruptLog, match="where last entry 0 should be"):
            RaftLog(engine).load()


def test_a_missing_hard_state_is_found() -> None:
    engine = filled(6)
    engine.write([(META, b"hard_state", None)])
    with pytest.raises(CorruptLog, match="its hard state ends at 0"):
        RaftLog(engine).load()


def test_terms_that_go_down_are_found() -> None:
    engine = filled(6)
    engine.write([records.sealed(ENTRIES, keys.entry_key(6), records.entry_to(entry(6, 0)))])
    with pytest.raises(CorruptLog, match="term 0 after 1"):
        RaftLog(engine).load()
    engine = filled(6, base=5)
    engine.write([records.sealed(META, b"base", records.meta_to(point(5, 2)))])
    with pytest.raises(CorruptLog, match="entry 6 has term 1 after 2"):
        RaftLog(engine).load()
    engine = filled(5, base=5)
    engine.write([records.sealed(META, b"base", records.meta_to(point(5, 2)))])
    with pytest.raises(CorruptLog, match="it reaches term 2, but its hard state ends at 1"):
        RaftLog(engine).load()


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        (ENTRIES, keys.entry_key(3), b"\xff\xff"),
        (ENTRIES, keys.entry_key(3), b"\x08\x01\x10\x03\x18\x09"),  # an unknown kind
        (ENTRIES, b"odd", b"\x08\x01\x10\x03"),
        (META, b"base", b"\xff\xff"),
        (META, b"hard_state", b"\xff\xff"),
        (META, b"unknown", b""),
    ],
)
def test_sound_checksums_over_nonsense_are_found(table: str, key: bytes, value: bytes) -> None:
    engine = filled(6)
    engine.write([records.sealed(table, key, value)])
    with pytest.raises((CorruptRecord, CorruptLog)):
        RaftLog(engine).load()


def test_a_corrupt_entry_is_not_compacted_over() -> None:
    engine = filled(6)
    log = RaftLog(engine)
    log.load()
    value = engine.get(ENTRIES, keys.entry_key(3))
    assert value is not None
    engine.write([(ENTRIES, keys.entry_key(3), flip(value, 77))])
    with pytest.raises(CorruptRecord):
        log.compact(point(3))
    engine.write([(ENTRIES, keys.entry_key(3), None)])
    with pytest.raises(CorruptLog, match="entry 3 is missing"):
        log.compact(point(3))
