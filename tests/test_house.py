"""The house holds together: who may import whom, and what must not stand anywhere.

Each rule is one test over all files, so a new file is under it from its first day, and a message
says what to do instead.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = ("state_machines", "storage", "actors", "jobs", "metaray", "bench")
"""Lowest first. Imports go down: `metaray` may ask `jobs` for a report, `bench` measures all."""

IMPURE = frozenset(
    {
        # time, luck, identity of the moment
        *("datetime", "random", "secrets", "time", "uuid", "zoneinfo"),
        # the world outside, and other threads of control
        *("asyncio", "concurrent", "ctypes", "http", "logging", "multiprocessing", "os", "pathlib"),
        *("select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess"),
        *("tempfile", "threading", "urllib"),
    }
)
"""Standard modules that the pure floor does not import: same inputs, same outputs (law 7)."""

PURE_PACKAGES = frozenset({"google.protobuf", "msgpack", "state_machines"})
UNPICKLED = frozenset({"cloudpickle", "dill", "marshal", "pickle", "shelve"})
EVALUATING = frozenset({"__import__", "compile", "eval", "exec"})
IMPURE_CALLS = frozenset({"float", "hash", "id", "input", "open", "print"})

LAW_LETTERS_MIN = 150
LINES_MAX = 500
CORE_LINES_MAX = 700  #: the Raft core reads best in one piece
LEFTOVERS = tuple(first + second for first, second in (("TO", "DO"), ("FIX", "ME"), ("XX", "X")))

SOURCES = sorted(
    path
    for floor in FLOORS
    for path in (ROOT / floor).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)
PURE = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "state_machines"]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of everything imported, with the line; also inside functions."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: write the full name"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def calls(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


def within(name: str, packages: frozenset[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


each_source = pytest.mark.parametrize("path", SOURCES, ids=name_of)
each_pure = pytest.mark.parametrize("path", PURE, ids=name_of)


def test_there_is_a_house() -> None:
    built = {path.relative_to(ROOT).parts[0] for path in SOURCES}
    assert set(FLOORS) - built <= {"bench"}


@each_source
def test_imports_go_down(path: Path) -> None:
    floor = path.relative_to(ROOT).parts[0]
    above = frozenset(FLOORS[FLOORS.index(floor) + 1 :]) | {"tests", "proto"}
    wrong = [f"line {line}: {name}" for name, line in imports(path) if within(name, above)]
    assert not wrong, f"{floor} does not import what stands above it; move what is shared down"


@each_pure
def test_the_pure_floor_imports_nothing_impure(path: Path) -> None:
    wrong = [
        f"line {line}: {name}"
        for name, line in imports(path)
        if within(name, IMPURE)
        or not (within(name, PURE_PACKAGES) or name.split(".")[0] in sys.stdlib_module_names)
    ]
    assert not wrong, "time, luck and the world are passed in, as ticks, an Rng or a port"


@each_pure
def test_the_pure_floor_calls_nothing_impure(path: Path) -> None:
    wrong = [f"line {line}: {name}()" for name, line in calls(path) if name in IMPURE_CALLS]
    assert not wrong, "the same on every replica: no hash, no id, no float, no I/O"


@each_pure
def test_the_pure_floor_has_no_floats(path: Path) -> None:
    wrong = [
        f"line {node.lineno}"
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Constant) and isinstance(node.value, float))
        or (isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div))
    ]
    assert not wrong, "whole numbers with a unit in the name; `//` divides them"


@each_pure
def test_the_pure_floor_swallows_no_bug(path: Path) -> None:
    wrong = [
        f"line {node.lineno}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler)
        and (
            node.type is None
            or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException"))
        )
    ]
    assert not wrong, "a refusal is Rejected; anything else stops the replica (law 8)"


@each_source
def test_one_module_makes_actors(path: Path) -> None:
    if name_of(path) == "actors/remote.py":
        return
    wrong = [
        f"line {node.lineno}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and node.attr == "remote"
        and isinstance(node.value, ast.Name)
        and node.value.id == "ray"
    ]
    wrong += [f"line {line}" for name, line in imports(path) if name == "ray.remote"]
    assert not wrong, "write a plain class; actors/remote.py alone calls ray.remote"


def test_ray_repeats_no_call() -> None:
    """By default a task runs up to four times, and an option of an actor has its calls repeated."""
    wrong = []
    for node in ast.walk(tree(ROOT / "actors" / "remote.py")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "options":
                given = {each.arg: ast.unparse(each.value) for each in node.keywords}
                said = {given.get("max_retries"), given.get("max_task_retries")} - {None}
                if said != {"0"} and "_options(" not in given.get(None, ""):
                    wrong.append(f"line {node.lineno}")
        elif isinstance(node, ast.Dict):
            wrong += [
                f"line {value.lineno}"
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
                and key.value in ("max_retries", "max_task_retries")
                and ast.unparse(value) != "0"
            ]
    assert not wrong, "law 9: max_retries=0 or max_task_retries=0; clients repeat, under one id"


@each_source
def test_nobody_waits_for_ray_without_a_deadline(path: Path) -> None:
    wrong = [
        f"line {node.lineno}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("ray.get", "ray.wait")
        and "timeout" not in [each.arg for each in node.keywords]
    ]
    assert not wrong, "law 13: Ray takes minutes to say that somebody is gone; give a timeout"


@each_source
def test_one_module_knows_lmdb(path: Path) -> None:
    if name_of(path) == "storage/disk.py":
        return
    wrong = [f"line {line}" for name, line in imports(path) if within(name, frozenset({"lmdb"}))]
    assert not wrong, "use the port of storage/engine.py"


@each_source
def test_nothing_from_outside_is_unpickled_or_evaluated(path: Path) -> None:
    wrong = [f"line {line}: {name}" for name, line in imports(path) if within(name, UNPICKLED)]
    wrong += [f"line {line}: {name}()" for name, line in calls(path) if name in EVALUATING]
    assert not wrong, "law 19: protobuf and msgpack carry data, never code"


@each_source
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "open with the idea, in the code's own names"


@pytest.mark.parametrize("floor", sorted({path.relative_to(ROOT).parts[0] for path in SOURCES}))
def test_every_floor_states_its_law(floor: str) -> None:
    said = ast.get_docstring(tree(ROOT / floor / "__init__.py")) or ""
    assert len(said) >= LAW_LETTERS_MIN, (
        "the package docstring says what holds for everything on this floor, and why"
    )


def test_proto_holds_schema_only() -> None:
    files = sorted(path.name for path in (ROOT / "proto").iterdir())
    assert files
    assert all(name.endswith(".proto") for name in files), (
        "Python code here would take the import name of google's proto-plus; it goes to "
        "state_machines/wire"
    )


@each_source
def test_files_are_short(path: Path) -> None:
    limit = CORE_LINES_MAX if path.parent == ROOT / "state_machines" / "raft" else LINES_MAX
    count = len(path.read_text(encoding="utf-8").splitlines())
    assert count <= limit, f"{count} lines, at most {limit}: one main type a file"


@pytest.mark.parametrize(
    "path",
    [
        *SOURCES,
        *TESTS,
        *sorted((ROOT / "proto").iterdir()),
        *sorted(ROOT.glob("docs/*.md")),
        *(ROOT / name for name in ("Makefile", "cluster.yaml", "pyproject.toml")),
    ],
    ids=name_of,
)
def test_nothing_is_left_over(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    left = [word for word in LEFTOVERS if word in text]
    assert not left, f"{left}: do it now, or write an issue"


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py")), (
        "test files are imported by path; shared helpers as tests.<folder>.<module>"
    )
