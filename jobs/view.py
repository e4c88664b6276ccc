"""What a person sees of a job's results: numbers, listings and plots, before anyone draws them.

A job says what there is to see and in which unit; `jobs.report` draws the same view as tables on a
terminal, as PNG and on a page. Everything here is small: at most a screen of rows a listing and a
handful of series a plot, whatever the size of the dataset behind it. Names come from clients, so
whoever draws shortens and escapes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Unit = Literal["text", "count", "rate", "bytes", "duration", "moment", "share"]
"""How a value is written. rate: per second; duration: milliseconds; moment: Unix milliseconds;
share: a part of 1. None is "unknown" in each."""

LISTING_ROWS: Final = 20  #: rows of a listing, unless a job has a reason
PLOT_NAMES: Final = 10  #: bars of a plot
NAMES_SAID: Final = 8  #: in a sentence


def named(names: Sequence[str]) -> str:
    """Names as a sentence has them: the first of them, and how many more there are."""
    more = f" and {len(names) - NAMES_SAID} more" if len(names) > NAMES_SAID else ""
    return f"{', '.join(names[:NAMES_SAID])}{more}"


@dataclass(frozen=True, slots=True)
class Number:
    """One figure of the whole: "lag, 12 345 records"."""

    name: str
    value: float | None
    unit: Unit = "count"
    alarming: bool = False
    """Drawn so that it is seen: something is wrong that is not wrong on a healthy cluster."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing: which of the row's values, under which heading."""

    name: str
    title: str
    unit: Unit = "text"
    prose: bool = False
    """Sentences: a page shows them whole, in as many lines as they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Rows to read, the most important first."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]
    of: int
    """How many rows there are, of which these are some."""
    section: str = ""
    """A column whose change draws a line."""
    nothing: str = "none"
    """What stands there instead of no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Names and values, largest first."""

    title: str
    label: str
    """What is counted, under the axis: "records"."""
    names: Sequence[str]
    values: Sequence[float]
    unit: Unit = "count"
    bad: bool = False
    """More is worse: drawn in the colour of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Names, and of each its parts."""

    title: str
    label: str
    names: Sequence[str]
    parts: tuple[str, ...]
    """What the parts are called. At most six, the same in every plot of a view if they can be."""
    values: Sequence[Sequence[float]]  # one a name, in the order of `parts`


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Series over time."""

    title: str
    label: str
    at_ms: Sequence[int]
    series: Mapping[str, Sequence[float | None]]  # one value for each moment, None: not known
    forecast_ms: int | None = None
    """From here on it is a forecast, drawn as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """Values over names and time."""

    title: str
    label: str
    names: Sequence[str]
    at_ms: Sequence[int]
    values: Sequence[Sequence[float]]  # one row a name


Plot = Bars | Stacks | Lines | Heat


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What there is to see of one job."""

    headline: str
    """One sentence that says what was found, with its most important number."""
    numbers: Sequence[Number] = field(default_factory=tuple)
    listings: Sequence[Listing] = field(default_factory=tuple)
    plots: Sequence[Plot] = field(default_factory=tuple)
