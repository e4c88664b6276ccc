"""Rows of any table, page after page: each whole, with the revision it is of."""

from __future__ import annotations

import pytest

from state_machines.errors import Invalid, NotFound
from state_machines.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX, VALUE_BYTES_MAX
from state_machines.metadata.kv import KV, Kv, PutKv
from state_machines.metadata.node import NODES, RegisterNode
from state_machines.table_rows import ReadRows, StoredRows
from state_machines.tables import TABLES, Table
from tests.entities.group import Group


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def test_a_table_comes_in_pages_and_every_row_with_its_revision(group: Group) -> None:
    revisions = {}
    for number in range(7):
        group.run(PutKv(tenant="t", key=f"k{number}", value=b"v"))
        revisions[f"k{number}"] = group.index
    found: dict[str, int] = {}
    after, pages = b"", 0
    while True:
        page = group.ask(ReadRows(table=KV.name, limit=3, after=after))
        assert page.revision == group.index
        rows = [KV.decode(each) for each in page.rows]
        found |= {row.key: revision for row, revision in rows}
        after, pages = page.next, pages + 1
        if not after:
            break
    assert (found, pages) == (revisions, 3)


def test_a_tenant_has_its_own_rows_and_no_others(group: Group) -> None:
    for tenant in ("a", "ab", "b"):
        group.run(PutKv(tenant=tenant, key="k", value=tenant.encode()))
    for tenant, values in (("a", [b"a"]), ("", [b"a", b"b", b"ab"]), ("none", [])):
        page = group.ask(ReadRows(table=KV.name, tenant=tenant))
        assert sorted(KV.decode(each)[0].value for each in page.rows) == sorted(values)
        assert page.next == b""


def test_cluster_wide_rows_have_no_tenant(group: Group) -> None:
    group.run(RegisterNode(node_id="n"))
    assert len(group.ask(ReadRows(table=NODES.name)).rows) == 1
    with group.refuses(Invalid, "tenant: the rows of metadata.node belong to no tenant"):
        group.ask(ReadRows(table=NODES.name, tenant="t"))


def test_a_table_whose_key_is_the_tenant_has_one_row_for_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.run(PutKv(tenant="t", key="k", value=b"v"))
    (row,) = group.ask(ReadRows(table=KV.name)).rows
    registered = dict(TABLES)
    monkeypatch.setattr("state_machines.tables.TABLES", registered)
    monkeypatch.setattr("state_machines.table_rows.TABLES", registered)
    whole = Table("metadata.whole", Kv, key=("tenant",))
    group.store.put(whole.name, ("t",), row)
    asked = ReadRows(table=whole.name, tenant="t")
    assert group.ask(asked) == StoredRows((row,), group.index, b"")
    assert group.ask(ReadRows(table=whole.name, tenant="u")).rows == ()


def test_a_page_ends_before_it_is_too_large(group: Group) -> None:
    for number in range(3):
        group.run(PutKv(tenant="t", key=f"k{number}", value=bytes(VALUE_BYTES_MAX * 2 // 3)))
    page = group.ask(ReadRows(table=KV.name))
    assert len(page.rows) == 1
    assert sum(map(len, page.rows)) <= PAGE_BYTES_MAX
    assert page.next


@pytest.mark.parametrize("table", ["no.such", "group.owned", "group.clock", "client.seen"])
def test_only_tables_that_clients_may_know_of_are_read(group: Group, table: str) -> None:
    with group.refuses(NotFound, "table: there is none named"):
        group.ask(ReadRows(table=table))


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (ReadRows(table=""), "table"),
        (ReadRows(table=KV.name, tenant="x" * 257), "tenant"),
        (ReadRows(table=KV.name, limit=0), "limit"),
        (ReadRows(table=KV.name, limit=PAGE_ROWS_MAX + 1), "limit"),
    ],
)
def test_limits(group: Group, asked: ReadRows, field: str) -> None:
    group.beyond(asked, field)


def test_a_token_of_nowhere_is_no_row(group: Group) -> None:
    group.run(PutKv(tenant="t", key="k", value=b"v"))
    with pytest.raises(Invalid):
        group.ask(ReadRows(table=KV.name, limit=-1))
    assert group.ask(ReadRows(table=KV.name, after=b"\xff" * 9)).rows == ()
