"""Changes in runs are the changes one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from state_machines.changes import Change, Changes

ONE = st.tuples(
    st.sampled_from("ab"),
    st.tuples(st.sampled_from("xyz"), st.integers(0, 9)),
    st.none() | st.binary(max_size=2),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "many", "join", "cut")), st.lists(ONE, max_size=4)),
    max_size=12,
)


def _more(changes: Changes, how: str, some: list[Change]) -> None:
    if how == "many":
        for table in "ab":
            of_table = [each for each in some if each[0] == table]
            changes.add_many(table, [key for _, key, _ in of_table], [row for *_, row in of_table])
    elif how == "join":
        changes.join(Changes.of(some))
    else:
        for table, key, row in some:
            changes.add(table, key, row)


@given(STEPS)
def test_runs_are_what_was_added_in_its_order(steps: list[tuple[str, list[Change]]]) -> None:
    changes, told = Changes(), list[Change]()
    for how, some in steps:
        if how == "cut":
            length = len(told) // 2
            changes.cut(length)
            del told[length:]
            continue
        _more(changes, how, some)
        # Many are of one table at a time.
        told += sorted(some, key=lambda each: each[0]) if how == "many" else some
        assert list(changes) == told
        assert len(changes) == len(told)
    flat = [
        (table, key, row)
        for table, keys, rows in changes.runs
        for key, row in zip(keys, rows, strict=True)
    ]
    assert flat == told
    assert all(keys for _, keys, _ in changes.runs)


def test_who_has_joined_them_has_them_for_good() -> None:
    """Whatever is added afterwards, on either side."""
    mine, later = Changes.of([("a", ("x",), b"1")]), Changes.of([("a", ("y",), b"2")])
    mine.join(later)
    mine.add("a", ("z",), None)
    assert list(mine) == [("a", ("x",), b"1"), ("a", ("y",), b"2"), ("a", ("z",), None)]
    assert list(later) == [("a", ("y",), b"2")]
