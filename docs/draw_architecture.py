"""Draws docs/architecture.png: nodes, groups, replicas, controller and Spark, on one page.

`make pictures` runs it. The picture says four things: a group is spread over the nodes; groups lead
on different nodes; the controller stands beside the metadata leader; Spark reads from the same
cluster without voting in it.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

GROUPS = (("metadata-0", "#3f6ad8"), ("offset-0", "#d9822b"), ("mqtt-0", "#2f9e68"))
INK = "#22303c"
PALE = "#f4f6f8"


def box(
    ax: Axes, x: float, y: float, w: float, h: float, face: str, edge: str, width: float = 1.2
) -> None:
    """A rounded box with its lower left corner at (x, y)."""
    style = "round,pad=0,rounding_size=0.12"
    ax.add_patch(
        FancyBboxPatch((x, y), w, h, boxstyle=style, facecolor=face, edgecolor=edge, lw=width)
    )


def arrow(
    ax: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    bend: float = 0.0,
    both: bool = False,
    colour: str = INK,
) -> None:
    """An arrow, bent by `bend`."""
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="<|-|>" if both else "-|>",
            mutation_scale=12,
            lw=1.3,
            color=colour,
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=2,
            shrinkB=2,
        )
    )


def draw(path: Path) -> None:
    """Draw the picture into `path`."""
    fig, ax = plt.subplots(figsize=(12, 7.2), dpi=110)
    ax.set_xlim(0, 12)
    ax.set_ylim(0, 7.2)
    ax.axis("off")

    clients = (("MQTT brokers", 0.4), ("Kafka-like brokers", 4.5), ("tools, your Python", 8.6))
    for label, x in clients:
        box(ax, x, 6.35, 3.0, 0.6, "white", INK)
        ax.text(x + 1.5, 6.65, label, ha="center", va="center", color=INK, fontsize=12)
        arrow(ax, (x + 1.5, 6.35), (x + 1.5, 5.78), both=True)
    box(ax, 0.4, 5.35, 11.2, 0.42, "#e7ecf5", "#b8c4da")
    ax.text(
        6.0,
        5.56,
        "client: one proposal carries everything that waits · (client, sequence) makes "
        "retries safe · slot map says which group",
        ha="center",
        va="center",
        color=INK,
        fontsize=10.5,
    )

    for node in range(3):
        x = 0.4 + node * 3.83
        box(ax, x, 1.75, 3.54, 3.3, PALE, "#c5ccd3")
        ax.text(
            x + 0.15,
            4.83,
            f"Ray node {node + 1}",
            color=INK,
            fontsize=11,
            weight="bold",
            va="center",
        )
        for number, (group, colour) in enumerate(GROUPS):
            y = 3.93 - number * 0.72
            leads = number == node
            box(
                ax,
                x + 0.18,
                y,
                2.1,
                0.58,
                colour if leads else "white",
                colour,
                1.8 if leads else 1.2,
            )
            ax.text(
                x + 0.3,
                y + 0.29,
                f"{group}/{node}",
                va="center",
                fontsize=10,
                color="white" if leads else colour,
                weight="bold" if leads else "normal",
            )
            if leads:
                ax.text(
                    x + 2.2,
                    y + 0.29,
                    "leads",
                    va="center",
                    ha="right",
                    fontsize=8.5,
                    color="white",
                    style="italic",
                )
        box(ax, x + 2.42, 2.49, 0.95, 2.02, "white", "#9aa5b1")
        ax.text(x + 2.895, 3.9, "LMDB", ha="center", fontsize=10.5, weight="bold", color=INK)
        ax.text(
            x + 2.895,
            3.2,
            "log/\nsynced\nstate/\nflushed",
            ha="center",
            va="center",
            fontsize=9,
            color=INK,
        )
        if node == 0:
            box(ax, x + 0.18, 1.88, 3.18, 0.46, "#fff4cf", "#c9a227")
            ax.text(
                x + 1.77,
                2.11,
                "controller: liveness, timers, repair",
                ha="center",
                va="center",
                fontsize=8.8,
                color=INK,
            )
        else:
            ax.text(
                x + 1.77,
                2.11,
                "one bundle of every placement group",
                ha="center",
                va="center",
                fontsize=9,
                color="#6b7783",
            )
    for node in range(2):
        x = 0.4 + node * 3.83
        for number, (_, colour) in enumerate(GROUPS):
            y = 4.22 - number * 0.72
            # Replica to replica, over the gap between the nodes.
            arrow(ax, (x + 3.43, y), (x + 4.0, y), both=True, colour=colour)

    box(ax, 0.4, 0.25, 11.2, 0.95, "#fdeee6", "#d9764a")
    ax.text(
        6.0,
        0.9,
        "Spark on the same cluster (RayDP)",
        ha="center",
        va="center",
        fontsize=12,
        weight="bold",
        color=INK,
    )
    ax.text(
        6.0,
        0.53,
        "a consistent cut per group → Arrow → DataFrame → consumer progress, session "
        "statistics → Parquet, PNG",
        ha="center",
        va="center",
        fontsize=10.5,
        color=INK,
    )
    for node in range(3):
        x = 0.4 + node * 3.83 + 2.9
        arrow(ax, (x, 1.75), (x, 1.2), colour="#d9764a")
    fig.savefig(path, bbox_inches="tight", pad_inches=0.08, facecolor="white")


if __name__ == "__main__":
    draw(Path(__file__).with_name("architecture.png"))
