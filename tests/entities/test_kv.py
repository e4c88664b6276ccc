"""Key-value pairs: conditions, order, pages, limits."""

from __future__ import annotations

import pytest

from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX, VALUE_BYTES_MAX
from state_machines.metadata.kv import DeleteKv, GetKv, KvEntry, PutKv, RangeKv
from tests.entities.group import Group


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def keys(group: Group, prefix: str = "", limit: int = 1_000, tenant: str = "default") -> list[str]:
    """All keys under a prefix, page by page."""
    found: list[str] = []
    after = b""
    while True:
        page = group.ask(RangeKv(tenant=tenant, prefix=prefix, limit=limit, after=after))
        assert len(page.entries) <= limit
        found += [each.key for each in page.entries]
        after = page.next
        if not after:
            return found


# -- conditions -------------------------------------------------------------------------------


def test_the_reply_is_the_revision(group: Group) -> None:
    revision = group.run(PutKv(key="k", value=b"1"))
    assert revision == group.index
    assert group.ask(GetKv(key="k")) == KvEntry("k", b"1", revision)
    assert group.run(PutKv(key="k", value=b"1")) > revision, "also for the same value"


def test_expected_revision(group: Group) -> None:
    first = group.run(PutKv(key="k", value=b"1", expected_revision=0))
    with group.refuses(Conflict, f"expected_revision: 0, the key is at {first}"):
        group.run(PutKv(key="k", value=b"2", expected_revision=0))
    second = group.run(PutKv(key="k", value=b"2", expected_revision=first))
    for wrong in (first, second + 1, 2**63 - 1):
        with group.refuses(Conflict, "expected_revision"):
            group.run(PutKv(key="k", value=b"3", expected_revision=wrong))
        with group.refuses(Conflict, "expected_revision"):
            group.run(DeleteKv(key="k", expected_revision=wrong))
    group.run(DeleteKv(key="k", expected_revision=second))
    assert group.ask(GetKv(key="k")) is None


def test_expecting_what_is_not_there(group: Group) -> None:
    with group.refuses(Conflict, "expected_revision: 7, the key is at 0"):
        group.run(PutKv(key="k", value=b"", expected_revision=7))
    with group.refuses(Conflict):
        group.run(DeleteKv(key="k", expected_revision=7))
    with group.refuses(NotFound, "^key: 'k' is not there"):
        group.run(DeleteKv(key="k"))
    with group.refuses(NotFound):
        group.run(DeleteKv(key="k", expected_revision=0))


def test_two_writers_of_one_entry_do_not_both_win(group: Group) -> None:
    """Reference defect 7: a check and its write are one command, whoever else writes beside it."""
    first, second = group.together(
        PutKv(key="k", value=b"1", expected_revision=0),
        PutKv(key="k", value=b"2", expected_revision=0),
    )
    assert first == group.index
    assert isinstance(second, Conflict)
    assert group.ask(GetKv(key="k")).value == b"1"


def test_every_change_has_its_own_revision_also_within_an_entry(group: Group) -> None:
    revisions = group.together(*[PutKv(key="k", value=bytes([n])) for n in range(4)])
    assert revisions == [group.index + n for n in range(4)]
    last = revisions[-1]
    for _ in range(6):  # the log has to catch up with what was given; it never gives one twice
        following = group.run(PutKv(key="k", value=b""))
        assert following > last
        last = following


def test_a_pair_that_went_and_came_back_within_an_entry_is_another_one(group: Group) -> None:
    put = PutKv(key="k", value=b"")
    first, _, second, _, third = group.together(put, DeleteKv(key="k"), put, DeleteKv(key="k"), put)
    assert first < second < third
    with group.refuses(Conflict):
        group.run(PutKv(key="k", value=b"", expected_revision=first))


def test_keys_that_come_and_go_leave_nothing_behind(group: Group) -> None:
    for number in range(100):
        key = f"k{number}"
        group.together(PutKv(key=key, value=b""), DeleteKv(key=key))
    assert group.rows("metadata.kv") == 0
    assert group.rows("metadata.kv_floor") <= 4


# -- order and pages ----------------------------------------------------------------------------


def test_a_range_is_a_prefix_in_the_order_of_bytes(group: Group) -> None:
    names = ["a", "a/", "a/b", "a/b/c", "a0", "aa", "b", "é", "z", "zz", "漢", "💡", "a\u202eb"]
    group.together(*[PutKv(key=each, value=b"") for each in names])
    in_order = sorted(names, key=str.encode)
    assert keys(group) == in_order
    for prefix in ("a", "a/", "a/b", "z", "漢", "é", "x"):
        assert keys(group, prefix) == [each for each in in_order if each.startswith(prefix)]


def test_names_are_bytes_not_looks(group: Group) -> None:
    """No normalisation: two spellings of é are two keys; so are path parts."""
    for key in ("\u00e9", "e\u0301", "..", "/", "//", "a/../b", "line\nfeed"):
        group.run(PutKv(key=key, value=key.encode()))
    assert len(keys(group)) == 7
    assert group.ask(GetKv(key="e\u0301")).value == b"e\xcc\x81"


@pytest.mark.parametrize("limit", [1, 2, 3, 10, PAGE_ROWS_MAX])
def test_pages_cover_a_range_once(group: Group, limit: int) -> None:
    names = [f"p/{number:02}" for number in range(10)]
    group.together(*[PutKv(key=each, value=b"") for each in ["o", *names, "q"]])
    assert keys(group, "p/", limit) == names


def test_a_page_continues_although_its_last_key_is_gone(group: Group) -> None:
    group.together(*[PutKv(key=each, value=b"") for each in "abcd"])
    page = group.ask(RangeKv(limit=2))
    group.run(DeleteKv(key="b"))
    group.run(PutKv(key="bb", value=b""))
    rest = group.ask(RangeKv(limit=9, after=page.next))
    assert [each.key for each in rest.entries] == ["bb", "c", "d"]


def test_a_page_ends_by_bytes_too_and_has_at_least_one_pair(group: Group) -> None:
    half = bytes(PAGE_BYTES_MAX // 2)
    for key in "abcd":
        group.run(PutKv(key=key, value=half))
    group.run(PutKv(key="e", value=bytes(VALUE_BYTES_MAX)))
    page = group.ask(RangeKv())
    assert [each.key for each in page.entries] == ["a"], "two of them with their keys are more"
    assert keys(group) == ["a", "b", "c", "d", "e"]


def test_a_token_of_another_range_gives_nothing_wrong(group: Group) -> None:
    group.together(*[PutKv(key=each, value=b"") for each in ("a1", "b1", "c1")])
    token = group.ask(RangeKv(limit=2)).next
    assert group.ask(RangeKv(prefix="a", after=token)).entries == ()
    assert [each.key for each in group.ask(RangeKv(prefix="c", after=token)).entries] == ["c1"]
    for junk in (b"\x00", b"\xff" * 2_000):
        assert {each.key for each in group.ask(RangeKv(after=junk)).entries} <= {"a1", "b1", "c1"}


def test_tenants_do_not_see_each_other(group: Group) -> None:
    group.run(PutKv(tenant="a", key="b/c", value=b"1"))
    group.run(PutKv(tenant="a/b", key="c", value=b"2"))
    assert keys(group, tenant="a") == ["b/c"]
    assert keys(group, tenant="a/b") == ["c"]
    assert keys(group, tenant="ab") == []
    group.run(DeleteKv(tenant="a", key="b/c"))
    assert group.ask(GetKv(tenant="a/b", key="c")).value == b"2"


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (PutKv(key="", value=b""), "key"),
        (PutKv(key="k" * 401, value=b""), "key"),
        (PutKv(key="é" * 201, value=b""), "key"),
        (PutKv(key="a\0b", value=b""), "key"),
        (PutKv(tenant="", key="k", value=b""), "tenant"),
        (PutKv(tenant="t" * 65, key="k", value=b""), "tenant"),
        (PutKv(key="k", value=bytes(VALUE_BYTES_MAX + 1)), "value"),
        (PutKv(key="k", value=b"", expected_revision=-1), "expected_revision"),
        (DeleteKv(key=""), "key"),
        (DeleteKv(tenant="", key="k"), "tenant"),
        (DeleteKv(key="k", expected_revision=-1), "expected_revision"),
        (GetKv(key="k" * 401), "key"),
        (GetKv(tenant="t" * 65, key="k"), "tenant"),
        (RangeKv(prefix="p" * 401), "prefix"),
        (RangeKv(tenant="\0"), "tenant"),
    ],
)
def test_limits(group: Group, operation: object, field: str) -> None:
    group.run(PutKv(key="k", value=b"kept"))
    group.beyond(operation, field)


@pytest.mark.parametrize("limit", [0, -1, PAGE_ROWS_MAX + 1, 2**63 - 1])
def test_limits_of_a_page(group: Group, limit: int) -> None:
    with group.refuses(Invalid, f"^limit: {limit}, the range is 1 to"):
        group.ask(RangeKv(limit=limit))


def test_the_limits_themselves_are_within(group: Group) -> None:
    tenant, key, value = "t" * 64, "k" * 400, bytes(VALUE_BYTES_MAX)
    group.run(PutKv(tenant=tenant, key=key, value=value))
    group.run(PutKv(tenant=tenant, key="k" * 399 + "j", value=b""))
    assert group.ask(GetKv(tenant=tenant, key=key)).value == value
    assert keys(group, "k" * 400, tenant=tenant) == [key]
    assert keys(group, "k" * 399, tenant=tenant) == ["k" * 399 + "j", key]
