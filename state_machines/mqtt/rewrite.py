"""Topic rewriting: what a client calls a topic, and what it is called inside.

    source  "old/+/#"    dest  "new/$2/of/$1"        old/a/b/c  ->  new/b/c/of/a

A rule holds for publishing, for subscribing, or for both. Its source is a filter, and `$1` to `$9`
in its destination stand for what the wildcards match: `+` a level, `#` all that is left. The rules
of a tenant are asked by priority, the lowest number first, then by name; the first that matches is
the one, and is applied once. What is no topic, or would not be one, is left as it is. No regular
expressions: each look takes time in proportion to the topic.

The rules of a tenant share a slot and are few, because a broker keeps them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import Invalid, NotFound
from state_machines.mqtt import tallies
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

RULES_MAX: Final = 1_000  #: of one tenant
PRIORITY_MAX: Final = 1_000_000
TALLY: Final = "rewrite"

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
ALL: Final = "all"
ACTIONS: Final = (PUBLISH, SUBSCRIBE, ALL)


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """A rule."""

    tenant: str
    name: str
    action: str
    source: str
    dest: str
    priority: int
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteItem:
    """A rule to put."""

    name: str
    source: str
    dest: str
    action: str = ALL
    priority: int = 0


@dataclass(frozen=True, slots=True)
class RewritePage:
    """Rules by name; `next` continues, empty at the end."""

    rules: tuple[RewriteRule, ...]
    next: bytes


REWRITES: Final = Table(
    "mqtt.rewrite", RewriteRule, key=("tenant", "name"), slot_fields=("tenant",)
)


@remover(REWRITES)
def _remove(db: Tables, at: Stamp, rule: RewriteRule) -> None:
    """The tenant has one fewer."""
    db.delete(REWRITES, rule.tenant, rule.name)
    tallies.remove(db, rule.tenant, TALLY, "")


Capture = str | None
"""What a wildcard stands for; None for a `#` that matches the level above it."""


# -- the decision ---------------------------------------------------------------------------------


def ordered(rules: Iterable[RewriteRule]) -> list[RewriteRule]:
    """Rules in the order in which they are asked."""
    return sorted(rules, key=lambda rule: (rule.priority, rule.name))


def rewrite(rules: Iterable[RewriteRule], action: str, topic: str) -> str:
    """The topic (to PUBLISH) or filter (to SUBSCRIBE) that one of a client's stands for.

    `rules` are in the order of `ordered`. Of a shared subscription the filter is rewritten.
    """
    assert action in (PUBLISH, SUBSCRIBE), action
    shared, wanted = "", topic
    if action == SUBSCRIBE and topic.startswith(names.SHARED + "/") and topic.count("/") > 1:
        mark, share, wanted = topic.split("/", 2)
        shared = f"{mark}/{share}/"
    levels = wanted.split("/")
    for rule in rules:
        if rule.action not in (ALL, action):
            continue
        captures = _captures(_levels(rule.source), levels)
        if captures is not None:
            found = _filled(_levels(rule.dest), captures)
            # Nobody gets at a `$` topic by a rule.
            named = _is_one(topic, action) and _is_one(found, action) and not found.startswith("$")
            return shared + found if named else topic
    return topic


@lru_cache(maxsize=4_096)
def _levels(text: str) -> tuple[str, ...]:
    return tuple(text.split("/"))


def _captures(source: tuple[str, ...], levels: list[str]) -> list[Capture] | None:
    """What the source's wildcards stand for, None if it does not match.

    A filter of a client may have wildcards itself: they match those of the source alone.
    """
    if source[0] in ("+", "#") and levels[0].startswith("$"):
        return None
    found: list[Capture] = []
    for place, level in enumerate(source):
        if level == "#":
            return [*found, "/".join(levels[place:]) if place < len(levels) else None]
        if place == len(levels) or (level == "+" and levels[place] == "#"):
            return None
        if level == "+":
            found.append(levels[place])
        elif level != levels[place]:
            return None
    return found if len(source) == len(levels) else None


def _filled(dest: tuple[str, ...], captures: list[Capture]) -> str:
    """A level that is all for a `#` without a match goes, with its slash."""
    filled = []
    for level in dest:
        head, *others = level.split("$")
        parts: list[Capture] = [head]
        for other in others:
            place = _place(other)
            parts += [f"${other}"] if place is None else [captures[place], other[1:]]
        if None in parts and not any(parts):
            continue
        filled.append("".join([part or "" for part in parts]))
    return "/".join(filled)


def _place(after_dollar: str) -> int | None:
    """Which capture `$` and what follows it stand for."""
    first = after_dollar[:1]
    return int(first) - 1 if first in tuple("123456789") else None


def _is_one(topic: str, action: str) -> bool:
    """Whether it is a topic name (to PUBLISH) or a filter (to SUBSCRIBE)."""
    try:
        (names.topic_name if action == PUBLISH else names.topic_filter)(topic)
    except Invalid:
        return False
    return True


# -- commands -------------------------------------------------------------------------------------


def _check(item: RewriteItem) -> None:
    names.name(item.name, "name")
    names.one_of(item.action, "action", ACTIONS)
    names.topic_filter(item.source, "source")
    if item.source.startswith(names.SHARED + "/"):
        raise Invalid("source: the filter that is shared, without its share name")
    names.topic_name(item.dest, "dest")
    if item.dest.startswith("$") and _place(item.dest[1:]) is None:
        raise Invalid("dest: clients have no topics that begin with $")
    wildcards = sum(level in ("+", "#") for level in item.source.split("/"))
    for part in item.dest.split("$")[1:]:
        place = _place(part)
        if place is not None and place >= wildcards:
            raise Invalid(f"dest: ${place + 1}, but the source has {wildcards} wildcards")
    if not 0 <= item.priority <= PRIORITY_MAX:
        raise Invalid(f"priority: {item.priority}, the range is 0 to {PRIORITY_MAX}")


@command("mqtt.rewrite.put")
class PutRewrites(Batch):
    """Set rules; one of the same name is replaced."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[RewriteItem, ...]

    def validate(self) -> None:
        """Every field within its limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            _check(item)

    def slot_key_of(self, item: RewriteItem) -> tuple[str, ...]:
        """A tenant's rules stay together."""
        return (self.tenant,)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """QuotaExceeded for one more than a tenant may have, and for those that are too many for
        this command: ask again for these.
        """

        def put(item: RewriteItem) -> None:
            if db.get(REWRITES, self.tenant, item.name) is None:
                tallies.add(db, self.tenant, TALLY, "", RULES_MAX)
            db.put(
                REWRITES,
                RewriteRule(
                    tenant=self.tenant,
                    name=item.name,
                    action=item.action,
                    source=item.source,
                    dest=item.dest,
                    priority=item.priority,
                    updated_ms=at.now_ms,
                ),
            )

        return each(db, self.items, put, changed="items")


@command("mqtt.rewrite.delete")
class DeleteRewrites(Batch):
    """Delete rules. Subscriptions stay under the filters that they were rewritten to."""

    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.names, "names")
        for name in self.names:
            names.name(name, "names")

    def slot_key_of(self, item: str) -> tuple[str, ...]:
        """A tenant's rules stay together."""
        return (self.tenant,)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def delete(name: str) -> None:
            rule = db.get(REWRITES, self.tenant, name)
            if rule is None:
                raise NotFound(f"names: there is no rule {name!r}")
            _remove(db, at, rule)

        return each(db, self.names, delete, large="names")


@query("mqtt.rewrite.list")
class ListRewrites:
    """The rules of a tenant, a page at a time."""

    tenant: str = names.DEFAULT_TENANT
    limit: int = RULES_MAX
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)

    def slot_key(self) -> tuple[str, ...]:
        """A tenant's rules stay together."""
        return (self.tenant,)

    def read(self, db: Tables, at: Stamp) -> RewritePage:
        """By name."""
        rows, after = db.page(REWRITES, self.tenant, after=self.after, limit=self.limit)
        return RewritePage(tuple([row for row, _ in rows]), after)
