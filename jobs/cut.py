"""A cut on disk: the rows of some groups at one applied index each, as Parquet, and a manifest.

    manifest.json                       written last: where there is one, the cut is whole
    offset.offset/offset-0-00000.parquet
    offset.offset/offset-0-00001.parquet
    mqtt.session/mqtt-0-00000.parquet
    …

A file has rows of one table of one group, in key order, with the columns of `actors.columns` (the
fields of the row and its revision). A group's files together are its rows at `cut[group]`, the
vector that the manifest declares. A table that a group has no rows of has one file without rows: a
table that there is no file of was not exported. A reader needs nothing of metaray: Spark, pyarrow
or DuckDB read the directory as it is. Paths in the manifest are relative, so a cut can be moved.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from jobs.errors import BadCut
from state_machines.limits import INT_MAX

MANIFEST: Final = "manifest.json"
MANIFEST_BYTES_MAX: Final = 64 << 20  #: a quarter of a million files
FORMAT: Final = 1
TAKEN_MS_MAX: Final = 253_402_300_799_999  #: the end of the year 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFile:
    """One Parquet file: rows of `table` that `group` keeps."""

    path: str
    """Relative to the cut's directory, with `/`."""
    table: str
    group: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a cut is of."""

    cluster: str
    """The cluster's id: a cut is restored into this or another one, and says so."""
    taken_ms: int
    """When it was taken, Unix milliseconds of the leaders' clock."""
    cut: Mapping[str, int]
    """The vector: group to the applied index of its rows."""
    files: Sequence[CutFile]
    schema: str
    """SHA-256 over the columns of all tables in it: cuts of one schema can be compared."""
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def tables(self) -> tuple[str, ...]:
        """The tables there are files of, sorted."""
        return tuple(sorted({each.table for each in self.files}))

    def rows(self, table: str) -> int:
        """Rows of a table, of all groups."""
        return sum(each.rows for each in self.files if each.table == table)

    def groups(self, table: str) -> tuple[str, ...]:
        """The group of each file of a table, in the order of the files."""
        return tuple([each.group for each in self.files if each.table == table])

    def write(self, directory: Path) -> None:
        """Put it into the cut's directory, whole or not at all."""
        part = directory / f".{MANIFEST}.part"
        try:
            with part.open("w") as file:
                file.write(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n")
                file.flush()
                os.fsync(file.fileno())
            part.replace(directory / MANIFEST)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a cut. Raises BadCut for a directory that holds no whole cut, or one of
    another format, or with a field that is not of its type or beyond its limit."""
    path = directory / MANIFEST
    try:
        _size(path)
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
        if len(data) > MANIFEST_BYTES_MAX:
            raise ValueError(f"larger than {MANIFEST_BYTES_MAX} bytes, the limit")
        said: Any = json.loads(data.decode())
    except FileNotFoundError:
        raise BadCut(f"{directory}: no {MANIFEST}; it is no cut, or was not finished") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadCut(f"{path}: {error}") from None
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise BadCut(f"{path}: format is not {FORMAT}")
    if not isinstance(said.get("files"), list):
        raise BadCut(f"{path}: files: a list is wanted")
    try:
        files = [CutFile(**each) for each in said.pop("files")]
        manifest = Manifest(files=files, **said)
        _check_fields(manifest)
    except (TypeError, ValueError) as error:
        raise BadCut(f"{path}: {error}") from None
    return manifest


def _size(path: Path) -> int:
    """The bytes of a file. Raises OSError for what is none: who reads a pipe waits for ever."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return found.st_size


def _check_fields(manifest: Manifest) -> None:
    """Raises ValueError naming the field: a manifest may come from outside."""
    for name in ("cluster", "schema"):
        _text(name, getattr(manifest, name))
    _number("taken_ms", manifest.taken_ms, TAKEN_MS_MAX)
    for name, check_value in (("cut", _number), ("versions", _text)):
        said = getattr(manifest, name)
        if not isinstance(said, dict):
            raise ValueError(f"{name}: an object is wanted, not {repr(said)[:80]}")
        for key, value in said.items():
            _text(name, key)
            check_value(f"{name}: {key}", value)
    for each in manifest.files:
        for name in ("path", "table", "group", "sha256"):
            _text(f"files: {name}", getattr(each, name))
        for name in ("rows", "bytes"):
            _number(f"files: {name}", getattr(each, name))


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name}: text that can be printed is wanted, not {repr(value)[:80]}")


def _number(name: str, value: Any, high: int = INT_MAX) -> None:
    if type(value) is not int or not 0 <= value <= high:
        raise ValueError(f"{name}: a number from 0 to {high} is wanted, not {repr(value)[:80]}")


def schema_digest(schemas: Mapping[str, Any]) -> str:
    """What `Manifest.schema` says of tables with these Arrow schemas."""
    lines = [
        f"{table}\t{field.name}\t{field.type}\t{field.nullable}"
        for table, schema in sorted(schemas.items())
        for field in schema
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check(directory: Path, manifest: Manifest, table: str = "") -> None:
    """See that every file, or every one of a table, is what the manifest says. Raises BadCut naming
    the first that is not."""
    for each in manifest.files:
        if table not in ("", each.table):
            continue
        path = directory / each.path
        try:
            if path.resolve().parent.parent != directory.resolve():
                raise BadCut(f"{each.path}: outside of the cut")
            size = _size(path)
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except RuntimeError as error:  # a loop of links
            raise BadCut(f"{each.path}: {error}") from None
        except OSError as error:
            raise BadCut(f"{each.path}: {error.strerror}") from None
        if (size, found) != (each.bytes, each.sha256):
            raise BadCut(f"{each.path}: {size} bytes, sha256 {found}; not what the manifest says")
