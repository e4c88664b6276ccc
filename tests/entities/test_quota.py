"""Quotas: a group enforces its share where the rows are, and costs nothing where there are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines.errors import Fenced, NotFound, QuotaExceeded
from state_machines.keyvalue import Part
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.topic import (
    CreateTopicConfigs,
    DeleteTopicConfigs,
    FinishTopicConfigs,
    GetTopicConfig,
    NewTopic,
    TopicName,
    TopicRef,
)
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import SetRetained
from state_machines.mqtt.session import (
    CloseSession,
    CountSessions,
    DeleteSessions,
    OpenSession,
    SaveSessions,
    SessionItem,
)
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.mqtt.topic import CreateTopics, DeleteTopics
from state_machines.offset.offset import CommitOffsets, FetchOffsets, OffsetCommit
from state_machines.quota import (
    LIMIT_MAX,
    DropQuotas,
    GetUsage,
    GroupQuota,
    ListQuotas,
    QuotaVersion,
    SetQuotas,
    Usage,
    share,
)
from storage.memory import MemoryKeyValue
from tests.entities.group import Group
from tests.machine.test_runs import carried_out

KINDS = ("metadata", "mqtt", "offset")


def limit(
    group: Group, tenant: str = "acme", version: int = 1, epoch: int = 1, **limits: Any
) -> Any:
    row = GroupQuota(tenant, version, **limits)
    (outcome,) = group.run(SetQuotas(controller_epoch=epoch, items=(row,)))
    return outcome


def opens(*client_ids: str, tenant: str = "acme") -> OpenSessions:
    return OpenSessions(tenant=tenant, client_ids=client_ids, brokers=("b",) * len(client_ids))


def topics(*names: str) -> CreateTopicConfigs:
    items = tuple([NewTopic(name=name, protocol="kafka") for name in names])
    return CreateTopicConfigs(tenant="acme", items=items)


def commit(count: int, tenant: str = "acme") -> CommitOffsets:
    commits = [OffsetCommit(group="g", topic="t", partition=n, offset=1) for n in range(count)]
    return CommitOffsets.of(commits, tenant)


def used(group: Group, tenant: str = "acme") -> tuple[Usage, ...]:
    found: tuple[Usage, ...] = group.ask(GetUsage(tenant=tenant))
    return found


# -- how many there are at once ------------------------------------------------------------------


def test_a_share_is_rounded_up() -> None:
    assert [share(10, groups) for groups in (1, 2, 3, 4, 11)] == [10, 5, 4, 3, 1]
    assert share(0, 3) == 0, "no limit is none in any group"


def test_a_tenant_without_a_row_has_no_limits_and_is_counted_all_the_same() -> None:
    """A tenant need not be recorded to be used; a limit may come later."""
    group = Group("mqtt")
    group.run(CreateTopics(tenant="acme", names=("a", "b", "a")))
    assert used(group) == (Usage("acme", "topics", 2),)
    limit(group, topics=2)
    with group.refuses(QuotaExceeded, "^topics: 3 of tenant 'acme', the limit of this group is 2"):
        group.run(CreateTopics(tenant="acme", names=("c",)))
    assert group.run(CreateTopics(tenant="zeta", names=("a", "b", "c"))) == (True, True, True)


def test_mqtt_topics_fit_all_or_none_is_created() -> None:
    """The reply says of each whether it is new, so a part that did not fit had no place in it."""
    group = Group("mqtt")
    limit(group, topics=3)
    assert group.run(CreateTopics(tenant="acme", names=("a", "b"))) == (True, True)
    with group.refuses(QuotaExceeded, "^topics: 4 of tenant 'acme'"):
        group.run(CreateTopics(tenant="acme", names=("c", "d")))
    again = CreateTopics(tenant="acme", names=("a", "c", "c"))
    assert group.run(again) == (False, True, False), "what is there, or comes twice, is none more"
    assert group.run(DeleteTopics(tenant="acme", names=("a", "b", "x"))) == 2
    assert used(group) == (Usage("acme", "topics", 1),)
    assert group.run(CreateTopics(tenant="acme", names=("d", "e"))) == (True, True)
    group.run(DeleteTopics(tenant="acme", names=("c", "d", "e")))
    assert used(group) == ()


def test_of_topics_with_an_outcome_each_the_first_ones_fit() -> None:
    group = Group("metadata")
    limit(group, topics=2)
    outcomes = group.run(topics("a", "b", "c", "a"))
    assert [each.code for each in outcomes] == ["OK", "OK", "QUOTA_EXCEEDED", "ALREADY_EXISTS"]
    assert outcomes[2].detail == "topics: 3 of tenant 'acme', the limit of this group is 2"
    assert used(group) == (Usage("acme", "topics", 2),)


def test_a_topic_counts_until_nobody_holds_anything_of_it() -> None:
    group = Group("metadata")
    limit(group, topics=1)
    group.run(topics("a"))
    topic = group.ask(GetTopicConfig(tenant="acme", name="a"))
    group.run(DeleteTopicConfigs(tenant="acme", items=(TopicName(name="a"),)))
    assert group.run(topics("b"))[0].code == "QUOTA_EXCEEDED"
    gone = TopicRef(name="a", topic_id=topic.topic_id)
    group.run(FinishTopicConfigs(tenant="acme", items=(gone, gone)))
    assert used(group) == ()
    assert group.run(topics("b"))[0].ok


def test_what_is_above_a_new_limit_stays_and_nothing_is_added() -> None:
    group = Group("mqtt")
    group.run(opens("c1", "c2", "c3"))
    limit(group, sessions=1)
    for each in ("c1", "c2", "c3"):
        group.run(opens(each))
    with group.refuses(QuotaExceeded, "^sessions: 4 of tenant 'acme', the limit of this group is"):
        group.run(opens("c4"))
    group.run(DeleteSessions(tenant="acme", client_ids=("c1", "c2", "c3")))
    group.run(opens("c4"))


@pytest.mark.parametrize(
    "form",
    [
        lambda ids: opens(*ids),
        lambda ids: SaveSessions(
            tenant="acme",
            sessions=tuple([SessionItem(client_id=each, broker="b") for each in ids]),
        ),
    ],
    ids=("columns", "objects"),
)
def test_sessions_fit_all_or_none_is_opened(form: Any) -> None:
    group = Group("mqtt")
    limit(group, sessions=3)
    group.run(form(("c1", "c2")))
    with group.refuses(QuotaExceeded, "^sessions: 4 of tenant 'acme'"):
        group.run(form(("c1", "c3", "c4")))
    group.run(form(("c1", "c3", "c3", "c2")))
    assert group.ask(CountSessions(tenant="acme")).sessions == 3
    again = OpenSession(tenant="acme", client_id="c1", broker="b", clean_start=True)
    assert group.run(again).present is False, "a clean start takes the place of what ends"
    with group.refuses(QuotaExceeded):
        group.run(OpenSession(tenant="acme", client_id="c4", broker="b"))


def test_a_limit_holds_from_the_next_command_on_of_the_same_entry() -> None:
    """What an entry has looked up it does not look up again; a new limit makes it."""
    group = Group("mqtt")
    row = GroupQuota("acme", 1, topics=1)
    lower = SetQuotas(controller_epoch=1, items=(row,))
    none = DropQuotas(controller_epoch=1, items=(QuotaVersion("acme", 1),))
    made = [CreateTopics(tenant="acme", names=(name,)) for name in "abc"]
    replies = group.together(made[0], lower, made[1], none, made[2])
    assert [isinstance(each, QuotaExceeded) for each in replies] == [
        *(False, False, True, False, False)
    ]


# -- how many there are in a second --------------------------------------------------------------


def test_a_second_has_so_many_opens() -> None:
    group = Group("mqtt")
    limit(group, session_opens_per_s=10)
    group.run(opens(*[f"a{number}" for number in range(10)]))
    with group.refuses(
        QuotaExceeded,
        "^session_opens_per_s: of tenant 'acme', the limit of this group is 10; "
        "there is room in 100 ms",
    ):
        group.run(opens("b"))
    group.now_ms += 99
    with group.refuses(QuotaExceeded, "in 1 ms"):
        group.run(opens("b"))
    group.now_ms += 1
    group.run(opens("b"))
    with group.refuses(QuotaExceeded, "in 100 ms"):
        group.run(opens("b"))
    group.run(opens("b", tenant="zeta"))


def test_a_batch_larger_than_a_second_is_paid_off_by_those_that_follow() -> None:
    group = Group("mqtt")
    limit(group, session_opens_per_s=10)
    group.run(opens(*[f"a{number}" for number in range(40)]))
    with group.refuses(QuotaExceeded, "in 3100 ms"):
        group.run(opens("b"))
    group.later(3)
    with group.refuses(QuotaExceeded, "in 100 ms"):
        group.run(opens("b"))
    group.now_ms += 100
    group.run(opens("b"))


def test_a_bucket_holds_no_more_than_a_second() -> None:
    group = Group("mqtt")
    limit(group, session_opens_per_s=2)
    group.run(opens("a"))
    group.later(3_600)
    group.run(opens("a"))
    group.run(opens("a"))
    with group.refuses(QuotaExceeded):
        group.run(opens("a"))


def test_commits_have_a_rate_and_are_refused_whole() -> None:
    group = Group("offset")
    limit(group, offset_commits_per_s=5)
    assert group.run(commit(5)).committed == 5
    with group.refuses(QuotaExceeded, "^offset_commits_per_s: of tenant 'acme'"):
        group.run(commit(1))
    group.run(commit(9, tenant="zeta"))
    group.later(1)
    group.run(commit(3))
    assert {each.commits for each in group.ask(FetchOffsets(tenant="acme", group="g"))} == {1, 2}


@given(
    rate=st.integers(1, 50),
    calls=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 60)), min_size=1, max_size=40),
)
@settings(max_examples=60)
def test_over_any_time_the_rate_holds_but_for_one_batch(
    rate: int, calls: list[tuple[int, int]]
) -> None:
    """What is let in until any moment: a second's worth, what has flown in since, one batch."""
    group = Group("offset")
    limit(group, offset_commits_per_s=rate)
    start, let_in = group.now_ms, 0
    for wait_ms, count in calls:
        group.now_ms += wait_ms
        before = let_in
        (reply,) = group.together(commit(count))
        let_in += 0 if isinstance(reply, QuotaExceeded) else count
        assert before == let_in or before * 1_000 <= rate * (1_000 + group.now_ms - start)


# -- runs ----------------------------------------------------------------------------------------

OPENS = st.builds(
    OpenSession,
    tenant=st.sampled_from(["acme", "zeta", "free"]),
    client_id=st.sampled_from(["c1", "c2", "c3", "c4"]),
    broker=st.just("b"),
    expiry_s=st.sampled_from([0, 9]),
    clean_start=st.booleans(),
)


@given(st.lists(st.tuples(st.integers(0, 900), st.lists(OPENS, min_size=1)), max_size=5))
@settings(max_examples=60)
def test_a_run_is_let_in_as_its_operations_one_after_the_other(
    runs: list[tuple[int, list[OpenSession]]],
) -> None:
    one, other = Group("mqtt"), Group("mqtt")
    for group in (one, other):
        limit(group, "acme", sessions=2, session_opens_per_s=3)
        limit(group, "zeta", session_opens_per_s=1)
    for wait_ms, run in runs:
        one.now_ms += wait_ms
        other.now_ms += wait_ms
        told = carried_out(one, run)
        replies = other.together(*run)
        assert told == [
            f"{each.code} {each.detail}" if isinstance(each, QuotaExceeded) else each
            for each in replies
        ]
        same = {"group.client", "group.client_seen", "group.reply"}
        for store in (one.store, other.store):
            assert store.dump()
        assert {k: v for k, v in one.store.dump().items() if k not in same} == {
            k: v for k, v in other.store.dump().items() if k not in same
        }


# -- what it costs -------------------------------------------------------------------------------


class Counting(MemoryKeyValue):
    """Counts what is read of quotas."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def get(self, table: str, key: tuple[Part, ...]) -> bytes | None:
        if table in ("group.quota", "group.quota_book", "group.usage", "group.rate_level"):
            self.reads[table] += 1
        return super().get(table, key)


@pytest.mark.parametrize(
    ("others", "expected"),
    [(False, {"group.quota_book": 1}), (True, {"group.quota_book": 1, "group.quota": 1})],
)
def test_a_tenant_without_limits_costs_one_lookup_an_entry(
    others: bool, expected: dict[str, int]
) -> None:
    """Not one a session, nor one a command."""
    for kind, commands in (
        ("mqtt", [opens(*[f"c{number}" for number in range(500)]), opens("c1"), opens("x")]),
        ("offset", [commit(500), commit(1), commit(2)]),
    ):
        store = Counting()
        group = Group(kind, store)
        if others:
            limit(group, "zeta", sessions=1, offset_commits_per_s=1)
        store.reads.clear()
        replies = group.together(*commands)
        assert not [each for each in replies if isinstance(each, Exception)]
        assert dict(store.reads) == expected


# -- closed tenants ------------------------------------------------------------------------------


def test_a_closed_tenant_takes_no_command_but_the_controllers() -> None:
    group = Group("mqtt")
    opened = group.run(OpenSession(tenant="acme", client_id="c", broker="b", expiry_s=1))
    group.run(CloseSession(tenant="acme", client_id="c", epoch=opened.epoch))
    limit(group, closed=True)
    refused: Sequence[Any] = (
        opens("c"),
        OpenSession(tenant="acme", client_id="d", broker="b"),
        SaveSessions(tenant="acme", sessions=(SessionItem(client_id="d", broker="b"),)),
        CreateTopics(tenant="acme", names=("a",)),
        SetRetained(tenant="acme", topic="t", payload=b"1"),
        DeleteTopics(tenant="acme", names=("a",)),
    )
    for each in refused:
        with group.refuses(NotFound, "^tenant: 'acme' is being deleted$"):
            group.run(each)
    run = [OpenSession(tenant=name, client_id="r", broker="b") for name in ("acme", "zeta")]
    told = carried_out(group, run)
    assert told[0] == "NOT_FOUND tenant: 'acme' is being deleted"
    assert told[1].client_id == "r"
    group.later(5)
    assert group.run(Pulse(controller_epoch=1)).sessions == 1, "other tenants' timers are in there"


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        ("metadata", PutKv(tenant="acme", key="k", value=b"")),
        ("metadata", topics("t")),
        ("offset", commit(1)),
    ],
)
def test_no_entity_has_to_ask_whether_its_tenant_is_closed(kind: str, operation: Any) -> None:
    group = Group(kind)
    limit(group, closed=True)
    with group.refuses(NotFound, "^tenant: 'acme' is being deleted$"):
        group.run(operation)
    limit(group, version=2)
    group.run(operation)


def test_a_tenant_that_had_limits_is_closed_like_any_other() -> None:
    group = Group("metadata")
    for tenant in ("acme", "zeta"):
        limit(group, tenant, topics=3)
        limit(group, tenant, version=2, topics=4)
    limit(group, version=3, closed=True)
    with group.refuses(NotFound, "^tenant: 'acme' is being deleted$"):
        group.run(PutKv(tenant="acme", key="k", value=b""))
    group.run(PutKv(tenant="zeta", key="k", value=b""))


def test_what_a_closed_tenant_still_has_can_be_read() -> None:
    group = Group("metadata")
    group.run(PutKv(tenant="acme", key="k", value=b"1"))
    limit(group, closed=True)
    run = [PutKv(tenant=name, key="k", value=b"2") for name in ("acme", "zeta")]
    assert carried_out(group, run)[0] == "NOT_FOUND tenant: 'acme' is being deleted"
    assert group.ask(GetKv(tenant="acme", key="k")).value == b"1"
    assert group.ask(GetKv(tenant="zeta", key="k")).value == b"2"


# -- what the controller says --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_quotas_are_set_listed_and_dropped_in_every_kind(kind: str) -> None:
    group = Group(kind)
    rows = tuple([GroupQuota(f"t{number}", 1, topics=number) for number in range(5)])
    outcomes = group.run(SetQuotas(controller_epoch=1, items=rows))
    assert all(each.ok for each in outcomes)
    pages = [group.ask(ListQuotas(limit=3))]
    pages.append(group.ask(ListQuotas(limit=3, after=pages[0].next)))
    assert tuple(row for page in pages for row in page.quotas) == rows
    gone = tuple([QuotaVersion(row.tenant, 1) for row in (*rows[:4], rows[0])])
    assert all(each.ok for each in group.run(DropQuotas(controller_epoch=1, items=gone)))
    assert group.ask(ListQuotas()).quotas == rows[4:]


def test_an_older_version_is_refused_and_the_same_again_is_fine() -> None:
    group = Group("mqtt")
    assert limit(group, version=5, topics=5).ok
    with pytest.raises(Fenced, match=r"^version: 4, in force is 5$"):
        limit(group, version=4, topics=4).or_raise()
    assert limit(group, version=5, topics=5).ok
    assert limit(group, version=5, topics=3).ok, "the share of a kind that has got more groups"
    older = DropQuotas(controller_epoch=1, items=(QuotaVersion("acme", 4),))
    assert group.run(older)[0].code == "FENCED"
    assert group.ask(ListQuotas()).quotas == (GroupQuota("acme", 5, topics=3),)


def test_an_old_controller_is_fenced() -> None:
    """Reference defect 15: two controllers may live at once; the older one decides nothing."""
    group = Group("offset")
    limit(group, epoch=7, topics=1)
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        limit(group, epoch=6, version=9, topics=2)
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        group.run(DropQuotas(controller_epoch=6, items=(QuotaVersion("acme", 9),)))


def test_a_dropped_quota_leaves_no_debt_behind() -> None:
    group = Group("offset")
    limit(group, offset_commits_per_s=1)
    group.run(commit(500))
    group.run(DropQuotas(controller_epoch=1, items=(QuotaVersion("acme", 1),)))
    assert group.rows("group.rate_level") == 0
    limit(group, version=2, offset_commits_per_s=1)
    group.run(commit(1))


ROW = GroupQuota("acme", 1)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (SetQuotas(controller_epoch=0, items=(ROW,)), "controller_epoch"),
        (SetQuotas(controller_epoch=1, items=()), "items"),
        (SetQuotas(controller_epoch=1, items=(replace(ROW, tenant=""),)), "tenant"),
        (SetQuotas(controller_epoch=1, items=(replace(ROW, version=0),)), "version"),
        (SetQuotas(controller_epoch=1, items=(replace(ROW, topics=-1),)), "topics"),
        (SetQuotas(controller_epoch=1, items=(replace(ROW, sessions=LIMIT_MAX + 1),)), "sessions"),
        (
            SetQuotas(controller_epoch=1, items=(replace(ROW, session_opens_per_s=-1),)),
            "session_opens_per_s",
        ),
        (
            SetQuotas(controller_epoch=1, items=(replace(ROW, offset_commits_per_s=-1),)),
            "offset_commits_per_s",
        ),
        (SetQuotas(controller_epoch=1, items=(replace(ROW, clean=True),)), "clean"),
        (DropQuotas(controller_epoch=0, items=(QuotaVersion("a", 1),)), "controller_epoch"),
        (DropQuotas(controller_epoch=1, items=()), "items"),
        (DropQuotas(controller_epoch=1, items=(QuotaVersion("", 1),)), "tenant"),
        (DropQuotas(controller_epoch=1, items=(QuotaVersion("a", 0),)), "version"),
        (GetUsage(tenant=""), "tenant"),
    ],
)
def test_limits(operation: Any, field: str) -> None:
    group = Group("metadata")
    limit(group, topics=4)
    group.beyond(operation, field)


def test_the_limits_themselves_are_within() -> None:
    group = Group("mqtt")
    row = GroupQuota("t" * 256, 2**63 - 1, False, LIMIT_MAX, LIMIT_MAX, LIMIT_MAX, LIMIT_MAX)
    assert group.run(SetQuotas(controller_epoch=1, items=(row,)))[0].ok
    for _ in range(3):
        group.run(opens("c1", "c2", tenant="t" * 256))
        group.later(4_000_000_000)
