"""How fast a large state is exported, and what it takes of memory.

    python -m bench.export --rows 1000000

One replica in a process of its own (`bench.scale.seat`) with so many sessions puts its state aside;
an exporter in another process makes pages of the copy, and this one writes them to Parquet: all of
it the code of `metaray export`, and only Ray is not there to carry the pages. Memory is what each
process holds alone, without the pages of LMDB's files, at its highest while rows were read.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import typer
from rich.table import Table

from actors import columns
from actors.clock import SystemClock
from actors.exporter import Exporter
from bench.run import machine, versions
from bench.scale.process import Process, memory_of
from metaray.cli.app import console, explained
from metaray.cut_files import GroupFiles
from metaray.cuts import PAGE_ROWS
from state_machines.errors import Invalid
from state_machines.tables import TABLES

TABLE: Final = "mqtt.session"
GROUP: Final = "mqtt-0"
ROWS_MIN, ROWS_MAX = 1_000, 20_000_000
LOAD_STEP: Final = 50_000
SAMPLE_SECONDS: Final = 0.2
CALL_SECONDS: Final = 600.0
MB: Final = 1e6

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_exporter: Exporter | None = None  # of the process that exports


@app.command()
@explained
def export(
    rows: Annotated[int, typer.Option(help="Sessions to export.")] = 200_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    out: Annotated[Path, typer.Option("--out", help="For export.json, and data meanwhile.")] = Path(
        "build"
    ),
) -> None:
    """Export so many generated sessions of one replica."""
    if not ROWS_MIN <= rows <= ROWS_MAX:
        raise Invalid(f"rows: from {ROWS_MIN} to {ROWS_MAX}, not {rows}")
    place = out / "export"
    shutil.rmtree(place, ignore_errors=True)
    try:
        result = measure(rows, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    (out / "export.json").write_text(json.dumps(result, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    table = Table("export", "", title=f"{rows:,} rows")
    table.add_row("rows a second", f"{result['rows_per_s']:,.0f}")
    table.add_row("of it the replica copies, s", f"{result['copy_s']:.2f}")
    table.add_row("state, MB", f"{result['state_bytes'] / MB:,.0f}")
    table.add_row("Parquet, MB", f"{result['parquet_bytes'] / MB:,.0f}")
    for name, size in result["peak_private_bytes"].items():
        table.add_row(f"memory of the {name}, MB", f"{size / MB:,.0f}")
    console.print(table)


def measure(rows: int, place: Path) -> dict[str, Any]:
    """One export, from the cut to files that are durable."""
    with (
        Process(place / "replica") as replica,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        for first in range(0, rows, LOAD_STEP):
            replica.ask("load", kind="sessions", first=first, end=min(first + LOAD_STEP, rows))
        replica.ask("settle")
        exporter = pool.submit(_start).result(CALL_SECONDS)
        pids = {"replica": replica.pid, "exporter": exporter, "writer": os.getpid()}
        with _peaks(pids) as peaks:
            begun = time.perf_counter()
            cut = replica.ask("aside", table=TABLE)
            pool.submit(_open, cut["cut"], cut["path"], cut["index"]).result(CALL_SECONDS)
            files = _written(pool, cut["cut"], place / "cut")
            seconds = time.perf_counter() - begun
    written = sum(each.rows for each in files.files)
    assert written == cut["rows"][TABLE] == rows, f"{written} rows of {rows}"
    return {
        "rows": rows,
        "rows_per_s": rows / seconds,
        "seconds": seconds,
        "open_s": cut["open_s"],
        "copy_s": cut["copy_s"],
        "state_bytes": cut["bytes"],
        "parquet_bytes": sum(each.bytes for each in files.files),
        "peak_private_bytes": peaks,
        "machine": machine(),
        "versions": versions(),
    }


def _written(pool: ProcessPoolExecutor, cut: str, directory: Path) -> GroupFiles:
    """As `metaray.exporting` does it: a page is made while the one before is written."""
    directory.mkdir(parents=True)
    files = GroupFiles(directory, GROUP, lambda size: None)
    files.begin(TABLE, columns.schema_of(TABLES[TABLE].row))
    asked = pool.submit(_page, cut, b"")
    while True:
        page, after = asked.result(CALL_SECONDS)
        if after:
            asked = pool.submit(_page, cut, after)
        files.add(columns.from_ipc(page))
        if not after:
            files.end()
            return files


@contextmanager
def _peaks(pids: dict[str, int]) -> Iterator[dict[str, int]]:
    """The most that each process held, looked at again and again until the context ends."""
    peaks = dict.fromkeys(pids, 0)
    ended = threading.Event()

    def look() -> None:
        while True:
            for name, pid in pids.items():
                peaks[name] = max(peaks[name], memory_of(pid).private)
            if ended.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=look, name="memory", daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


# In the process that exports.


def _start() -> int:
    global _exporter
    psutil.Process().nice(10)
    _exporter = Exporter(SystemClock())
    return _exporter.process()


def _open(cut: str, path: str, index: int) -> dict[str, int]:
    assert _exporter is not None, "it was started"
    return _exporter.open(cut, path, index, (TABLE,))


def _page(cut: str, after: bytes) -> tuple[bytes, bytes]:
    assert _exporter is not None, "it was started"
    return _exporter.page(cut, TABLE, after, PAGE_ROWS)


if __name__ == "__main__":
    app()
