"""The export as a command runs it, and what is said of the one that the service runs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from actors import calls, remote
from actors.calls import LinkedCalls, LinkedGroups
from actors.config import RaftSettings
from jobs import operation_files
from metaray.history.actor import HistoryActor
from metaray.history.exporter import Exporter, extents
from metaray.history.source import Source
from metaray.history.store import Store
from state_machines.errors import NoQuorum, NotFound, Stopped

SHOW_SECONDS: Final = 0.5  #: how often progress is told
CALL_SECONDS: Final = 10.0  #: our own deadline for a question to the exporter's actor
STOP_SECONDS: Final = 60.0  #: and for its end, with all that it has gathered on the disk
GONE_SECONDS: Final = 30.0  #: and for Ray to take its name back
POLL_SECONDS: Final = 0.05  #: between two looks at something only polling can see

Lines = list[dict[str, Any]]


def export(
    directory: Path,
    settings: RaftSettings,
    *,
    bodies: bool = True,
    once: bool = False,
    progress: Callable[[Lines], None],
) -> Lines:
    """Export the connected cluster until SIGINT or SIGTERM, or (`once`) what is committed now.

    Returns how far each group is. Raises Conflict for a directory that another exporter appends
    to, BadHistory for one of another cluster, NoQuorum when no replica answers.
    """
    return asyncio.run(_export(directory, settings, bodies, once, progress))


async def _export(
    directory: Path,
    settings: RaftSettings,
    bodies: bool,
    once: bool,
    progress: Callable[[Lines], None],
) -> Lines:
    carrier, named = LinkedCalls(), LinkedGroups()
    source = Source(carrier, named, directory)
    store = Store.open(directory, await source.cluster())
    async with Exporter(source, store, settings, bodies=bodies) as exporter:
        work = asyncio.ensure_future(exporter.catch_up() if once else exporter.run())
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, work.cancel)
        while not work.done():
            progress(exporter.status())
            await asyncio.wait((work,), timeout=SHOW_SECONDS)
        with contextlib.suppress(asyncio.CancelledError):
            work.result()
    lines = exporter.status()
    on_disk = extents(directory, [each["group"] for each in lines])
    await carrier.close()
    return [{**each, **on_disk[each["group"]]} for each in lines]


def told(directory: Path, *, ask: bool, own: bool) -> dict[str, Any]:
    """How far a history is. `ask` the connected cluster, whose own exporter answers for itself,
    unless it is `own`: this very directory that is meant. Raises NotFound, BadHistory."""
    if ask and not own and remote.HISTORY in calls.named_actors():
        said = calls.each_call([remote.HISTORY], "status", seconds=CALL_SECONDS)[remote.HISTORY]
        if isinstance(said, dict):
            return said
        raise NotFound(f"history: the exporter does not answer: {said}")
    groups = operation_files.groups(directory)
    on_disk = extents(directory, groups)
    commits = asyncio.run(_commits(directory, groups)) if ask else {}
    return {
        "path": str(directory),
        "error": "",
        "groups": [
            {"group": group, "commit": commits.get(group, 0), **on_disk[group]} for group in groups
        ],
    }


async def _commits(directory: Path, groups: list[str]) -> dict[str, int]:
    source = Source(LinkedCalls(), LinkedGroups(), directory)
    await source.groups()
    told = await asyncio.gather(*map(source.commits, groups), return_exceptions=True)
    commits = {}
    for group, each in zip(groups, told, strict=True):
        if isinstance(each, int):
            commits[group] = each
        elif not isinstance(each, NoQuorum):  # of who does not answer there is nothing to say
            raise each
    return commits


def start(path: str, settings: RaftSettings) -> None:
    """See that the service's own exporter is there, and that it exports to this path."""
    if remote.HISTORY in calls.named_actors():
        said = calls.each_call([remote.HISTORY], "status", seconds=CALL_SECONDS)[remote.HISTORY]
        if isinstance(said, dict) and Path(said["path"]) != Path(path):
            stop()
    remote.create_history(HistoryActor, path, settings)


def stop() -> bool:
    """End the service's own exporter; whether there was one.

    Its name is free afterwards: Ray ends an actor some time after it is told to, and whoever makes
    the next one before that would be handed the dying one. Raises Stopped if it stays.
    """
    if remote.HISTORY not in calls.named_actors():
        return False
    calls.each_call([remote.HISTORY], "stop", seconds=STOP_SECONDS)
    deadline = time.monotonic() + GONE_SECONDS
    while remote.HISTORY in calls.named_actors():
        if time.monotonic() > deadline:
            raise Stopped(
                f"history: the exporter is still there {GONE_SECONDS:.0f} s after its end"
            )
        remote.kill(remote.HISTORY)
        time.sleep(POLL_SECONDS)
    return True
