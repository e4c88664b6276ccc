"""Every golden script still says what it said. `pytest --rewrite` writes down what it says now."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.raft.script import Script

FOLDER = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(FOLDER.glob("*.script"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    was, now = path.read_text(), Script().run(path)
    assert was.startswith("# "), "a script begins with its claim"
    if request.config.getoption("--rewrite"):
        path.write_text(now)
        return
    assert now == was


def catalogue() -> list[list[str]]:
    """The rows of all tables: what goes wrong, where it was seen, what shows it."""
    lines = (FOLDER / "README.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return [row for row in rows if row[0] != "what goes wrong" and set(row[0]) != {"-"}]


def test_the_catalogue_names_what_there_is() -> None:
    rows = catalogue()
    assert len(rows) >= 40, "the table was not read"
    for what, seen, shown in rows:
        assert what, "a row says what goes wrong"
        assert seen, f"{what}: seen where?"
        scripts = re.findall(r"(?<![\w/])[a-z][a-z_0-9]*_[a-z_0-9]+(?![\w./])", shown)
        tests = re.findall(r"tests/[\w/.]+", shown)
        assert scripts or tests, f"{what}: shown by nothing"
        missing = [name for name in scripts if not (FOLDER / f"{name}.script").exists()]
        missing += [name for name in tests if not (ROOT / name).exists()]
        assert not missing, f"{what}: {missing} are not there"


def test_every_claim_is_made_once() -> None:
    claims = Counter(path.read_text().splitlines()[0] for path in SCRIPTS)
    assert [claim for claim, count in claims.items() if count > 1] == []
