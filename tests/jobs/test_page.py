"""Pictures and pages: what a client named is shown and never obeyed, and the same is the same."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from jobs import page, plot
from jobs.job import Context, Job, Output
from jobs.report import picture_names
from jobs.tables import listing_table
from jobs.view import Bars, Column, Heat, Lines, Listing, Number, Plot, Stacks, View

HOUR_MS = 3_600_000
AT = [1_800_000_000_000 + n * HOUR_MS for n in range(24)]
NASTY = (
    "$x^2$",
    "日本語",
    "a\nb\x1b[31m",
    "n" * 300,
    "",
    r"\frac",
    "[red]",
    "_hidden",
    "<script>alert(1)</script>",
    "\"' onmouseover=alert(1) x='",
    "url(#a) {{ 7*7 }} ]]> &amp;",
    "\u202etxt.exe",
)

PLOTS: list[Plot] = [
    Bars(title="$5$ <b>", label="$", names=NASTY, values=[2.0**63 - n for n in range(12)]),
    Bars(title="small", label="bytes", names=["a"], values=[0.0], unit="bytes", bad=True),
    Bars(title="long", label="lag", names=["a", "b"], values=[9e9, -5.0], unit="duration"),
    Stacks(
        title="parts",
        label="sessions",
        names=NASTY,
        parts=("active", "_x", "$y$", "<i>"),
        values=[(1, 2, 3, 4)] * 12,
    ),
    Lines(
        title="load",
        label="operations",
        at_ms=AT,
        series={name: [None, *([1.5] * 23)] for name in NASTY},
        forecast_ms=AT[12],
    ),
    Lines(title="far", label="x", at_ms=[2**62, -5], series={"a": [1.0, 2.0]}),
    Heat(title="heat", label="x", names=NASTY, at_ms=AT, values=[list(range(24))] * 12),
    Bars(title="none", label="x", names=[], values=[]),
    Stacks(title="none", label="x", names=[], parts=("a",), values=[]),
    Lines(title="none", label="x", at_ms=[], series={}),
    Heat(title="none", label="x", names=[], at_ms=[], values=[]),
]

LISTING = Listing(
    title="Groups <b>",
    columns=(
        Column("name", "[bold]name"),
        Column("lag", "lag", "count"),
        Column("at", "last", "moment"),
    ),
    rows=[
        {"name": name, "lag": None if n > 9 else 100 - n, "at": AT[0], "part": n // 6}
        for n, name in enumerate(NASTY)
    ],
    of=500,
    section="part",
)
VIEW = View(
    headline="12 groups <i>lag</i>",
    numbers=(Number("lag", 1_234_567, alarming=True), Number("of <u>", None, "duration")),
    listings=(LISTING, replace(LISTING, rows=[], of=0, nothing="all is <well>")),
    plots=PLOTS,
)
CONTEXT = Context(now_ms=AT[0], cut={"offset-0": 41}, options={"word": "<o>"})


def nothing(*_: Any) -> Any:
    raise AssertionError("it is not run here")


JOB = Job(
    name="lag",
    title="Progress",
    about="Of <everyone>.",
    inputs={},
    outputs={"groups": Output(schema=pa.schema([]), order=(), about="One row a group.")},
    run=nothing,
    view=nothing,
)


def render() -> str:
    return page.render(JOB, VIEW, CONTEXT, {"groups": 60}, {"groups.parquet": "ab" * 32})


@cache
def rendered() -> str:
    return render()


class Reader(HTMLParser):
    """Tags as a browser sees them: each one that is opened is closed, in order."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


@pytest.fixture(scope="module")
def reader() -> Reader:
    found = Reader()
    found.feed(rendered())
    found.close()
    assert found.open == []
    return found


def test_a_page_is_well_formed_and_what_clients_named_is_text(reader: Reader) -> None:
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert not {"b", "i", "u", "img", "iframe"} & {tag for tag, _ in reader.tags}
    assert not [name for _, attributes in reader.tags for name in attributes if name[:2] == "on"]
    for name in ("<script>alert(1)</script>", "日本語", "]]> &amp;", "{{ 7*7 }}", "a·b·[31m"):
        assert name in reader.text
    assert "\x1b" not in rendered()
    assert "\u202e" not in rendered()
    for words in ("12 groups <i>lag</i>", "all is <well>", "word=<o>", "offset-0\xa0at\xa041"):
        assert words in reader.text


def test_a_page_needs_nothing_but_itself(reader: Reader) -> None:
    """And by its own policy runs no script but the one with this checksum."""
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in reader.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    (script,) = re.findall(r"<script>(.*?)</script>", rendered(), re.DOTALL)
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{checksum}';" in policy
    assert policy.startswith("default-src 'none';")
    for tag, attributes in reader.tags:
        assert tag not in ("link", "base", "form")
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            target = attributes.get(name) or "#"
            assert target.startswith("#") or target == "groups.parquet"
    assert not re.search(r"url\((?!#)", re.sub(r"<text.*?</text>", "", rendered()))


def test_ids_are_the_pages_only_ones_and_everything_referred_to_is_there(reader: Reader) -> None:
    ids = [attributes["id"] for _, attributes in reader.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    pointed = re.findall(r'(?:href="|="url\()#([^")]+)', rendered())
    assert pointed
    assert set(pointed) <= set(ids)


def test_colours_are_the_pages_and_known_to_it() -> None:
    text = rendered()
    asked = set(re.findall(r"var\(--([\w-]+)\)", text))
    declared = re.findall(r"--([\w-]+): #", text)
    assert asked <= {*declared, "part"}
    for name in set(declared):
        assert declared.count(name) == 2, f"{name} has no colour on a dark page, or no other"
    for colour in plot.VARIABLES:
        assert f'"{colour}' not in text.partition("</style>")[2]


def test_rows_that_fall_have_bars_and_numbers_sort_as_numbers(reader: Reader) -> None:
    cells = [attributes for tag, attributes in reader.tags if tag == "td"]
    bars = [each["style"] for each in cells if each.get("class") == "bar"]
    assert bars[0] == "--part: 100.0%"
    assert len(bars) == len(NASTY)
    keys = [each["data-key"] for each in cells if "data-key" in each]
    assert all(re.fullmatch(r"-?\d+(\.\d+)?", key or "") for key in keys)
    assert "500" in reader.text


def test_numbers_that_a_script_cannot_tell_apart_sort_as_they_are() -> None:
    known: list[int | float] = [2**63 - 1, 2**53 + 1, 2**53, 0.5, True, 0, -(2**63)]
    rows = [{"lag": value} for value in [*known[::2], None, *known[1::2], 2**53]]
    listing = Listing(title="t", columns=(Column("lag", "lag", "count"),), rows=rows, of=len(rows))
    keys = [cells[0]["key"] for cells in (row["cells"] for row in page._listing(listing)["rows"])]
    assert [float(key) for key in keys if key is not None] == [6, 4, 3, 0, 5, 2, 1, 4]
    assert keys[4] is None


def test_the_same_view_gives_the_same_bytes(tmp_path: Path) -> None:
    assert render() == rendered()
    for each in (PLOTS[0], PLOTS[4]):
        plot.png(each, tmp_path / "a.png")
        plot.png(each, tmp_path / "b.png")
        data = (tmp_path / "a.png").read_bytes()
        assert data == (tmp_path / "b.png").read_bytes()
        assert data.startswith(b"\x89PNG")


def test_parts_keep_their_colours() -> None:
    assert plot.colours(("active", "b", "expired", "c")) == [
        *(plot.GOOD, plot.SERIES[0], plot.BAD),
        plot.SERIES[1],
    ]
    assert len(plot.colours([str(n) for n in range(20)])) == 20


def test_cells_are_as_dark_as_their_values() -> None:
    """Two pictures that differ in nothing else: their words and the darkest cell are the same."""
    one = Heat(title="heat", label="x", names=["a", "b"], at_ms=AT[:2], values=[[0, 4], [4, 0]])
    other = replace(one, values=[[4, 0], [0, 4]])
    assert plot.svg(one, "p") != plot.svg(other, "p")


def test_a_picture_of_heat_says_its_title_and_may_be_of_nothing_but_zeros() -> None:
    zeros = Heat(title="heat", label="x", names=["a"], at_ms=AT[:2], values=[[0, 0]])
    assert 'aria-label="heat"' in plot.svg(zeros, "p")


def test_what_is_forecast_is_drawn_as_a_forecast_from_its_first_moment() -> None:
    lines = Lines(
        title="load", label="x", at_ms=AT[:4], series={"a": [1.0, 2.0, 3.0, 4.0]}, forecast_ms=AT[2]
    )
    drawn: list[Any] = list(plot._figure(lines).axes[0].lines)
    assert [list(each.get_ydata()) for each in drawn] == [[1, 2], [2, 3, 4]]
    assert ">forecast<" in plot.svg(lines, "p")
    assert ">forecast<" not in plot.svg(replace(lines, forecast_ms=None), "p")


def test_sentences_are_whole_and_names_are_shortened() -> None:
    said = "word " * 30
    columns = (Column("why", "why", prose=True), Column("name", "name"))
    listing = Listing(title="t", columns=columns, rows=[{"why": said, "name": said}], of=1)
    view = replace(VIEW, listings=(listing,))
    text = page.render(JOB, view, CONTEXT, {"groups": 1}, {"groups.parquet": "ab" * 32})
    assert f'<td class="text prose">{said}</td>' in text
    assert f">{said}</td>" not in text.replace(f'prose">{said}</td>', "")
    assert "groups.parquet: 1 row." in text


def test_a_column_of_which_nothing_is_known_says_so() -> None:
    """Bars are for what falls, and there is nothing to fall from."""
    rows = [{"lag": None}, {"lag": None}]
    listing = Listing(title="t", columns=(Column("lag", "lag", "count"),), rows=rows, of=2)
    view = replace(VIEW, plots=(), listings=(listing,))
    text = page.render(JOB, view, CONTEXT, {"groups": 0}, {"groups.parquet": "ab" * 32})
    assert text.count(">unknown</td>") == 2


def test_pictures_have_names_of_their_own() -> None:
    assert picture_names(VIEW)[:3] == ["5-b.png", "small.png", "long.png"]
    assert len(set(picture_names(VIEW))) == len(PLOTS)
    japanese = View(headline="", plots=(Bars(title="日本", label="", names=[], values=[]),))
    assert picture_names(japanese) == ["plot-1.png"]


def test_an_index_leads_to_each_page() -> None:
    manifests = [
        {"job": "lag", "title": "Lag <b>", "headline": "<i>", "now_ms": AT[0]},
        {"job": "sessions", "title": "S", "headline": "fine", "now_ms": AT[0]},
    ]
    found = Reader()
    found.feed(page.index("Reports", manifests))
    assert found.open == []
    links = [attributes.get("href") for tag, attributes in found.tags if tag == "a"]
    assert links == ["lag/index.html", "sessions/index.html"]
    assert "Lag <b>" in found.text


def test_a_headline_is_text_in_one_line_too() -> None:
    hostile = replace(VIEW, headline="the hottest is a\x1b[31m\u202e\nb")
    written = page.render(JOB, hostile, CONTEXT, {"groups": 60}, {})
    over_all = page.index(
        "Reports", [{"job": "j", "title": "J", "headline": hostile.headline, "now_ms": AT[0]}]
    )
    for each in (written, over_all):
        assert "the hottest is a\N{MIDDLE DOT}[31m\N{MIDDLE DOT}\N{MIDDLE DOT}b" in each
        assert "\x1b" not in each


def test_hostile_names_do_not_reach_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(listing_table(LISTING), listing_table(replace(LISTING, rows=[])))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]" in text
    assert "[bold]name" in text
    assert "\x1b" not in text
    assert "unknown" in text
    assert "12 of 500" in text


def test_a_name_is_broken_and_not_cut_in_a_narrow_terminal() -> None:
    """Behind a pipe a terminal is 80 wide, and clients that begin alike would be one."""
    console = Console(file=io.StringIO(), width=24)
    columns = (Column("name", "client"), Column("commits", "commits", "count"))
    name = "sensor-of-hall-3-000007"
    row = {"name": name, "commits": 7}
    console.print(listing_table(Listing(title="clients", columns=columns, rows=[row], of=1)))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert name in "".join(line.split(" ")[0] for line in text.splitlines())
