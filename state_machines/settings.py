"""Settings: what of the service can be changed while it runs, and within which limits.

Each is declared once, with its unit in its name, its range, its default and what it does. Values
are rows (`metadata/config.py`): one for the cluster, and for a `per_tenant` setting one a tenant
besides. An entity may declare its own with `setting(...)`; a name is never given another meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state_machines import names
from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.names import SECONDS_MAX

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
YEAR_MS: Final = 366 * DAY_MS


@dataclass(frozen=True, slots=True)
class Setting:
    """A known setting: a number from `low` to `high`, or, if it has `choices`, one of them."""

    name: str
    unit: str
    low: int
    high: int
    default: int
    choices: tuple[str, ...]
    default_choice: str
    per_tenant: bool
    description: str


Value = int | str

SETTINGS: Final[dict[str, Setting]] = {}


def setting(
    name: str,
    unit: str = "",
    low: int = 0,
    high: int = 0,
    default: int = 0,
    *,
    choices: tuple[str, ...] = (),
    per_tenant: bool = False,
    description: str,
) -> Setting:
    """Declare a setting. The first of its choices is the default."""
    assert name not in SETTINGS, f"setting declared twice: {name}"
    assert choices or low <= default <= high, f"{name}: its default is out of its range"
    made = Setting(
        name,
        unit,
        low,
        high,
        default,
        choices,
        choices[0] if choices else "",
        per_tenant,
        description,
    )
    SETTINGS[name] = made
    return made


def known(name: str) -> Setting:
    """The setting of this name. Raises Invalid."""
    names.name(name, "key")
    found = SETTINGS.get(name)
    if found is None:
        there = f"there are {len(SETTINGS)}: {', '.join(sorted(SETTINGS))}"
        raise Invalid(f"key: {name!r} is no setting; {there}")
    return found


def check(of: Setting, number: int | None, text: str | None) -> None:
    """Raise Invalid unless this is a value of the setting: a number or a choice, not both."""
    if of.choices:
        if number is not None:
            wanted = ", ".join(of.choices)
            raise Invalid(f"text: {of.name} is one of {wanted}; it has no number, so not {number}")
        if text is None:
            raise Invalid(f"text: {of.name} is one of {', '.join(of.choices)}")
        names.name(text, "text", empty=True)
        if text not in of.choices:
            raise Invalid(f"text: {of.name} is {text!r}, one of {', '.join(of.choices)} is wanted")
        return
    if number is None or text is not None:
        raise Invalid(f"number: {of.name} is a number of {of.unit or 'items'}")
    if not of.low <= number <= of.high:
        raise Invalid(f"number: {of.name} is {number}, the range is {of.low} to {of.high}")


def fits(of: Setting, value: Value) -> bool:
    """Whether a value is one of the setting's, also of one that was stored under other limits."""
    if of.choices:
        return value in of.choices
    return type(value) is int and of.low <= value <= of.high


def in_force(of: Setting, tenant: Value | None, cluster: Value | None) -> Value:
    """The value in force: the tenant's over the cluster's over the default.

    None stands for a value that was not set. One that does not fit any more is passed over.
    """
    for each in (tenant if of.per_tenant else None, cluster):
        if each is not None and fits(of, each):
            return each
    return of.default_choice if of.choices else of.default


setting(
    "heartbeat_timeout_ms",
    "ms",
    SECOND_MS,
    HOUR_MS,
    30 * SECOND_MS,
    description="A node that has sent no heartbeat for this long is offline.",
)
setting(
    "connector_timeout_ms",
    "ms",
    SECOND_MS,
    HOUR_MS,
    30 * SECOND_MS,
    description="A connector whose broker has not spoken for it for this long is given to another.",
)
setting(
    "offset_retention_ms",
    "ms",
    MINUTE_MS,
    10 * YEAR_MS,
    7 * DAY_MS,
    per_tenant=True,
    description="A consumer group without a commit or a touch for this long is forgotten.",
)
setting(
    "offset_history_ms",
    "ms",
    0,
    YEAR_MS,
    DAY_MS,
    description="For so long at most it can be asked where a consumer group stood. 0: for none.",
)
setting(
    "session_expiry_max_s",
    "s",
    0,
    SECONDS_MAX,
    SECONDS_MAX,
    per_tenant=True,
    description="For brokers: the longest session expiry that they grant (MQTT 5, 3.2.2.3.2).",
)
setting(
    "message_expiry_max_s",
    "s",
    1,
    SECONDS_MAX,
    SECONDS_MAX,
    per_tenant=True,
    description="For brokers: the longest that messages stay which they retain.",
)
setting(
    "topic_queues_default",
    "queues",
    1,
    BATCH_ITEMS_MAX,
    1,
    per_tenant=True,
    description="For brokers: queues of a topic that they create by themselves.",
)
setting(
    "rebalance_interval_ms",
    "ms",
    SECOND_MS,
    DAY_MS,
    MINUTE_MS,
    description="How often the controller looks whether leaders are spread evenly.",
)
setting(
    "rebalance_moves_max",
    "moves",
    1,
    1_000,  # what one command takes (`segments.SEGMENTS_MAX`)
    50,
    description="Leaders that it moves at one look at most.",
)
setting(
    "rebalance",
    choices=("on", "off"),
    description="Whether the controller moves anything to spread load; repairs go on when off.",
)
