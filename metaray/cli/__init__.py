"""The terminal: `metaray up`, `status`, `kv`, `offsets`, `sessions`, `report`, `demo`, `down`.

Every command and query of the groups has a command of its own, made from its class (`entities`):
`metaray mqtt topic create --names a`, and `metaray watch` prints what changes. What stands above
the door adds its commands by the entry point `metaray.commands` (`bench`).

Every command that asks a running cluster takes `--address` (a Ray address) or finds the local one
under `--data`. Errors are one line that says what is wrong and what to do, and exit status 2;
`--json` prints plain values for other programs.
"""

import io
import os
import sys
from importlib.metadata import entry_points

from metaray import plain
from metaray.cli import ending

# Ray tells every driver of every worker that dies, in the middle of whatever it prints. Replicas
# that die are shown by `status`; Ray reads this setting when it is imported.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing")


def main() -> None:
    """The command `metaray`."""
    ending.at_once()
    plain.again("metaray.cli")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the locale has no letters for is escaped
            stream.reconfigure(errors="backslashreplace")
    from metaray.cli.app import app
    from metaray.cli.tree import LATER

    LATER.update({each.name: each for each in entry_points(group="metaray.commands")})
    ending.by_raising()
    try:
        app()
    finally:
        ending.at_once()
