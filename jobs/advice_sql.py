"""The queries of `jobs.advice`, one for each kind of advice.

Each gives kind, target, limit, number, source, destination, reason, evidence, predicted, start_ms
and weight: by the weight, the largest first, so many of a kind are kept.
"""

from __future__ import annotations

from typing import Final

COMMIT_STORM, FLAPPING, CHURN = "commit storm", "flapping client", "session churn"

QUOTAS: Final = """
with next as (select name, per_s, regexp_extract(name, '^(.*)-[0-9]+$', 1)
        as kind from {forecast} where `of` = 'group' and ahead = 1
), latest as (
    select name as target, `of` as `limit`, max_by(struct(`within`, start_ms, operations, per_s,
        share, times, median, others, total), struct(start_ms, operations)) as at
    from {hot} where start_ms >= {fresh_ms} and `of` in ('offset_commits_per_s',
        'session_opens_per_s') group by name, `of`
), flat as (select target, `limit`, at.* from latest
), capped as (
    select f.*, n.per_s as forecast_per_s,
        greatest(ceil(median * {hot_times} * 1000D / {window_ms}), 1L) as one,
        (select count(*) from next k where k.kind = n.kind) as many
    from flat f join next n on n.name = f.`within`
), after as (
    select *, total * 1000D / {window_ms} - per_s + one as left_per_s from capped
), found as (
    select target, `limit`, least(one * many, cast({most} as bigint)) as number,
        format_string(concat('tenant %s made %d of %d %s of %s in %.0f s (%.1f %%), ',
                '%.1f times the median of %d tenants'),
            substring(target, 1, {shown}), operations, total,
            if(`limit` = 'offset_commits_per_s', 'offset commits', 'session opens'), `within`,
            cast({seconds} as double), share * 100, times, others + 1) as reason,
        to_json(struct(`within`, operations, total, median, others, round(share, 3) as share,
            round(times, 3) as times, round(per_s, 3) as per_s,
            round(forecast_per_s, 3) as forecast_per_s)) as evidence,
        to_json(struct(`within` as `group`, round(left_per_s, 3) as per_s,
            round(one / left_per_s, 3) as share, one as tenant_per_s)) as predicted,
        start_ms, per_s as weight
    from after
    union all
    select name, 'session_opens_per_s', cast({storm_opens_per_s} as bigint),
        format_string('clients of tenant %s opened %d sessions in %.0f s in %s, %.1f a second',
            substring(name, 1, {shown}), operations, cast({seconds} as double), `within`, per_s),
        to_json(struct(`within`, operations, windows, round(per_s, 3) as per_s)),
        to_json(struct({storm_opens_per_s} as tenant_per_s)), last_ms, per_s
    from {storms} where what = 'session churn' and last_ms >= {fresh_ms}
), lowest as (
    select *, row_number() over (partition by target, `limit` order by number, start_ms, reason)
        as place from found
)
select 'quota' as kind, target, `limit`, number, '' as source, '' as destination, reason, evidence,
    predicted, start_ms, weight
from lowest left join {tenants} t on t.name = target
where place = 1 and (coalesce(if(`limit` = 'offset_commits_per_s', t.quotas.offset_commits_per_s,
        t.quotas.session_opens_per_s), 0) = 0
    or if(`limit` = 'offset_commits_per_s', t.quotas.offset_commits_per_s,
        t.quotas.session_opens_per_s) > number)
"""

LEADER: Final = """
with seats as (
    select l.`group`, seat, node, leads, if(f.name is null, 0D, f.per_s) as per_s
    from {leaders} l left join {forecast} f
        on f.`of` = 'group' and f.ahead = 1 and f.name = l.`group`
), nodes as (  -- a load that is not known is not nothing
    select node, round(coalesce(sum(if(leads, per_s, 0D)), 0D), 6) as load,
        bool_or(leads and per_s is null) as unclear
    from seats group by node
), whole as (  -- two nodes change, so the highest of the others is among the three highest
    select max(load) as highest, round(avg(load), 6) as mean,
        slice(sort_array(collect_list(struct(load, node)), false), 1, 3) as top from nodes
), moved as (
    select a.`group`, a.per_s, a.seat as source, b.seat as destination, a.node as from_node,
        b.node as to_node, x.load, highest, mean,
        greatest(x.load - a.per_s, y.load + a.per_s, coalesce(array_max(transform(
            filter(top, each -> each.node != a.node and each.node != b.node),
            each -> each.load)), 0D)) as after
    from seats a join seats b on a.`group` = b.`group` and a.leads and not b.leads
            and a.node != b.node
        join nodes x on x.node = a.node join nodes y on y.node = b.node cross join whole
    where a.per_s > 0 and not y.unclear
)
select 'leader' as kind, `group` as target, '' as `limit`, 0L as number, source, destination,
    format_string(concat('the leaders on node %s will do %.1f operations a second, %.1f times the ',
            'mean of the nodes; %.1f of them are those of %s'),
        substring(from_node, 1, 12), load, load / mean, per_s, `group`) as reason,
    to_json(struct(from_node, to_node, round(per_s, 3) as per_s, round(highest, 3) as highest,
        round(mean, 3) as mean)) as evidence,
    to_json(struct(round(after, 3) as highest, round(mean, 3) as mean)) as predicted,
    cast({last_ms} as bigint) as start_ms, per_s as weight
from moved where highest * 100 >= mean * {uneven} and after <= highest * 0.9D
order by after, `group`, destination limit 1
"""

SLOTS: Final = """
with ranges as (select kind, explode(ranges) as each from {slots}
), owned as (
    select kind, each.`group` as `group`, sum(each.last - each.first + 1) as slots
    from ranges where each.`group` != '' group by kind, each.`group`
), known as (
    select o.*, if(f.name is null, 0D, f.per_s) as per_s from owned o left join {forecast} f
        on f.`of` = 'group' and f.ahead = 1 and f.name = o.`group`
), whole as (
    select kind, round(avg(per_s), 6) as mean,
        min(struct(per_s as load, `group` as name)) as emptiest
    from known where per_s is not null group by kind
), moved as (
    select *, floor(slots * (per_s - emptiest.load) / (per_s * 2)) as number
    from known join whole using (kind)
    where per_s > 0 and per_s * 100 >= mean * {uneven}
)
select 'slots' as kind, `group` as target, '' as `limit`, number, `group` as source,
    emptiest.name as destination,
    format_string(concat('%s will do %.1f operations a second with %d slots, %.1f times the mean ',
            'of its kind; %d of them would make it even with %s'),
        `group`, per_s, slots, per_s / mean, number, emptiest.name) as reason,
    to_json(struct(slots, round(per_s, 3) as per_s, round(mean, 3) as mean)) as evidence,
    to_json(struct(round(per_s - per_s * number / slots, 3) as source_per_s,
        round(emptiest.load + per_s * number / slots, 3) as destination_per_s)) as predicted,
    cast({last_ms} as bigint) as start_ms, per_s as weight
from moved where number > 0
"""

BROKERS: Final = """
with here as (
    select broker, 1L as one, 0L as online from {sessions} where connected and broker != ''
    union all select node_id, 0L, 1L from {nodes} where online
), every as (
    select broker, sum(one) as sessions, max(online) as online, max(max(online)) over () as known
    from here group by broker
), counted as (select broker, sessions from every where online = known  -- a dead one takes none
), whole as (select avg(sessions) as mean, min(struct(sessions, broker)) as emptiest from counted
), full as (
    select c.*, mean, emptiest, floor(sessions - mean) as number,
        if(f.name is null, 0D, f.per_s) as per_s
    from counted c cross join whole left join {forecast} f
        on f.`of` = 'broker' and f.ahead = 1 and f.name = c.broker
)
select 'broker' as kind, broker as target, '' as `limit`, number, broker as source,
    emptiest.broker as destination,
    format_string('broker %s has %d sessions, %.1f times the mean; %s has %d',
        substring(broker, 1, {shown}), sessions, sessions / mean,
        substring(emptiest.broker, 1, {shown}), emptiest.sessions) as reason,
    to_json(struct(sessions, round(mean, 3) as mean, round(per_s, 3) as per_s)) as evidence,
    to_json(struct(sessions - number as sessions,
        round(per_s * (sessions - number) / sessions, 3) as per_s)) as predicted,
    cast({last_ms} as bigint) as start_ms, cast(sessions as double) as weight
from full where sessions * 100 >= mean * {uneven} and number >= {uneven_sessions}
"""

STORMS: Final = """
with fresh as (
    select *, what = 'commit storm' as commits, concat_ws('/', tenant, name) as whole
    from {storms} where what in ('commit storm', 'flapping client') and last_ms >= {fresh_ms}
)
select if(commits, 'storm', 'client') as kind,
    if(octet_length(whole) <= {bytes}, whole, concat(substring(tenant, 1, 20), '/',
        substring(name, 1, 20), '~', substring(sha2(whole, 256), 1, 16))) as target,
    '' as `limit`, 0L as number, '' as source, '' as destination,
    format_string('%s %s of tenant %s %s %d times in %.0f s in %s, %.1f a second',
        if(commits, 'consumer group', 'client'), substring(name, 1, {shown}),
        substring(tenant, 1, {shown}), if(commits, 'committed', 'opened its session'),
        commands, cast({seconds} as double), `within`, commands_per_s) as reason,
    to_json(struct(`within`, commands, operations, windows,
        round(commands_per_s, 3) as commands_per_s)) as evidence,
    to_json(struct(if(commits, {storm_commits_per_s}, 0) as commands_per_s_below)) as predicted,
    last_ms as start_ms, commands_per_s as weight
from fresh
"""

EACH: Final = (QUOTAS, LEADER, SLOTS, BROKERS, STORMS)

ALL: Final = """
with placed as (
    select *, row_number() over (partition by kind order by weight desc, target, `limit`) as place
    from {found} where octet_length(target) <= {bytes}
)
select substring(sha2(concat_ws('|', kind, target, `limit`, start_ms), 256), 1, 16) as id,
    kind, target, `limit`, number, source, destination, reason, evidence, predicted, start_ms,
    cast({expires_ms} as bigint) as expires_ms
from placed where place <= {each_max}
"""
"""All of them, with their ids."""
