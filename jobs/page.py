"""A report as one HTML page: headline, tiles, plots, tables, and what it was made of.

The page needs nothing but itself. It is light or dark as the reader's screen is, as narrow as a
telephone or as wide as a wall, and prints. Its one script sorts a table by the heading that is
clicked; the page is whole without it, and by its own policy no other script can run. Everything
from a client is escaped by the template, so a name in a page is a name.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from jobs import plot
from jobs.job import Context, Job
from jobs.view import Column, Listing, View
from jobs.words import moment, printable, short, shorten, shown

NAME_CHARACTERS_MAX: Final = 60  #: of a name in a table; the whole is its tooltip
TITLE_CHARACTERS_MAX: Final = 400  #: of that tooltip: an MQTT name may have 65 535
TEMPLATES: Final = Path(__file__).parent
MEASURED: Final = ("count", "rate", "bytes", "duration", "share")  #: units that a bar can show


def render(
    job: Job,
    view: View,
    context: Context,
    rows: Mapping[str, int],
    files: Mapping[str, str],
) -> str:
    """The page of one run. `rows` are those of each output, `files` names to SHA-256."""
    written: str = _template("page.html.j2").render(
        policy=_policy(),
        script=Markup(_script()),  # noqa: S704  ours
        style=Markup(_style()),  # noqa: S704  ours
        job=job,
        view=view,
        headline=printable(view.headline),
        moment=moment(context.now_ms),
        numbers=[
            {
                "name": printable(each.name),
                "short": short(each.value, each.unit),
                "exact": shown(each.value, each.unit),
                "alarming": each.alarming,
            }
            for each in view.numbers
        ],
        plots=[
            # Our own figure: matplotlib has escaped the names in it.
            Markup(plot.svg(each, f"plot{place}"))  # noqa: S704
            for place, each in enumerate(view.plots, 1)
        ],
        listings=[_listing(each) for each in view.listings],
        options=dict(sorted(context.options.items())),
        cut=dict(sorted(context.cut.items())),
        rows=rows,
        files=files,
    )
    return written


def index(title: str, manifests: Iterable[Mapping[str, Any]]) -> str:
    """The page that leads to the pages of several runs, each in the directory of its job's name."""
    written: str = _template("index.html.j2").render(
        policy=_policy(),
        style=Markup(_style()),  # noqa: S704  ours
        title=title,
        jobs=[
            {
                **each,
                "headline": printable(str(each["headline"])),
                "moment": moment(each["now_ms"]),
            }
            for each in manifests
        ],
    )
    return written


def _listing(listing: Listing) -> dict[str, Any]:
    measured = next((c for c in listing.columns if _falls(listing, c)), None)
    top = max((row[measured.name] or 0 for row in listing.rows), default=0) if measured else 0
    keys = {
        column.name: _keys(row[column.name] for row in listing.rows) for column in listing.columns
    }
    rows = []
    last: Any = None
    for place, row in enumerate(listing.rows):
        section = row.get(listing.section) if listing.section else None
        cells = []
        for column in listing.columns:
            value = row[column.name]
            cell = _cell(value, column, keys[column.name])
            if column is measured and top > 0:
                cell["bar"] = f"{100 * max(value or 0, 0) / top:.1f}"
            cells.append(cell)
        rows.append({"cells": cells, "first": bool(place) and section != last})
        last = section
    return {
        "title": printable(listing.title),
        "of": listing.of,
        "count": len(listing.rows),
        "columns": [
            {"title": printable(c.title), "text": c.unit == "text"} for c in listing.columns
        ],
        "rows": rows,
        "nothing": printable(listing.nothing),
    }


def _keys(values: Iterable[Any]) -> dict[Any, int]:
    """What the script sorts numbers by: the place of each among them, for its own have 53 bits."""
    known = {value for value in values if value is not None and not isinstance(value, str)}
    return {value: place for place, value in enumerate(sorted(known))}


def _cell(value: Any, column: Column, keys: Mapping[Any, int]) -> dict[str, Any]:
    if isinstance(value, str):
        whole = printable(value)
        said = shorten(value, TITLE_CHARACTERS_MAX if column.prose else NAME_CHARACTERS_MAX)
        whole = whole[:TITLE_CHARACTERS_MAX] if said != whole else ""
        kind = "text prose" if column.prose else "text"
        return {"said": said, "whole": whole, "key": None, "text": kind, "bar": None}
    return {
        "said": shown(value, column.unit),
        "whole": "",
        "key": keys.get(value),
        "text": "text" if column.unit in ("text", "moment") else "",
        "bar": None,
    }


def _falls(listing: Listing, column: Column) -> bool:
    """Whether the rows are sorted by this column, largest first: then bars say it at a glance."""
    if column.unit not in MEASURED or len(listing.rows) < 2:
        return False
    values = [row[column.name] for row in listing.rows]
    known = [value for value in values if value is not None]
    return (
        bool(known)
        and known == values[: len(known)]
        and known[0] > 0
        and all(a >= b for a, b in itertools.pairwise(known))
    )


@cache
def _template(name: str) -> Any:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


@cache
def _script() -> str:
    return (TEMPLATES / "page.js").read_text(encoding="utf-8").strip()


@cache
def _style() -> str:
    return (TEMPLATES / "page.css").read_text(encoding="utf-8").strip()


@cache
def _policy() -> str:
    """Nothing is loaded from anywhere, and no script runs but the one with this checksum."""
    checksum = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{checksum}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )
