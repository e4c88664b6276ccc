"""The directory of a cut while it is written: empty at first, whole in the end, or gone again."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from actors import columns
from jobs.cut import MANIFEST, Manifest, schema_digest
from jobs.errors import OutputFailed
from metaray.alone import alone
from metaray.cut_files import GroupFiles
from metaray.cuts import Cut
from state_machines.errors import Conflict
from state_machines.tables import TABLES
from storage import filesystem

PACKAGES: Final = ("metaray", "pyarrow")


@contextmanager
def explained(out: Path) -> Iterator[None]:
    """An error of the disk, as OutputFailed."""
    try:
        yield
    except OSError as error:
        where = error.filename or out
        raise OutputFailed(f"out: {where}: {error.strerror or error}") from error


@contextmanager
def prepare(out: Path) -> Iterator[bool]:
    """Make the directory, or see that it is empty, and keep others out of it until the end. Tells
    whether it was made. Raises OutputFailed, and Conflict while another export writes to it."""
    with ExitStack() as stack:
        with explained(out):
            if out.exists() and not out.is_dir():
                raise OutputFailed(f"out: {out} is not a directory")
            made = not out.exists()
            # For its owner alone: what replicas keep so is in it, hashes of passwords among it.
            stack.enter_context(alone(out, lock="", mode=0o700))
            if any(out.iterdir()):
                raise OutputFailed(f"out: {out} is not empty; name a directory for this cut alone")
            (probe := out / ".probe").touch()  # now, and not after the groups were asked
            probe.unlink()
        yield made


def clear(
    out: Path, plan: Mapping[str, tuple[str, ...]], made: bool, files: Iterable[GroupFiles]
) -> None:
    """Remove what an export that failed has written. Raises OutputFailed, and leaves the files
    where they are, when the manifest that says that they are whole cannot be removed."""
    with explained(out):
        (out / MANIFEST).unlink(missing_ok=True)
    for each in files:
        each.discard()
    for table in {table for tables in plan.values() for table in tables}:
        shutil.rmtree(out / table, ignore_errors=True)
    if made:
        shutil.rmtree(out, ignore_errors=True)


def finish(
    out: Path,
    plan: Mapping[str, tuple[str, ...]],
    cuts: Mapping[str, Cut],
    files: Mapping[str, GroupFiles],
) -> Manifest:
    """Make it whole: the manifest, and everything durable."""
    names = sorted({table for tables in plan.values() for table in tables})
    cluster, taken_ms = whence(cuts)
    manifest = Manifest(
        cluster=cluster,
        taken_ms=taken_ms,
        cut={group: cuts[group].index for group in sorted(cuts)},
        files=sorted(
            (each for some in files.values() for each in some.files), key=lambda each: each.path
        ),
        schema=schema_digest({name: columns.schema_of(TABLES[name].row) for name in names}),
        versions={
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        },
    )
    for name in names:
        filesystem.sync(out / name)
    manifest.write(out)
    filesystem.sync(out)
    return manifest


def whence(cuts: Mapping[str, Cut]) -> tuple[str, int]:
    """The cluster that cuts are of, and the moment of the last. Raises Conflict."""
    clusters = {cut.cluster for cut in cuts.values()}
    if len(clusters) != 1:
        raise Conflict(f"groups: they are of several clusters: {', '.join(sorted(clusters))}")
    return clusters.pop(), max(cut.now_ms for cut in cuts.values())
