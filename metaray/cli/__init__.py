"""The terminal: `metaray up`, `status`, `kv`, `offsets`, `sessions`, `report`, `demo`, `down`.

Every command that asks a running cluster takes `--address` (a Ray address) or finds the local one
under `--data`. Errors are one line that says what is wrong and what to do, and exit status 2;
`--json` prints plain values for other programs.
"""

from metaray.cli.app import app

__all__ = ["app"]
