"""How much was done in each window of time, about what, and how much will be.

The operation history is cut into windows of `window_ms`. `loads` says of each window how many
operations each Raft group committed for each tenant, topic, consumer group, client and writer (a
process that sends commands); `series` has every window of every Raft group and broker, also those
in which nothing happened; `forecast` goes on from there.

Only whole windows count: the one that `now_ms` lies in is left out. It is a moment up to which the
history is known: the exporter may be behind the service. An operation is what `items`
counts, so a batch of a thousand commits is a thousand; `commands` are rows of the history.

A forecast is the straight line through the last windows (least squares), or their mean where that
would have been the better guess for the last window. That guess, made from the windows before it
alone, is kept beside what was measured: so much for what it is worth.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from jobs.churn import OPENING
from jobs.operations import SUBJECT_DIGITS, SUBJECT_KEPT, SUBJECT_MAX
from jobs.schemas import require, sql


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


LOADS = pa.schema(
    [
        _not_null("start_ms", pa.int64()),  # of the window, Unix milliseconds
        _not_null("within", pa.string()),  # the Raft group; of a Raft group: its kind
        _not_null("of", pa.string()),  # what `name` is
        _not_null("tenant", pa.string()),
        _not_null("name", pa.string()),
        _not_null("commands", pa.int64()),
        pa.field("operations", pa.int64()),  # null: more than 64 bits hold
        pa.field("bytes", pa.int64()),
    ]
)
"""One row for each window and whatever something was done about in it."""

SERIES = pa.schema(
    [
        _not_null("of", pa.string()),  # group, broker
        _not_null("name", pa.string()),
        _not_null("start_ms", pa.int64()),
        _not_null("commands", pa.int64()),
        pa.field("operations", pa.int64()),  # null too: the history lacks entries of the window
        pa.field("bytes", pa.int64()),
        pa.field("per_s", pa.float64()),  # operations a second
    ]
)
"""One row for each window of each Raft group and broker, from the first window to the last."""

FORECAST = pa.schema(
    [
        _not_null("of", pa.string()),
        _not_null("name", pa.string()),
        _not_null("start_ms", pa.int64()),  # of a window that is to come
        _not_null("ahead", pa.int64()),  # 1: the next one
        pa.field("per_s", pa.float64()),
        _not_null("method", pa.string()),  # trend, mean
        pa.field("guess_per_s", pa.float64()),  # what it would have said of the last window
        pa.field("last_per_s", pa.float64()),  # and what that was
        pa.field("error", pa.float64()),  # their difference, as a part of the larger one
    ]
)
"""One row for each window to come of each Raft group and broker. No guess: too few windows."""


OF_CLIENTS: Final = "^mqtt-[0-9]+$"  #: Raft groups that keep clients, and their sessions

PLACES: Final = 6
"""Decimal places of what is fitted."""


def end_of(now_ms: int, window_ms: int) -> int:
    """Where the last whole window ends."""
    return now_ms - now_ms % window_ms


def loads(operations: DataFrame, now_ms: int, window_ms: int, windows: int) -> DataFrame:
    """OPERATIONS to LOADS, of the last whole `windows`.

    The limits of a tenant, `offset_commits_per_s` and `session_opens_per_s`, count `offset.commit`
    and the sessions that are opened; what they count is told under their names.
    """
    end_ms = end_of(now_ms, window_ms)
    result = sql(
        operations,
        """
        with known as (
            select at_ms - at_ms % {window_ms} as start_ms, items, bytes, client, tenant, subject,
                `group`, op = 'offset.commit' as commits,
                op in {opening} as opens,
                case when op like 'offset.%' then 'consumer'
                    when op like 'mqtt.session.%' or op like 'mqtt.subscription.%'
                        or op like 'mqtt.will.%' then 'client'
                    when op like 'mqtt.retained.%' or op like 'mqtt.topic.%'
                        or op like 'metadata.topic.%' then 'topic'
                    else '' end as sort
            from {operations} where at_ms >= {begin_ms} and at_ms < {end_ms}
        ), told as (
            select start_ms, items, bytes, inline(filter(array(
                named_struct('within', regexp_extract(`group`, '^(.*)-[0-9]+$', 1), 'of', 'group',
                    'tenant', '', 'name', `group`),
                named_struct('within', `group`, 'of', 'writer', 'tenant', '', 'name', client),
                if(tenant != '', named_struct('within', `group`, 'of', 'tenant',
                    'tenant', tenant, 'name', tenant), null),
                if(subject != '' and sort != '', named_struct('within', `group`, 'of', sort,
                    'tenant', tenant, 'name', subject), null),
                if(subject != '' and commits, named_struct('within', `group`, 'of', 'commits',
                    'tenant', tenant, 'name', subject), null),
                if(subject != '' and opens, named_struct('within', `group`, 'of', 'opens',
                    'tenant', tenant, 'name', subject), null),
                if(tenant != '' and commits, named_struct('within', `group`,
                    'of', 'offset_commits_per_s', 'tenant', tenant, 'name', tenant), null),
                if(tenant != '' and opens, named_struct('within', `group`,
                    'of', 'session_opens_per_s', 'tenant', tenant, 'name', tenant), null)
            ), each -> each is not null))
            from known
        )
        select start_ms, `within`, `of`, tenant, name, count(*) as commands,
            try_sum(items) as operations, try_sum(bytes) as bytes
        from told group by start_ms, `within`, `of`, tenant, name
        """,
        operations=operations,
        opening=OPENING,
        window_ms=window_ms,
        begin_ms=end_ms - windows * window_ms,
        end_ms=end_ms,
    )
    return require(result, LOADS, "loads")


def series(
    loads: DataFrame,
    sessions: DataFrame,
    unknown: DataFrame,
    now_ms: int,
    window_ms: int,
    cut: Collection[str] = (),
) -> DataFrame:
    """LOADS to SERIES. A broker's load is what was done about the clients that `sessions` (tenant,
    client_id, broker) has at it now. The history has them by `operations.subject_name`.

    A window of a Raft group that lies in UNKNOWN (`jobs.unknown`) has no numbers, for nothing is
    not what was done. Nor has that of a broker in which a group of its clients' kind is not whole,
    or is not among the groups of the `cut` that `sessions` are from: its clients may be in there.
    """
    result = sql(
        loads,
        """
        with parts as (
            select `of`, name, start_ms, commands, operations, bytes
            from {loads} where `of` = 'group'
            union all
            select 'broker', s.broker, l.start_ms, l.commands, l.operations, l.bytes
            from {loads} l join {sessions} s on s.tenant = l.tenant and l.name = if(
                char_length(s.client_id) < {subject_max} or char_length(s.client_id) = {subject_max}
                    and substring(s.client_id, {kept} + 1, 1) != '~',
                s.client_id,
                concat(substring(s.client_id, 1, {kept}), '~',
                    substring(sha2(s.client_id, 256), 1, {digits})))
            where l.`of` = 'client' and s.broker != ''
        ), found as (
            select `of`, name, start_ms, sum(commands) as commands,
                try_sum(operations) as operations, try_sum(bytes) as bytes
            from parts group by `of`, name, start_ms
        ), named as (
            select `of`, name, start_ms from found
            union all select 'group', `group`, null from {unknown}
        ), spans as (
            select `of`, name, min(min(start_ms)) over () as first_ms from named group by `of`, name
        ), every as (
            select `of`, name, explode(sequence(
                first_ms, cast({last_ms} as bigint), cast({window_ms} as bigint))) as start_ms
            from spans
        ), lost as (
            select distinct e.`of`, e.name, e.start_ms
            from every e join {unknown} u on coalesce(u.from_ms, 0L) < e.start_ms + {window_ms}
                and u.to_ms >= e.start_ms and (e.`of` = 'group' and u.`group` = e.name
                    or e.`of` = 'broker' and u.`group` rlike {of_clients})
            union
            select e.`of`, e.name, e.start_ms from every e join (
                select distinct start_ms from {loads}
                where `of` = 'client' and {cut} != '' and find_in_set(`within`, {cut}) = 0
            ) l on e.`of` = 'broker' and l.start_ms = e.start_ms
        ), whole as (
            select e.`of`, e.name, e.start_ms, coalesce(f.commands, 0) as commands,
                case when x.name is not null then null when f.commands is null then 0
                    else f.operations end as operations,
                case when x.name is not null then null when f.commands is null then 0
                    else f.bytes end as bytes
            from every e left join found f
                on f.`of` = e.`of` and f.name = e.name and f.start_ms = e.start_ms
            left join lost x on x.`of` = e.`of` and x.name = e.name and x.start_ms = e.start_ms
        )
        select *, operations * 1000D / {window_ms} as per_s from whole
        """,
        loads=loads,
        sessions=sessions,
        unknown=unknown,
        subject_max=SUBJECT_MAX,
        kept=SUBJECT_KEPT,
        digits=SUBJECT_DIGITS,
        last_ms=end_of(now_ms, window_ms) - window_ms,
        window_ms=window_ms,
        of_clients=OF_CLIENTS,
        cut=",".join(sorted(cut)),
    )
    return require(result, SERIES, "series")


def forecast(
    series: DataFrame, now_ms: int, window_ms: int, *, trend_windows: int, ahead: int
) -> DataFrame:
    """SERIES to FORECAST: of the next `ahead` windows, by the last `trend_windows`."""
    result = sql(
        series,
        """
        with placed as (  -- the last window is -1, the next one 0
            select `of`, name, (start_ms - {end_ms}) div {window_ms} as x, per_s as y from {series}
        ), fitted as (  -- rounded: sums of doubles depend on the order in which tasks end
            select `of`, name,
                round(regr_slope(y, x) filter (where x >= -{many}), {places}) as slope,
                round(regr_intercept(y, x) filter (where x >= -{many}), {places}) as start,
                round(avg(y) filter (where x >= -{many}), {places}) as mean,
                round(regr_intercept(y, x) filter (where x >= -{many} - 1 and x < -1)
                    - regr_slope(y, x) filter (where x >= -{many} - 1 and x < -1),
                    {places}) as line_before,
                round(avg(y) filter (where x >= -{many} - 1 and x < -1), {places}) as mean_before,
                max(y) filter (where x = -1) as last_per_s
            from placed group by `of`, name
        ), chosen as (
            select *, coalesce(
                abs(line_before - last_per_s) <= abs(mean_before - last_per_s), false) as trend
            from fitted
        ), told as (
            select *, if(trend, line_before, mean_before) as guess,
                explode(sequence(1L, cast({ahead} as bigint))) as ahead
            from chosen
        ), guessed as (
            select *, if(guess < 0, 0D, guess) as guess_per_s,
                if(trend, start + slope * (ahead - 1), mean) as y
            from told
        )
        select `of`, name, {end_ms} + (ahead - 1) * {window_ms} as start_ms, ahead,
            if(y < 0, 0D, y) as per_s, if(trend, 'trend', 'mean') as method,
            guess_per_s, last_per_s,
            case when guess_per_s = last_per_s then 0D
                else abs(guess_per_s - last_per_s)
                    / if(guess_per_s > last_per_s, guess_per_s, last_per_s) end as error
        from guessed
        """,
        series=series,
        end_ms=end_of(now_ms, window_ms),
        window_ms=window_ms,
        many=trend_windows,
        places=PLACES,
        ahead=ahead,
    )
    return require(result, FORECAST, "forecast")
