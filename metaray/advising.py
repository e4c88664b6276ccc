"""Advice from a report into the cluster, and from there to what was done.

`metaray report hotspots` finds what could be done and writes it down (`advice.parquet`); `submit`
puts it into `metadata-0`, where the controller and whoever looks after the cluster see it. Putting
it again changes nothing. `leaders` is what the report cannot know from rows: which node each seat
is on, and who leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from actors.duties.advice import led_of
from actors.planners.advice import Led, refusal
from jobs.pages import NOT_PARQUET
from state_machines.batch import Outcome
from state_machines.errors import Conflict, Invalid, NotFound, Unknown
from state_machines.metadata.advice import (
    ADVICE,
    APPLIED,
    APPLYING,
    LEADER,
    OPEN,
    QUOTA,
    STATES,
    UNDOING,
    Advice,
    GetAdvice,
    NewAdvice,
    PutAdvice,
)
from state_machines.metadata.config import ResolveConfigs
from state_machines.metadata.tenant import GetTenant, TenantQuotas

FILE: Final = "advice.parquet"
JOB: Final = "hotspots"
LEADERS: Final = "leaders"  #: the input of it that no cut has
ROWS_MAX: Final = 1_000  #: of advice in one file: a report has a few of each kind
SETTLED: Final = tuple([each for each in STATES if each not in (*OPEN, APPLYING, UNDOING)])

FIELDS: Final = (
    *("id", "kind", "target", "limit", "number", "source", "destination"),
    *("reason", "evidence", "predicted", "start_ms", "expires_ms"),
)


class Calls(Protocol):
    """A client that waits for its answers."""

    def call(self, operation: Any, /) -> Any:
        """The reply of a command or query."""
        ...


class Watching(Protocol):
    """A client that does not, and that can be told of changes."""

    async def call(self, operation: Any, /) -> Any:
        """The reply of a command or query."""
        ...

    def watch(self, table: Any, *, from_revision: int | None) -> AsyncIterator[Any]:
        """Every change of a table after a revision."""
        ...


def found(path: Path) -> Path:
    """The file of advice in a report's directory, or in one of reports; or the file itself."""
    for each in (path, path / FILE, path / JOB / FILE):
        if each.is_file():
            return each
    raise Invalid(f"report: {path} has no {FILE}; `metaray report {JOB}` writes it")


def read(path: Path) -> list[NewAdvice]:
    """The advice of a report. Raises Invalid naming the file, or the field that is wrong."""
    path = found(path)
    try:
        with pq.ParquetFile(path) as file:
            rows = file.metadata.num_rows
            if rows > ROWS_MAX:
                raise Invalid(f"report: {path} has {rows} rows of advice, the limit is {ROWS_MAX}")
            table = file.read(columns=list(FIELDS))
    except NOT_PARQUET as error:
        raise Invalid(f"report: {path} is no Parquet file of advice: {error}") from error
    if missing := [name for name in FIELDS if name not in table.column_names]:
        raise Invalid(f"report: {path} has no column {missing[0]}")
    return [NewAdvice(**row) for row in table.to_pylist()]


def submit(client: Calls, advice: Sequence[NewAdvice]) -> tuple[Outcome, ...]:
    """Put advice. An outcome for each; one that is there already is OK and stays as it is."""
    if not advice:
        return ()
    outcomes: tuple[Outcome, ...] = client.call(PutAdvice(items=tuple(advice)))
    return outcomes


def mode_of(client: Calls) -> str:
    """What the controller does with advice now."""
    (setting,) = client.call(ResolveConfigs(keys=("advice_mode",)))
    return str(setting.text)


def held(client: Calls, advice_id: str) -> Advice:
    """An advice. Raises NotFound."""
    row: Advice | None = client.call(GetAdvice(id=advice_id))
    if row is None:
        raise NotFound(f"id: there is no advice {advice_id!r}")
    return row


async def settled(client: Watching, command: Any, seconds: float) -> Advice:
    """Command something of one advice, and wait until nobody is at it any more.

    Raises what the command is refused with, and Unknown when the time is over: the controller goes
    on, and the advice says what becomes of it.
    """
    (outcome,) = await client.call(command)
    revision = outcome.or_raise().revision
    (advice_id,) = command.ids
    row: Advice | None = await client.call(GetAdvice(id=advice_id))
    try:
        async with asyncio.timeout(seconds):
            if row is None or row.state not in SETTLED:
                async for change in client.watch(ADVICE, from_revision=revision):
                    if change.key != (advice_id,):
                        continue
                    row = change.row
                    if row is None or row.state in SETTLED:
                        break
    except TimeoutError:
        state = "gone" if row is None else row.state
        raise Unknown(
            f"id: {advice_id} is {state} after {seconds:.0f} s; `metaray controller` says what "
            "its duty does, `metaray advice show` what becomes of it"
        ) from None
    if row is None:
        raise NotFound(f"id: advice {advice_id!r} is gone")
    return row


def check_carried_out(row: Advice, wanted: str) -> None:
    """Raise Conflict, with what the advice says of it, unless it came to what was wanted."""
    if row.state != wanted:
        raise Conflict(f"id: {row.id} is {row.state}: {row.note}")


# -- what would be done --------------------------------------------------------------------------


def foretold(client: Calls, row: Advice, groups: dict[str, Any] | None) -> str:
    """What applying an advice would do now, or undoing one that was applied; nothing is changed.

    `groups` are those of `overview`; a limit needs none. Raises Conflict where it would be refused.
    """
    back = row.state in (APPLIED, UNDOING)
    if not back and row.state not in OPEN:
        raise Conflict(f"id: {row.id} is {row.state}")
    if row.kind == QUOTA:
        return _limit_foretold(client, row, back=back)
    if row.kind == LEADER:
        return _move_foretold(row, _led(groups or {}, row.target), back=back)
    raise Conflict(f"id: {row.kind!r} is done by hand: {row.reason}")


def _limit_foretold(client: Calls, row: Advice, *, back: bool) -> str:
    tenant = client.call(GetTenant(name=row.target))
    quotas = TenantQuotas() if tenant is None else tenant.quotas
    now: int = getattr(quotas, row.limit)
    if back and str(now) != row.after:
        raise Conflict(f"{row.limit}: it is {now} now, {row.after} was set: changed since")
    if not back and 0 < now <= row.number:
        raise Conflict(f"{row.limit}: it is {now} already, {row.number} is no less")
    then = row.before if back else str(row.number)
    said = {"0": "no limit"}
    recorded = "" if tenant is not None else " (the tenant is recorded for it)"
    return (
        f"{row.limit} of tenant {row.target!r}: {said.get(str(now), now)} -> "
        f"{said.get(then, then)}{recorded}"
    )


def _move_foretold(row: Advice, led: Led | None, *, back: bool) -> str:
    if led is None:
        raise Conflict(f"target: {row.target} has no leader now")
    away, to = (row.after, row.before) if back else (row.source, row.destination)
    if back and led.leader != away:
        raise Conflict(f"target: {row.target} is led by {led.leader}: changed since")
    if not back and (why := refusal(row, led)):
        raise Conflict(f"target: {why}")
    return f"leadership of {row.target}: {away} -> {to}"


def _led(groups: dict[str, Any], name: str) -> Led | None:
    group = groups.get(name, {"leader": "", "replicas": ()})
    for each in group["replicas"]:
        if each["seat"] == group["leader"]:
            return led_of(each)
    return None


def write_leaders(groups: dict[str, Any], path: Path) -> int:
    """Write `leaders` into a Parquet file, as a report reads them. Returns how many seats there
    are; raises OSError."""
    from jobs import advice  # which brings Spark: only who writes for it needs that

    rows = leaders(groups)
    pq.write_table(pa.Table.from_pylist(rows, schema=advice.LEADERS), path)
    return len(rows)


def leaders(groups: dict[str, Any]) -> list[dict[str, Any]]:
    """The voters of each group that has a leader, each with its node (`jobs.advice.LEADERS`)."""
    rows = []
    for name, group in sorted(groups.items()):
        led = _led(groups, name)
        if led is None:
            continue
        rows += [
            {
                "group": name,
                "seat": each["seat"],
                "node": each["node"],
                "leads": each["seat"] == led.leader,
            }
            for each in group["replicas"]
            if each["seat"] in led.voters and each["node"]
        ]
    return rows
