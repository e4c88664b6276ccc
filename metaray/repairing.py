"""Repair: what fsck found is put right by commands that hold only if it is still so.

    plan = Plan.read(Path("build/fsck/fsck/findings.parquet"))
    told = await repair(client, plan)

A plan is the findings of the job `fsck`, as it wrote them. Each finding that has a command becomes
one transaction in the finding's own group: the row is still at the revision that the cut saw, and
then the command. So a plan that is old, or executed twice, changes nothing that it did not mean.

Indexes and counts come first (`STRUCTURAL`), because ordinary commands rely on them. In a group
where one of those could not be repaired, ordinary commands are held back until fsck has run again.
What a finding says of another group than its own is asked again before anything is done.
"""

from __future__ import annotations

import asyncio
import base64
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.integrity.rule import COUNT, FINDINGS, ROW, STRUCTURAL
from jobs.pages import NOT_PARQUET
from jobs.schemas import project
from metaray.cli.values import fields_from_json, parsed
from metaray.transactions import Calls
from state_machines import op
from state_machines.batch import Outcome
from state_machines.errors import Invalid, Rejected
from state_machines.keyvalue import Part
from state_machines.metadata.node import GetNode
from state_machines.metadata.topic import DELETING, GetTopicConfig
from state_machines.mqtt.session import GetSession
from state_machines.repair import RepairCount, RepairRow
from state_machines.row_key import pack
from state_machines.tables import TABLES
from state_machines.transaction import EQUAL, Compare, Transaction

COMMANDS: Final = frozenset(
    {
        *(ROW, COUNT),
        *("mqtt.session.close", "mqtt.session.delete", "mqtt.retained.delete"),
        *("mqtt.connector.update", "mqtt.share.leave", "offset.delete", "group.lease.revoke"),
    }
)
"""What a plan may have executed. It may come from a file, so nothing else is."""

BATCH: Final = 256  #: findings that are repaired at a time
DETAILS: Final = 20  #: of what was not done that are told in words

DONE: Final = "done"
RIGHT: Final = "right"  #: it is right by now, nothing was to do
CHANGED: Final = "changed"  #: the row is not what the cut saw
REFUSED: Final = "refused"
HELD: Final = "held back"
OUTCOMES: Final = (DONE, RIGHT, CHANGED, REFUSED, HELD)

Finding = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The findings of a run of fsck, in the file that it wrote."""

    path: Path

    def findings(self) -> Iterator[list[Finding]]:
        """The findings, some at a time. Raises Invalid for a file that has none."""
        empty = pa.RecordBatch.from_pylist([], schema=FINDINGS)
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(BATCH, columns=empty.schema.names):
                    yield project(batch, FINDINGS, "plan").to_pylist()
        except NOT_PARQUET as error:
            raise Invalid(f"plan: {self.path} has no findings of fsck: {error}") from None

    def commands(self) -> dict[tuple[str, str], int]:
        """How many findings of each rule each command would repair; the command is empty where
        there is none."""
        found: Counter[tuple[str, str]] = Counter()
        for some in self.findings():
            found.update((each["rule"], each["repair"] or "") for each in some)
        return dict(sorted(found.items()))


@dataclass(slots=True)
class Told:
    """What came of a plan: how often, by rule and outcome, and some of what was not done."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    def add(self, finding: Finding, outcome: str, detail: str = "") -> None:
        """One more."""
        self.counts[finding["rule"], outcome] += 1
        if outcome not in (DONE, RIGHT) and len(self.details) < DETAILS:
            said = f"{finding['rule']} {finding['table']} {finding['key']}: {outcome}"
            self.details.append(f"{said}, {detail}" if detail else said)

    def total(self, outcome: str) -> int:
        """How many findings ended so, of all rules."""
        return sum(count for (_, each), count in self.counts.items() if each == outcome)


async def repair(client: Calls, plan: Plan) -> Told:
    """Execute a plan. Raises Invalid, before it begins, for one that asks for what is no repair."""
    for some in plan.findings():
        for each in some:
            if each["repair"] is not None:
                transaction(each)
    told = Told()
    broken: set[str] = set()
    for commands in ({COUNT}, {ROW}, COMMANDS - {COUNT, ROW}):
        for some in plan.findings():
            wanted = [each for each in some if each["repair"] in commands]
            outcomes = await asyncio.gather(*(_one(client, each, broken) for each in wanted))
            for each, (outcome, detail) in zip(wanted, outcomes, strict=True):
                told.add(each, outcome, detail)
                if each["repair"] in STRUCTURAL and outcome not in (DONE, RIGHT):
                    broken.add(each["group"])
    return told


async def _one(client: Calls, finding: Finding, broken: set[str]) -> tuple[str, str]:
    if finding["group"] in broken and finding["repair"] not in STRUCTURAL:
        return HELD, f"{finding['group']} has what could not be repaired; run fsck again"
    asked = transaction(finding)
    try:
        if not await _still(client, finding):
            return CHANGED, "another group says that it is right by now"
        reply = asked.answers(await client.call(asked, group=finding["group"]))
    except Rejected as error:
        return REFUSED, error.detail
    if not reply.succeeded:
        return CHANGED, ""
    (answer,) = reply.replies
    for each in answer if isinstance(answer, tuple) else ():
        if isinstance(each, Outcome) and not each.ok:
            return REFUSED, each.detail
    return (RIGHT, "") if answer is False else (DONE, "")


async def _still(client: Calls, finding: Finding) -> bool:
    """Whether what the finding says of another group is still so."""
    if finding["recheck"] is None:
        return True
    match _object(finding, "recheck"):
        case {"node": str(node_id)}:
            node = await client.call(GetNode(node_id=node_id))
            return node is None or not node.online
        case {"session": [str(tenant), str(client_id)]}:
            found = await client.call(GetSession(tenant=tenant, client_id=client_id))
            return found is None
        case {"topic": [str(tenant), str(name)]}:
            topic = await client.call(GetTopicConfig(tenant=tenant, name=name))
            return topic is None or topic.state == DELETING
    raise Invalid(f"recheck: {finding['recheck'][:80]!r} is not known")


def transaction(finding: Finding) -> Transaction:
    """The finding's repair: its command, under the condition that the row is still what it was.

    Raises Invalid for a finding that names no table, key or command that there is.
    """
    table = TABLES.get(finding["table"])
    if table is None:
        raise Invalid(f"table: there is none named {finding['table'][:80]!r}")
    key = _key(finding)
    compare = []
    if finding["revision"] is not None:
        revision = finding["revision"]
        compare = [Compare.revision_is(table, *key, relation=EQUAL, revision=revision)]
    made = Transaction.of(compare=compare, then=[_command(finding, key)])
    op.validate(made)
    return made


def _command(finding: Finding, key: tuple[Part, ...]) -> Any:
    tag = finding["repair"]
    if tag not in COMMANDS:
        raise Invalid(f"repair: {str(tag)[:80]!r} is no repair")
    if tag == ROW:
        return RepairRow(table=finding["table"], key=pack(key))
    body = _object(finding, "repair_body")
    cls = op.COMMANDS[tag]
    try:
        if tag == COUNT:
            body = {**body, "table": finding["table"], "key": ""}
            fields = fields_from_json(RepairCount, body, "repair_body")
            return RepairCount(**{**fields, "key": pack(key)})
        return cls(**fields_from_json(cls, body, "repair_body"))
    except TypeError as error:
        raise Invalid(f"repair_body: {error}") from None


def _key(finding: Finding) -> tuple[Part, ...]:
    table = TABLES[finding["table"]]
    said = _object(finding, "key")
    hints = typing.get_type_hints(table.row)
    parts: list[Part] = []
    for name in table.key:
        if name not in said:
            raise Invalid(f"key: {name} of {table.name} is missing")
        part = said[name]
        if hints[name] is bytes and isinstance(part, str):
            part = _bytes(part)
        if type(part) is not hints[name]:
            raise Invalid(f"key: {name} of {table.name} is no {hints[name].__name__}")
        parts.append(part)
    return tuple(parts)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Invalid(f"key: {text[:40]!r} is not base64") from None


def _object(finding: Finding, name: str) -> dict[str, Any]:
    text = finding[name] or ""
    if not text.startswith("{"):
        raise Invalid(f"{name}: an object is wanted, not {text[:40]!r}")
    found: dict[str, Any] = parsed(text, name)
    return found
