"""What the replicas of a group have must be the same: rows at one index, and committed entries."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from actors import columns
from state_machines import tables
from tests.history.logged import agreed, read_log
from tests.nemesis.world import GROUPS, World, wait_for

PAGE_ROWS = 20_000


def exportable(group: str) -> tuple[str, ...]:
    """The tables of the group's kind that can be exported, and those that every group has."""
    kinds = (f"{group.rpartition('-')[0]}.", "group.")
    found = []
    for name in sorted(tables.TABLES):
        if name.startswith(kinds):
            try:
                columns.schema_of(tables.TABLES[name].row)
            except TypeError:
                continue  # its rows have no columns; the replicas' files are compared at the end
            found.append(name)
    return tuple(found)


def same_everywhere(world: World, group: str) -> tuple[int, int]:
    """Compare the replicas' rows. Returns (index, rows); raises where they differ."""
    names = exportable(group)
    taken: dict[str, dict[str, Any]] = {}

    def at_one_index() -> bool:
        close()
        for seat in world.seats(group):
            taken[seat] = world.ask(seat, "export_open", names, seconds=60.0)
        return len({each["index"] for each in taken.values()}) == 1

    def close() -> None:
        for seat, cut in taken.items():
            world.ask(seat, "export_close", cut["cut"])
        taken.clear()

    try:
        wait_for(at_one_index, f"the replicas of {group} stand at one index")
        digests = {seat: _digest(world, seat, cut["cut"], names) for seat, cut in taken.items()}
        assert len({each for each, _ in digests.values()}) == 1, (
            f"{group}: the replicas differ at one index: {digests}"
        )
        return next(iter(taken.values()))["index"], next(iter(digests.values()))[1]
    finally:
        close()


def _digest(world: World, seat: str, cut: str, names: tuple[str, ...]) -> tuple[str, int]:
    import pyarrow as pa

    digest, rows = hashlib.sha256(), 0
    for name in names:
        after = b""
        while True:
            page, after = world.ask(seat, "export_page", cut, name, after, PAGE_ROWS, seconds=60.0)
            digest.update(page)
            rows += pa.ipc.open_stream(page).read_all().num_rows
            if not after:
                break
    return digest.hexdigest(), rows


def same_logs(data: Path) -> int:
    """Compare the logs of all replicas that a cluster which has ended left under `data`: entries
    committed at one index are one entry. Returns how many were compared; raises where they differ.
    """
    compared = 0
    for group in GROUPS:
        found = [each for each in data.glob(f"node-*/{group}/*") if (each / "log").is_dir()]
        logs = [read_log(each) for each in sorted(found)]
        assert len(logs) > 1, f"{group} left {len(logs)} logs"
        compared += len(agreed(logs))
    return compared
