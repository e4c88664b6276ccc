"""All long proofs, one after another, and their figures in one file.

    make proof                          # hours; stop it and go on whenever you like
    python -m tests.proof --only simulation,mutants

Each part keeps its own record (`record.py`) and picks up where it was; a part that was finished for
the sources as they are is not run again. `build/proof.json` has what every part found.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table

from tests.proof.record import RECORDS, ROOT

RESULT: Final = ROOT / "build" / "proof.json"

PARTS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "simulation": (("tests.simulation", "run"), ("simulation",)),
    "simulation-doubled": (("tests.simulation", "run", "--doubled"), ("simulation-doubled",)),
    "wills": (("tests.simulation", "wills"), ("wills",)),
    "properties": (("tests.properties",), ("properties",)),
    "mutants": (("tests.mutants",), ("mutants",)),
    "history": (("tests.history",), ("history",)),
    "crash-failpoints": (("tests.crash", "failpoints"), ("crash-failpoints",)),
    "crash-kills": (("tests.crash", "kills"), ("crash-kills",)),
    "crash-images": (
        ("tests.crash.images", "run"),
        ("crash-images", "crash-disk", "crash-flips"),
    ),
    "bad-input": (("tests.bad_input",), ("bad_input",)),
    "nemesis": (("tests.nemesis", "run"), ("nemesis",)),
    "hosts": (("tests.hosts",), ("hosts",)),
}
"""Part -> its command, and the records it leaves."""

console = Console()


def main(only: str = typer.Option("", help="Parts to run, with commas; all without it.")) -> None:
    """Run the long proofs and merge their figures."""
    chosen = [each for each in only.split(",") if each] or list(PARTS)
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        raise typer.BadParameter(f"no such part: {', '.join(unknown)}; there are {list(PARTS)}")
    failed = []
    for part in chosen:
        console.rule(part)
        begun = time.monotonic()
        module, *rest = PARTS[part][0]
        status = subprocess.run([sys.executable, "-m", module, *rest], cwd=ROOT, check=False)
        console.print(f"{part}: status {status.returncode}, {time.monotonic() - begun:,.0f} s")
        if status.returncode:
            failed.append(part)
        _merge()
    _show()
    if failed:
        console.print(f"[red]failed: {', '.join(failed)}")
        raise typer.Exit(1)


def _merge() -> dict[str, Any]:
    """Everything that has a record, into one file."""
    found = {}
    for _, records in PARTS.values():
        for name in records:
            path = RECORDS / f"{name}.json"
            if path.exists():
                found[name] = json.loads(path.read_bytes())
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    return found


def _show() -> None:
    table = Table("part", "finished", "commit", "seconds", "figures")
    for name, record in _merge().items():
        figures = ", ".join(
            f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}"
            for key, value in record["figures"].items()
            if isinstance(value, int | float | str)
        )
        finished = "yes" if record["finished"] else "no"
        table.add_row(name, finished, record["commit"], f"{record['seconds']:,.0f}", figures)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
