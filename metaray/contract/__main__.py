"""`python -m metaray.contract`: write both files again; `--check` only says whether they are so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from metaray.contract import pages, proto

ROOT: Final = Path(__file__).parents[2]

FILES: Final[dict[Path, Callable[[str], str]]] = {
    ROOT / "proto" / "entities.proto": proto.generate,
    ROOT / "docs" / "entities.md": lambda _: pages.generate(),
}
"""What is generated, from the text that is there."""


def stale() -> dict[Path, str]:
    """The files that are not what the registry gives, and what they should be."""
    found = {}
    for path, generate in FILES.items():
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if (fresh := generate(before)) != before:
            found[path] = fresh
    return found


def main(arguments: list[str]) -> int:
    """Write what is stale, or (`--check`) name it and end with 1."""
    found = stale()
    for path, text in found.items():
        name = path.relative_to(ROOT)
        if arguments == ["--check"]:
            sys.stderr.write(f"{name} is not what the registry gives: run 'make contract'\n")
        else:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {name}\n")
    return 1 if found and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
