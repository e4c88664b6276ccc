"""What a job is: datasets in, datasets out, and what of them a person looks at.

    LAG = Job(
        name="lag",
        inputs={"offsets": Input(OFFSETS, table="offset.offset"), …},
        outputs={"groups": Output(GROUPS, order=("tenant", "group"), about="…"), …},
        run=lag,        # {"offsets": DataFrame, …}, Context  ->  {"groups": DataFrame, …}
        view=view,      # Results  ->  View
    )

`run` plans on Spark and reads no clock, no file and no cluster: the same inputs and the same
context give the same rows for ever. `view` picks from the rows that were written what fits a
screen, in the words of `jobs.view`; how that looks on a terminal, as PNG and on a page is
`jobs.report`'s and the same for every job. `jobs.catalogue` lists the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from jobs.results import Results
from jobs.view import View
from state_machines.errors import Invalid

Of = Literal["cut", "before", "file", "history", "gaps"]
"""Where an input comes from: the cut that is looked at, an earlier cut that it is compared with, a
Parquet file that the caller names, the operation history, or what that lacks for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One dataset that a job reads: the columns of `schema`, whatever others there are."""

    schema: pa.Schema
    of: Of = "cut"
    table: str = ""
    """Of a cut: the table, such as `offset.offset`."""
    required: bool = True
    """Otherwise the job gets no rows where there is no such dataset."""
    told: bool = False
    """Where there is no such dataset the job does not get this input, instead of no rows."""
    beside_history: bool = False
    """Of a cut: only asked for where the operation history is given, which it is compared with."""
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One dataset that a job writes, sorted by the columns of `order`."""

    schema: pa.Schema
    order: tuple[str, ...]
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A number or a word that changes what a job does. Numbers carry their unit in the name."""

    default: int | str
    about: str
    low: int = 0
    high: int = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a job knows besides its rows."""

    now_ms: int
    """The moment the job speaks of, Unix milliseconds: the clock of the cut, not of the job."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """Group to the applied index its rows were read at."""
    before: Mapping[str, int] = field(default_factory=dict)
    """The same of the earlier cut."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """A value for each `Job.options`."""


Run = Callable[[Mapping[str, DataFrame], Context], Mapping[str, DataFrame]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, as `metaray report NAME` runs it."""

    name: str
    title: str
    about: str
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Output]
    run: Run
    view: Callable[[Results, Context], View]
    options: Mapping[str, Option] = field(default_factory=dict)

    def context(
        self,
        now_ms: int,
        cut: Mapping[str, int],
        given: Mapping[str, Any],
        before: Mapping[str, int] | None = None,
    ) -> Context:
        """The context of a run. Raises Invalid naming an option that is none or out of limits."""
        values: dict[str, Any] = {name: option.default for name, option in self.options.items()}
        for name, value in given.items():
            option = self.options.get(name)
            if option is None:
                known = ", ".join(sorted(self.options)) or "none"
                raise Invalid(f"{name}: {self.name} has no such option; it has {known}")
            if type(value) is not type(option.default):
                wanted = "a whole number" if isinstance(option.default, int) else "text"
                raise Invalid(f"{name}: {value!r}, expected {wanted}")
            if isinstance(value, int) and not option.low <= value <= option.high:
                raise Invalid(f"{name}: {value}, the limits are {option.low} to {option.high}")
            if isinstance(value, str) and not _encodes(value):
                raise Invalid(f"{name}: {value!r}, expected text in UTF-8")
            values[name] = value
        return Context(now_ms=now_ms, cut=dict(cut), before=dict(before or {}), options=values)


def _encodes(text: str) -> bool:
    """Whether it is text: a byte of a command line that is not UTF-8 is a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
