"""The report as one picture: who is behind, who is busy, and where the sessions are.

Everything drawn comes as small Arrow tables, already cut to what fits, so the picture does not
depend on how many groups there are. Names come from clients: they are shortened, never read as
mathematics, and a letter the font lacks is drawn as a box rather than refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from jobs.sessions import STATES

INK, MUTED, GRID = "#1f2933", "#66737f", "#e3e8ed"
LAG, RATE = "#c4552d", "#2f6f9f"
STATE_COLOURS = dict(zip(STATES, ("#3a9d6e", "#e0a83a", "#b8433f"), strict=True))
UNITS = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
NAME_CHARACTERS_MAX = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Names and values, largest first."""

    names: Sequence[str]
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Names, and for each a count per session state."""

    names: Sequence[str]
    counts: Sequence[Sequence[int]]  # one per name, in the order of STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that `draw` needs."""

    subtitle: str
    lag: Bars
    rate: Bars
    brokers: Stacks
    expiry: Stacks
    expiring: Stacks


def draw(picture: Picture, path: Path) -> None:
    """Write the picture as PNG to `path`."""
    figure = Figure(figsize=(15, 9.6), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    # The engine makes room for names of any width; title and legend keep what is outside.
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0.012, 0.06, 0.976, 0.825), wspace=0.05, hspace=0.09)
    # Rows with columns of their own: one grid for both would squeeze names into its narrow cells.
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 0.95))
    above, below = halves
    lag, rate = above.subplots(1, 2)
    broker, expiry, expiring = below.subplots(1, 3)
    figure.text(0.02, 0.95, "Consumers and sessions", size=20, weight="bold", color=INK)
    figure.text(0.02, 0.918, picture.subtitle, size=11, color=MUTED, parse_math=False)

    _bars(lag, picture.lag, LAG, "Largest lag by consumer group", "records")
    _bars(rate, picture.rate, RATE, "Highest commit rate by consumer group", "commits per second")
    _stacks(broker, picture.brokers, "Sessions by broker")
    _stacks(expiry, picture.expiry, "Sessions by expiry asked for")
    _stacks(expiring, picture.expiring, "Sessions by time left")
    figure.legend(
        handles=[_swatch(state) for state in STATES],
        loc="lower center",
        ncols=len(STATES),
        frameon=False,
        fontsize=11,
        bbox_to_anchor=(0.5, 0.005),
        labelcolor=INK,
    )
    with warnings.catch_warnings():
        # A client may be named in any script; the bundled font has not every letter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, format="png")


def shorten(name: str) -> str:
    """A name as it fits beside a bar: printable, its middle left out if it is long."""
    name = "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in name)
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    half = (NAME_CHARACTERS_MAX - 1) // 2
    return f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"


def count(value: float) -> str:
    """A count as it is written beside a bar: 950, 1.2 k, 34 M."""
    for unit, size in UNITS:
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.1f} {unit}" if scaled < 10 else f"{scaled:.0f} {unit}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def _bars(axes: Any, bars: Bars, colour: str, title: str, unit: str) -> None:
    _frame(axes, title, unit, [shorten(name) for name in bars.names])
    if not bars.names:
        return
    places = range(len(bars.names))
    axes.barh(places, bars.values, color=colour, height=0.68)
    top = max(*bars.values, 0) or 1
    axes.set_xlim(0, top * 1.14)
    for place, value in zip(places, bars.values, strict=True):
        axes.text(value + top * 0.012, place, count(value), va="center", size=9.5, color=INK)


def _stacks(axes: Any, stacks: Stacks, title: str) -> None:
    _frame(axes, title, "sessions", [shorten(name) for name in stacks.names])
    if not stacks.names:
        return
    places = range(len(stacks.names))
    ends = [0] * len(stacks.names)
    for state, values in zip(STATES, zip(*stacks.counts, strict=True), strict=True):
        axes.barh(places, values, left=ends, color=STATE_COLOURS[state], height=0.68)
        ends = [end + value for end, value in zip(ends, values, strict=True)]
    top = max(*ends, 0) or 1
    axes.set_xlim(0, top * 1.2)
    for place, total in zip(places, ends, strict=True):
        axes.text(total + top * 0.02, place, count(total), va="center", size=9.5, color=INK)


def _frame(axes: Any, title: str, unit: str, names: Sequence[str]) -> None:
    axes.set_title(title, loc="left", size=13, weight="bold", color=INK, pad=10)
    axes.set_xlabel(unit, size=10, color=MUTED)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(length=0, colors=MUTED, labelsize=9.5)
    axes.set_axisbelow(True)
    if not names:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "none", ha="center", va="center", color=MUTED, transform=axes.transAxes)
        return
    axes.grid(axis="x", color=GRID, linewidth=0.9)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.set_yticks(range(len(names)), labels=names, color=INK, parse_math=False)
    # Few bars stay bars: room for five at least, and the first on top.
    axes.set_ylim(max(len(names), 5) - 0.4, -0.6)


def _swatch(state: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=STATE_COLOURS[state], label=state)
