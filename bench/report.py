"""The table on the terminal, `bench.json`, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

PHASES = ("queue", "append", "replicate", "apply")


def table(result: dict[str, Any], *, phases: bool) -> Table:
    """All rows, a line each."""
    shown = Table("workload", "median", "unit", "p50 ms", "p99 ms", *(PHASES if phases else ()))
    for row in result["rows"]:
        medians = row["metaray"]["medians"]
        cells = [row["says"], f"{medians['figure']:,.0f}", row["unit"]]
        cells += [_number(medians.get(name)) for name in ("p50_ms", "p99_ms")]
        if phases:
            cells += [_share(medians.get(f"share_{name}")) for name in PHASES]
        shown.add_row(*cells)
    return shown


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


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
    """Rates on one axis, logarithmic because they lie three decades apart; a dot is a round."""
    from matplotlib.figure import Figure

    rows = [row for row in reversed(result["rows"]) if row["unit"] == "ops/s"]
    figure = Figure(figsize=(9, 0.5 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        axes.barh(place, row["metaray"]["median"], color="#4c78a8", height=0.6)
        rounds = [each["figure"] for each in row["metaray"]["rounds"]]
        axes.plot(rounds, [place] * len(rounds), ".", color="#1b2a41")
        axes.annotate(
            f" {row['metaray']['median']:,.0f}", (max(rounds), place), va="center", fontsize=8
        )
    axes.set_yticks(range(len(rows)), [row["says"] for row in rows])
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("operations a second, median of rounds")
    figure.savefig(path, dpi=130)
