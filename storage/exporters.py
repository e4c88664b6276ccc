"""How far the exporters of the history had come, for a replica that starts again.

    <replica>/exporters.json    the entry up to which each exporter had everything, by its name

A replica keeps its log back for exporters (`actors.committed`). One that is away while the replica
starts again has nobody else who would speak for it. What the file says may be old: then more is
kept than is needed, until the exporter is heard again. So it is written seldom, and one that cannot
be read is said in the log and counts as none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from isal.isal_zlib import crc32

from storage import filesystem

EXPORTERS: Final = "exporters.json"

log = logging.getLogger("metaray.storage")


class ExportersFile:
    """The file in a replica's directory. `found` is what it said when it was opened."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EXPORTERS
        self.found = self._read()

    def save(self, exporters: Mapping[str, int]) -> None:
        """Write down how far each of them is, durably. Raises OSError."""
        text = json.dumps({"exporters": dict(exporters), "crc": _checksum(exporters)}, indent=2)
        filesystem.replace(self._path, text.encode() + b"\n")

    def _read(self) -> dict[str, int]:
        try:
            content: Any = json.loads(self._path.read_bytes())
            exporters: dict[str, int] = content["exporters"]
            if content["crc"] != _checksum(exporters):
                raise ValueError("its checksum does not match its content")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s: nothing is kept for those it names: %r", self._path, error)
            return {}
        return exporters


def _checksum(exporters: Mapping[str, int]) -> int:
    return crc32(json.dumps(exporters, sort_keys=True).encode())
