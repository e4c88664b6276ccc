"""What the long run found, as a table for people: every bug, where, and whose tests see it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.mutants.catalogue import AREAS, MUTANTS
from tests.mutants.mutant import ROOT

PAGE: Final = ROOT / "docs" / "mutants.md"

MARKS: Final = {
    "kills": "**kills**",
    "survives": "survives",
    "unseen": "",
    "late": "no end",
    "broken": "broken",
    "": "?",
}

HEAD: Final = """\
# Planted bugs

{count} known bugs are put back into the product one at a time, and the tests have to notice. A bug
is planted by changing a module's text as it is imported (`tests/rewriting.py`), so production code
has no switch for it. `make test-long` plants each of them and runs the quickest test that finds it
(`tests/mutants/killers.json`); `python -m tests.mutants` asks every kind of test about every bug
and writes this page. Nothing here is edited by hand.

- **kills**: some test of this kind fails with the bug in place;
- survives: all tests of this kind pass with it;
- no end: they were still running after the time they may take, and had not failed;
- ?: not asked yet;
- empty: the tests of this kind never call the function that has the bug.

Column by column: {columns}.
"""

SAID: Final = {
    "scripts": "the golden scripts (`tests/raft/scripts`)",
    "paper": "tests of one replica by the sections of the paper (`tests/raft`)",
    "random": "random clusters of cores (`tests/raft/test_random.py`)",
    "machine": "the machine, the entities and the wire (`tests/machine`, `tests/entities`, "
    "`tests/wire`)",
    "storage": "log, state and snapshots on disk (`tests/storage`)",
    "actors": "replicas, clients and the controller in virtual time and over test wires "
    "(`tests/actors`)",
    "integrations": "a real amqtt broker and real clients (`tests/integrations`)",
    "backups": "backups that are restored (`tests/backups`)",
    "door": "exports, the operation history and the command line, without Ray (`tests/door`)",
    "jobs": "the files that jobs read, and plans of repairs, without Spark (`tests/jobs`)",
    "properties": "properties with generated cases (`tests/properties`)",
    "input": "bad input at every door (`tests/bad_input`)",
    "crash": "the crash lab (`tests/crash`)",
    "simulation": "forty seeds of the simulator (`tests/simulation`)",
}


def write(verdicts: Mapping[str, Mapping[str, Any]], columns: list[str]) -> Path:
    """`verdicts`: bug -> kind of test -> what came of it."""
    lines = [
        HEAD.format(count=len(MUTANTS), columns="; ".join(f"*{c}*, {SAID[c]}" for c in columns))
    ]
    for area, mutants in AREAS.items():
        lines += [f"## {area}", "", _row(["bug", "breaks", "in", *columns])]
        lines.append(_row(["---"] * (3 + len(columns))))
        for mutant in sorted(mutants, key=lambda each: each.name):
            found = verdicts.get(mutant.name, {})
            marks = [MARKS[found.get(column, {}).get("verdict", "")] for column in columns]
            lines.append(_row([mutant.bug, mutant.law, f"`{mutant.module}`", *marks]))
        lines.append("")
    lines += ["## In numbers", "", *_summary(verdicts, columns), ""]
    PAGE.write_text("\n".join(lines))
    return PAGE


def _summary(verdicts: Mapping[str, Mapping[str, Any]], columns: list[str]) -> list[str]:
    rows = [_row(["", "asked about", "kills", "the only one asked that does"]), _row(["---"] * 4)]
    for column in columns:
        asked = kills = alone = 0
        for found in verdicts.values():
            verdict = found.get(column, {}).get("verdict", "")
            asked += verdict in ("kills", "survives")
            if verdict == "kills":
                kills += 1
                alone += sum(each["verdict"] == "kills" for each in found.values()) == 1
        rows.append(_row([column, str(asked), str(kills), str(alone)]))
    killed = sum(
        any(each["verdict"] == "kills" for each in found.values()) for found in verdicts.values()
    )
    return [*rows, "", f"{killed} of {len(MUTANTS)} bugs are killed."]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
