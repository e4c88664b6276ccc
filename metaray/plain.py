"""An interpreter whose path has no space, for programs that pass it through a shell unquoted.

Ray starts its workers, and Spark its virtual machines, by command lines that break at a space. A
checkout may well lie in "My Projects"; so there this environment is used through a link in the
temporary directory. `python -m metaray.plain` prints the interpreter to use.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from pathlib import Path


def interpreter() -> Path:
    """This environment's interpreter; by way of a link if its own path has a space."""
    here = Path(sys.prefix)
    python = here / "bin" / "python"
    if not any(character.isspace() for character in str(here)):
        return python
    name = f"metaray-{os.getuid()}-{zlib.crc32(os.fsencode(here)):08x}"
    link = Path(tempfile.gettempdir()) / name
    if not _ours(link, here):
        # Someone else's link, or a stale one of ours: a directory that only we can write to.
        link = Path(tempfile.mkdtemp(prefix="metaray-")) / "venv"
        link.symlink_to(here, target_is_directory=True)
    return link / "bin" / "python"


def _ours(link: Path, here: Path) -> bool:
    try:
        link.symlink_to(here, target_is_directory=True)
    except FileExistsError:
        return link.is_symlink() and link.lstat().st_uid == os.getuid() and link.readlink() == here
    return True


def again(module: str) -> None:
    """Run this command again, by an interpreter without a space, if this one's path has one."""
    python = interpreter()
    if python.parent.parent != Path(sys.prefix):
        os.execv(python, [str(python), "-m", module, *sys.argv[1:]])  # noqa: S606 - no shell


if __name__ == "__main__":
    sys.stdout.write(f"{interpreter()}\n")
