"""The plots of a view, drawn: as PNG for wherever pictures go, as SVG for the page.

What is drawn is already cut to what fits (`jobs.view`), so a picture does not depend on how large
the dataset was. Both forms come from one figure. The SVG keeps its words as text, which any
browser has the letters for, and its colours are the page's (`var(--ink)`), so it is light and dark
with the page. Names come from clients: they are shortened, never read as mathematics, and a letter
that the PNG's font lacks is drawn as a box rather than refused. The same plot gives the same bytes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from jobs.view import Bars, Heat, Lines, Plot, Stacks, Unit
from jobs.words import short, shorten

INK, MUTED, GRID, PAPER = "#1f2933", "#66737f", "#e3e8ed", "#ffffff"
GOOD, MIDDLING, BAD, CALM = "#3a9d6e", "#e0a83a", "#c4552d", "#2f6f9f"
SERIES: Final = (CALM, "#5aa7a7", "#8a6fb0", "#d08a3c", "#7a8794", "#b5637f")
"""The colours of parts and series whose names say nothing of good or bad."""

MEANING: Final = {
    **dict.fromkeys(("active", "moving", "healthy", "ok", "applied"), GOOD),
    **dict.fromkeys(("disconnected", "idle", "stuck", "warning"), MIDDLING),
    **dict.fromkeys(("expired", "abandoned", "lost", "refused", "error"), BAD),
}
"""The colours of parts whose names do."""

VARIABLES: Final = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    GOOD: "good",
    MIDDLING: "middling",
    BAD: "bad",
    **{colour: f"series-{place}" for place, colour in enumerate(SERIES, 1)},
}
"""What a colour is called by the page. CALM is the first of the series."""

WIDTH, DPI = 7.4, 110
ROW, FRAME, LINES = 0.31, 1.25, 3.4  #: inches: of one bar, of what is around them, of series
ROWS_MIN = 3  #: few bars stay bars: room for so many at least
NAME_CHARACTERS: Final = 32  #: of the name of a bar, which leaves two thirds for the bars
LEGEND_CHARACTERS: Final = 62  #: what fits below a plot in one line
SVG: Final = "http://www.w3.org/2000/svg"
XLINK: Final = "http://www.w3.org/1999/xlink"
DATES_MS: Final = (0, 253_402_300_799_000)  #: what a calendar has: 1970 to 9999
DAY_MS: Final = 86_400_000
TICKS_MAX: Final = 5
BYTES_STEPS: Final = tuple(2**n for n in range(63))
SPAN_STEPS: Final = (
    *(1, 10, 100, 200, 500),
    *(1_000 * n for n in (1, 2, 5, 10, 15, 30)),
    *(60_000 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3_600_000 * n for n in (1, 2, 3, 6, 12)),
    *(86_400_000 * n for n in (1, 2, 5, 10, 30, 100, 365, 1_000)),
)
"""Between the marks of an axis: what reads as a round number in the unit, from small to large."""
DASHES: Final = (0, (2.5, 2))


def png(plot: Plot, path: Path) -> None:
    """Draw a plot into a PNG file."""
    with _rules():
        _figure(plot).savefig(path, format="png", dpi=DPI)


def svg(plot: Plot, prefix: str) -> str:
    """A plot as an SVG element to stand in a page; `prefix` makes its ids the page's only ones."""
    with _rules(), io.StringIO() as sink:
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        _figure(plot).savefig(sink, format="svg", metadata=nothing)
        # One's own output: comments and the document type, which no page wants, fall away.
        root = ElementTree.fromstring(sink.getvalue())  # noqa: S314
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                value = f"{prefix}-{value}"
            elif name == f"{{{XLINK}}}href" and value.startswith("#"):
                value = f"#{prefix}-{value[1:]}"
            else:
                value = _page_colours(value.replace("url(#", f"url(#{prefix}-"))
            element.set(name, value)
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", plot.title)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def has_something(plot: Plot) -> bool:
    """Whether there is anything to draw."""
    return bool(plot.series and plot.at_ms if isinstance(plot, Lines) else plot.names)


def colours(parts: Sequence[str]) -> list[str]:
    """A colour for each of some parts or series, the same for the same names."""
    free = iter(SERIES * (len(parts) // len(SERIES) + 1))
    return [MEANING.get(part) or next(free) for part in parts]


@contextlib.contextmanager
def _rules() -> Iterator[None]:
    """matplotlib's settings while something is drawn, and silence about missing letters."""
    # Ids from a salt of ours instead of a random one; text as text.
    settings = {"svg.hashsalt": "metaray", "svg.fonttype": "none", "font.size": 10}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # A client may be named in any script; the bundled font has not every letter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _page_colours(value: str) -> str:
    for colour, name in VARIABLES.items():
        value = value.replace(colour, f"var(--{name})")
    return value


def _figure(plot: Plot) -> Figure:
    some = has_something(plot)
    rows = len(plot.names) if isinstance(plot, Bars | Stacks | Heat) else 0
    height = LINES if isinstance(plot, Lines) and some else FRAME + ROW * max(rows, ROWS_MIN)
    legend = some and isinstance(plot, Stacks | Lines)
    figure = Figure(figsize=(WIDTH, height + 0.3 * legend), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_facecolor("none")
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.13, h_pad=0.11)
    title = shorten(plot.title, 70)
    words = figure.suptitle(title, x=0.018, ha="left", size=12.5, weight="bold", color=INK)
    words.set_parse_math(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(length=0, colors=MUTED, labelsize=9.5)
    axes.set_axisbelow(True)
    match plot:
        case Bars():
            _bars(axes, plot)
        case Stacks():
            _stacks(figure, axes, plot)
        case Lines():
            _lines(figure, axes, plot)
        case Heat():
            _heat(axes, plot)
    return figure


def _bars(axes: Any, bars: Bars) -> None:
    if not _names(axes, bars.names, bars.label, bars.unit):
        return
    colour = BAD if bars.bad else CALM
    places = range(len(bars.names))
    axes.barh(places, bars.values, color=colour, height=0.68)
    _ends(axes, [float(value) for value in bars.values], bars.unit)


def _stacks(figure: Figure, axes: Any, stacks: Stacks) -> None:
    if not _names(axes, stacks.names, stacks.label, "count"):
        return
    places = range(len(stacks.names))
    ends = [0.0] * len(stacks.names)
    tints = colours(stacks.parts)
    for colour, values in zip(tints, zip(*stacks.values, strict=True), strict=True):
        axes.barh(places, values, left=ends, color=colour, height=0.68)
        ends = [end + value for end, value in zip(ends, values, strict=True)]
    _ends(axes, ends, "count")
    _legend(figure, [Patch(color=colour) for colour in tints], stacks.parts)


def _lines(figure: Figure, axes: Any, lines: Lines) -> None:
    kept = [place for place, ms in enumerate(lines.at_ms) if DATES_MS[0] <= ms < DATES_MS[1]]
    if not kept or not lines.series:
        _nothing(axes)
        return
    days = [lines.at_ms[place] / DAY_MS for place in kept]
    tints = colours(tuple(lines.series))
    ahead = None if lines.forecast_ms is None else lines.forecast_ms / DAY_MS
    for colour, series in zip(tints, lines.series.values(), strict=True):
        values = [float("nan") if (value := series[place]) is None else value for place in kept]
        known = [n for n, day in enumerate(days) if ahead is None or day < ahead]
        # A line of one point is none: it needs a dot to be seen.
        dot = "o" if len(known) == 1 else None
        axes.plot(
            [days[n] for n in known],
            [values[n] for n in known],
            color=colour,
            linewidth=1.9,
            marker=dot,
            solid_capstyle="round",
        )
        if ahead is not None:
            coming = [n for n, day in enumerate(days) if day >= ahead]
            coming = [*known[-1:], *coming]  # joined to what is known
            axes.plot(
                [days[n] for n in coming],
                [values[n] for n in coming],
                color=colour,
                linewidth=1.9,
                linestyle=DASHES,
            )
    if ahead is not None and days[-1] > ahead:
        axes.axvspan(ahead, days[-1], color=GRID, alpha=0.45, linewidth=0)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.margins(x=0.01)
    if len(days) == 1:
        axes.set_xlim(days[0] - 1 / 24, days[0] + 1 / 24)
    axes.grid(axis="y", color=GRID, linewidth=0.9)
    axes.tick_params(axis="x", pad=6)  # the lowest mark of the other axis stands beside
    axes.set_ylabel(shorten(lines.label, 60), size=10, color=MUTED, parse_math=False)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    _time(axes)
    handles = [Line2D([], [], color=colour, linewidth=2.2) for colour in tints]
    names = [*lines.series]
    if ahead is not None:
        handles.append(Line2D([], [], color=MUTED, linewidth=2, linestyle=DASHES))
        names.append("forecast")
    _legend(figure, handles, names)


def _heat(axes: Any, heat: Heat) -> None:
    kept = [place for place, ms in enumerate(heat.at_ms) if DATES_MS[0] <= ms < DATES_MS[1]]
    if not heat.names or not kept:
        _nothing(axes)
        return
    top = max((row[place] for row in heat.values for place in kept), default=0) or 1
    red, green, blue = to_rgb(CALM)
    # One colour, more or less of it: as readable on a dark page as on a light one.
    cells = [
        [(red, green, blue, 0.05 + 0.95 * max(row[place], 0) / top) for place in kept]
        for row in heat.values
    ]
    days = [heat.at_ms[place] / DAY_MS for place in kept]
    step = min((b - a for a, b in itertools.pairwise(days)), default=1 / 24)
    axes.pcolormesh([*days, days[-1] + step], range(len(heat.names) + 1), cells, linewidth=0)
    axes.set_yticks(
        [place + 0.5 for place in range(len(heat.names))],
        labels=[shorten(name) for name in heat.names],
        color=INK,
        parse_math=False,
    )
    axes.set_ylim(max(len(heat.names), 1), 0)
    label = f"{shorten(heat.label, 60)}; the darkest cell has {short(top)}"
    axes.set_xlabel(label, size=10, color=MUTED, parse_math=False)
    _time(axes)


def _time(axes: Any) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator)
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.get_offset_text().set_color(MUTED)


def _names(axes: Any, names: Sequence[str], label: str, unit: Unit) -> bool:
    """The frame of bars, or the word that there are none."""
    axes.set_xlabel(shorten(label, 60), size=10, color=MUTED, parse_math=False)
    if not names:
        _nothing(axes)
        return False
    axes.grid(axis="x", color=GRID, linewidth=0.9)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value, unit)))
    axes.set_yticks(
        range(len(names)),
        labels=[shorten(name, NAME_CHARACTERS) for name in names],
        color=INK,
        parse_math=False,
    )
    axes.set_ylim(max(len(names), ROWS_MIN) - 0.4, -0.6)  # the first on top
    return True


def _ends(axes: Any, ends: Sequence[float], unit: Unit) -> None:
    top = max(*ends, 0) or 1
    steps = {"bytes": BYTES_STEPS, "duration": SPAN_STEPS}.get(unit)
    if steps is None:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=unit == "count"))
    else:
        step = next((each for each in steps if top / each <= TICKS_MAX), steps[-1])
        axes.xaxis.set_major_locator(MultipleLocator(max(step, top / TICKS_MAX)))
    axes.set_xlim(min(*ends, 0) * 1.14, top * 1.17)
    for place, value in enumerate(ends):
        axes.text(
            max(value, 0) + top * 0.012, place, short(value, unit), va="center", size=9.5, color=INK
        )


def _nothing(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "none", ha="center", va="center", color=MUTED, transform=axes.transAxes)


def _legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    legend = figure.legend(
        handles=handles,
        labels=["-"] * len(handles),
        loc="outside lower center",
        ncols=min(len(handles), 6 if sum(map(len, names)) < LEGEND_CHARACTERS else 3),
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
    )
    # Not as labels: those would be read as mathematics, and left out if they begin with "_".
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(shorten(name))
