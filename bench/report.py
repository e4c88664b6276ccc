"""The table on the terminal, `bench.json`, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

PHASES: Final = ("queue", "append", "replicate", "apply")
PAGE_COLUMNS: Final = 140  #: the widest table fits on such a page
COLOURS: Final = {"metaray": "#4c78a8", "etcd": "#f2a65a", "zookeeper": "#8fb573"}
"""The systems in the order of columns and bars."""

AXES: Final = {
    "ops/s": "operations a second, more is better",
    "ms": "milliseconds, less is better",
    "times": "times as long, less is better",
}
"""What is drawn, by its unit; each has an axis of its own."""


def systems(result: dict[str, Any]) -> list[str]:
    """Which were measured."""
    return [name for name in COLOURS if any(name in row for row in result["rows"])]


def table(result: dict[str, Any], *, phases: bool) -> Table:
    """All rows, a line each; below them what did not succeed.

    A row is told in words where there is room for them, and by its name beside peers or phases.
    """
    names = systems(result)
    title = "workload" if phases or len(names) > 1 else "says"
    known = any("before" in row for row in result["rows"])
    told = ["ratio"] if len(names) > 1 else ["p50 ms", "p99 ms"]
    told += ["before", "times before"] if known else []
    told += ["must", "aim", *(PHASES if phases else ())]
    below = [text for text in (_errors(result), _recorded(result)) if text]
    shown = Table("workload", "unit", *names, *told, caption="\n".join(below) or None)
    shown.columns[0].overflow = "fold"  # names that differ at their end stay apart
    for row in result["rows"]:
        medians = row["metaray"]["medians"]
        cells = [row[title], row["unit"]]
        digits = 2 if row["unit"] == "times" else 0
        cells += [_figure(row, name, digits) for name in names]
        if len(names) > 1:
            cells.append(_ratio(row))
        else:
            cells += [_number(medians.get(name)) for name in ("p50_ms", "p99_ms")]
        if known:
            cells += _before(row.get("before"), digits)
        bounded = len(names) > 1 or row["absolute"]
        cells += [_bound(row, name, digits) if bounded else "" for name in ("must", "aim")]
        if phases:
            cells += [_share(medians.get(f"share_{name}")) for name in PHASES]
        shown.add_row(*cells)
    return shown


def _errors(result: dict[str, Any]) -> str | None:
    """Calls that failed, over all rounds; None if none did."""
    found = []
    for row in result["rows"]:
        for name in systems(result):
            count = sum(each.get("errors", 0) for each in row.get(name, {}).get("rounds", ()))
            if count:
                found.append(f"{name} {row['workload']} {count:,.0f}")
    return f"calls that failed: {', '.join(found)}" if found else None


def _recorded(result: dict[str, Any]) -> str | None:
    """When what stands beside this run was measured; None if nothing does."""
    times = sorted(row["before"]["at"] for row in result["rows"] if "before" in row)
    if not times:
        return None
    first, last = times[0], times[-1]
    return f"before: recorded {first}" + (f" to {last}" if last != first else "")


def _before(told: dict[str, Any] | None, digits: int) -> list[Text | str]:
    """What was recorded, and how many times better it is now: coloured where rounds lie apart."""
    if told is None:
        return ["", ""]
    if told["times"] is None:
        return [_number(told["median"], digits), ""]
    colour = ("green" if told["times"] > 1 else "red") if told["apart"] else ""
    return [_number(told["median"], digits), Text(_number(told["times"]), colour)]


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _figure(row: dict[str, Any], name: str, digits: int) -> Text | str:
    """A system's figure; metaray's is coloured where there are bounds to it."""
    figure = row.get(name, {}).get("median")
    shown = _number(figure, digits)
    if name != "metaray" or not row["absolute"] or figure is None:
        return shown
    return Text(shown, _colour(figure, row, higher=row["better"] == "higher"))


def _bound(row: dict[str, Any], name: str, digits: int) -> str:
    """A ratio to the better peer, or a figure: one that is no ratio says from which side."""
    if not row["absolute"]:
        return _number(row[name] or None)
    return f"{'≥' if row['better'] == 'higher' else '≤'} {_number(row[name], digits)}"


def _ratio(row: dict[str, Any]) -> Text | str:
    """Green where the aim is reached, red where not even what must be is."""
    ratio = row["ratio"]
    return "" if ratio is None else Text(_number(ratio), _colour(ratio, row, higher=True))


def _colour(figure: float, row: dict[str, Any], *, higher: bool) -> str:
    sign = 1 if higher else -1
    if sign * figure >= sign * row["aim"]:
        return "green"
    return "red" if sign * figure < sign * row["must"] else ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def write(result: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """`bench.json` and `bench.png` in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    values, picture = folder / "bench.json", folder / "bench.png"
    values.write_text(json.dumps(result, indent=2) + "\n")
    draw(result, picture)
    return values, picture


def draw(result: dict[str, Any], path: Path) -> None:
    """The systems beside each other; logarithmic: rows lie decades apart. A dot is a round."""
    from matplotlib.figure import Figure

    names = systems(result)
    panels = {
        unit: [row for row in result["rows"] if row["unit"] == unit]
        for unit in AXES
        if any(row["unit"] == unit for row in result["rows"])
    }
    lines = [len(rows) for rows in panels.values()]
    height = 0.8 + 0.8 * len(panels) + (0.15 + 0.22 * len(names)) * sum(lines)
    figure = Figure(figsize=(9, height), layout="constrained")
    every = figure.subplots(len(panels), squeeze=False, height_ratios=lines)[:, 0]
    for axes, (unit, rows) in zip(every, panels.items(), strict=True):
        _panel(axes, rows, names)
        axes.set_xlabel(f"{AXES[unit]}; median of rounds")
    if len(names) > 1:
        figure.legend(*every[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=130)


def _panel(axes: Any, rows: list[dict[str, Any]], names: list[str]) -> None:
    thick = 0.8 / len(names)
    beside = [[name for name in names if name in row] for row in rows]
    for name in names:
        told = [(line, row[name]) for line, row in enumerate(rows) if name in row]
        places = [
            line + (beside[line].index(name) - (len(beside[line]) - 1) / 2) * thick
            for line, _ in told
        ]
        medians = [values["median"] for _, values in told]
        axes.barh(places, medians, color=COLOURS[name], height=thick * 0.9, label=name)
        for place, (_, values) in zip(places, told, strict=True):
            rounds = [each["figure"] for each in values["rounds"]]
            axes.plot(rounds, [place] * len(rounds), ".", color="#1b2a41", markersize=3)
            furthest = max(*rounds, values["median"])
            form = ",.0f" if furthest >= 10 else ".1f"
            axes.annotate(f" {values['median']:{form}}", (furthest, place), va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [row["says"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.margins(x=0.15)
