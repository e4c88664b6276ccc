"""No paragraph is passed over: each has a test that names it, or a reason why it has none.

A test names its paragraph at the beginning of its docstring ("Paper 5.2 ¶3: ..."), and goes on with
what it says. Paragraphs that state nothing that could be seen from outside are in the `UNTESTED` of
the module where their section is. Lists whose points are claims of their own count point by point.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PARAGRAPHS = {
    # Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", extended version
    "Paper 5.1": 4,
    "Paper 5.2": 7,
    "Paper 5.3": 11,
    "Paper 5.4": 2,
    "Paper 5.4.1": 3,
    "Paper 5.4.2": 3,
    "Paper 5.4.3": 3,
    # Ongaro, "Consensus: Bridging Theory and Practice"
    "Thesis 4": 2,
    "Thesis 4.1": 8,
    "Thesis 4.2": 1,
    "Thesis 4.2.1": 6,
    "Thesis 4.2.2": 4,
    "Thesis 4.2.3": 6,
    "Thesis 4.2.4": 2,
    "Thesis 4.3": 6,
    "Thesis 4.4": 5,
    "Thesis 6": 2,
    "Thesis 6.1": 2,
    "Thesis 6.2": 3,
    "Thesis 6.3": 9,
    "Thesis 6.4": 6,
    "Thesis 6.4.1": 4,
}
POINTS = {"Paper 5.4.3 step": 8, "Thesis 4.2.4 item": 4, "Thesis 6.4 step": 5}
CONTAINED = {"Thesis 6.4 ¶3": "Thesis 6.4 step"}  #: a paragraph that is nothing but its points

NAMED = re.compile(r"(?:Paper|Thesis) [\d.]+ (?:¶|step |item )\d+")
MODULES = sorted(
    path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name
)


def wanted() -> set[str]:
    found = {f"{part} ¶{n}" for part, count in PARAGRAPHS.items() for n in range(1, count + 1)}
    found |= {f"{part} {n}" for part, count in POINTS.items() for n in range(1, count + 1)}
    return found - CONTAINED.keys()


def read(path: Path) -> tuple[dict[str, str], set[str]]:
    """Test -> the paragraph its docstring begins with; and what the module says it cannot test."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named: dict[str, str] = {}
    untested: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            match = NAMED.match(ast.get_docstring(node) or "")
            assert match, f"{path.name}: {node.name} does not say which paragraph it tests"
            named[node.name] = match.group()
        if isinstance(node, ast.Assign | ast.AnnAssign) and "UNTESTED" in ast.unparse(node)[:8]:
            assert node.value is not None
            reasons = ast.literal_eval(node.value)
            assert all(len(reason) > 15 for reason in reasons.values()), "a reason is a sentence"
            untested = set(reasons)
    return named, untested


def test_every_paragraph_is_tested_or_explained() -> None:
    tested: set[str] = set()
    untested: set[str] = set()
    for path in MODULES:
        named, reasons = read(path)
        tested |= {*named.values()}
        untested |= reasons
    assert sorted(wanted() - tested - untested) == [], "neither tested nor explained"
    assert sorted((tested | untested) - wanted()) == [], "there is no such paragraph"
    assert sorted(tested & untested) == [], "said to have no test, and has one"
    assert len(tested) > 3 * len(untested), "most of it can be tested"
