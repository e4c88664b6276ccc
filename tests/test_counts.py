"""What README and docs/proof.md count is what there is: they are read before anything else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.crash.failpoints import found
from tests.mutants.catalogue import MUTANTS
from tests.simulation.plan import KINDS

ROOT = Path(__file__).parents[1]
README, PROOF = (ROOT / name for name in ("README.md", "docs/proof.md"))
BUGS, FAILPOINTS = len(MUTANTS), len(found())
SCRIPTS = len([*(ROOT / "tests/raft/scripts").glob("*.script")])


@pytest.mark.parametrize(
    ("page", "says", "count"),
    [
        (README, r"(\d+) planted bugs", BUGS),
        (README, r"kill -9 at (\d+) named places", FAILPOINTS),
        (PROOF, r"\| mutants \| (\d+) known bugs", BUGS),
        (PROOF, r"\| failpoints \| kill -9 at (\d+) named places", FAILPOINTS),
        (PROOF, r"\| failpoints \| (\d+) \| etcd", FAILPOINTS),
        (PROOF, r"all (\d+) \| \|\n\| paper", SCRIPTS),
        (PROOF, r"core \| (\d+) files", SCRIPTS),
        (PROOF, r"kinds of fault in simulation \| (\d+) \|", len(KINDS)),
    ],
)
def test_a_count_is_what_there_is(page: Path, says: str, count: int) -> None:
    assert re.findall(says, page.read_text(encoding="utf-8")) == [str(count)]
