"""The tables on the terminal, and the picture of growth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

MB = 1e6


def tables(result: dict[str, Any]) -> Iterable[Table]:
    """Sessions, a column a size, and topics."""
    found = result["sessions"].values()
    shown = Table("sessions", *(f"{int(rows):,}" for rows in result["sessions"]))
    lines: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
        ("private memory, MB", lambda each: f"{_private(each) / MB:,.0f}"),
        ("the same with page cache, MB", lambda each: f"{_with_pages(each) / MB:,.0f}"),
        ("on disk, MB", lambda each: f"{each['disk_bytes'] / MB:,.0f}"),
        ("a change, us", lambda each: f"{each['change']['median']['many']['us']:.1f}"),
        ("a change, times that of the fewest", lambda each: f"{each['change']['ratio']:.2f}"),
        ("killed, started again, serving, s", lambda each: f"{each['restart']['total_s']:.1f}"),
        ("of it opening, s", lambda each: f"{each['restart']['open_s']:.2f}"),
        ("all rows looked at after, s", lambda each: f"{each['restart']['looked_s']:.1f}"),
    )
    for says, figure in lines:
        shown.add_row(says, *map(figure, found))
    yield shown
    if result["topics"]:
        topics = result["topics"]
        changes = Table("topics", "us a change", "x")
        for name in ("few", "many"):
            ratio = f"{topics['ratio']:.2f}" if name == "many" else "1"
            us = topics["median"][name]["us"]
            changes.add_row(f"{topics[f'{name}_rows']:,}", f"{us:.1f}", ratio)
        yield changes


def _private(each: dict[str, Any]) -> int:
    return max(int(memory["private_bytes"]) for memory in each["memory"].values())


def _with_pages(each: dict[str, Any]) -> int:
    return max(int(memory["uss_bytes"]) for memory in each["memory"].values())


def draw(result: dict[str, Any], path: Path) -> None:
    """How each figure grows with the rows; dashed is what is wanted at most."""
    from matplotlib.figure import Figure

    sizes = [int(rows) for rows in result["sessions"]]
    found = list(result["sessions"].values())
    wanted = result["wanted"]
    panels: tuple[tuple[str, list[float], float], ...] = (
        (
            "private memory, MB",
            [_private(each) / MB for each in found],
            wanted["private_bytes"] / MB,
        ),
        (
            "a change, times that of the fewest",
            [each["change"]["ratio"] for each in found],
            wanted["change_ratio"],
        ),
        (
            "killed, started again, serving: s",
            [each["restart"]["total_s"] for each in found],
            wanted["restart_s"],
        ),
    )
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (title, values, limit) in zip(figure.subplots(1, 3), panels, strict=True):
        axes.plot(sizes, values, "o-", color="#4c78a8")
        axes.axhline(limit, linestyle="--", color="#b13f3f")
        axes.set_xscale("log")
        axes.set_ylim(0, 1.15 * max(*values, limit))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("sessions")
    figure.savefig(path, dpi=130)
