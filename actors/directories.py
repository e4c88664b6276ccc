"""Where the directories of a group lie: asked of the nodes before it is placed, and before it is
founded.

Ray may place a group anew on any nodes that fit. Only those that have its directories have its
data, so they come first, and beside a directory that no seat has taken no group is founded: it
would begin empty, and say nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.ray_env import DATA_VARIABLE
from state_machines.errors import Conflict, Stopped
from storage import identity
from storage.errors import StorageError

SHOWN_MAX: Final = 10  #: directories in what is said of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Lying:
    """A directory that is not retired, held by a process or not."""

    path: str
    replica: int
    status: str
    written_ns: int  #: when its log was last written to, by its node's clock: a hint


def lying_here(group: str) -> tuple[Lying, ...]:
    """The directories of a group's voters on this node. Raises Stopped if that cannot be said."""
    data = os.environ.get(DATA_VARIABLE, "")
    if not data:
        raise Stopped(f"{DATA_VARIABLE} is not set on this node; set it before `ray start`")
    try:
        return tuple(
            Lying(
                path=str(each.path),
                replica=each.identity.replica,
                status=each.identity.status,
                written_ns=_written_ns(each.path),
            )
            for each in identity.lying(Path(data), group)
            if each.identity.status != "retired"
        )
    except (StorageError, OSError) as error:
        raise Stopped(f"{type(error).__name__}: {error}") from error


def _written_ns(path: Path) -> int:
    newest = 0
    for file in (path / "log").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # its replica lives
            newest = max(newest, file.stat().st_mtime_ns)
    return newest


Said = Mapping[str, tuple[Lying, ...] | Exception]
"""What each node (by id) said of a group, or why it did not."""


def homes(said: Said) -> tuple[str, ...]:
    """The nodes that have a directory. Those of replicas that took part come first, and of these
    the ones that were written to last: whoever was removed meanwhile, unheard, has been silent."""
    best = {
        node: max((each.status == "active", each.written_ns) for each in lying)
        for node, lying in said.items()
        if not isinstance(lying, Exception) and lying
    }
    return tuple(sorted(best, key=lambda node: best[node], reverse=True))


def check_founding(group: str, said: Said, names: Mapping[str, str], own: Collection[int]) -> None:
    """Raise Conflict if a node has a directory of the group that is none of these replicas', the
    seats' own, and Stopped if one did not say. `names`: of the nodes, by id."""
    beside = [
        f"{names.get(node) or node}:{each.path} ({each.status})"
        for node, lying in said.items()
        if not isinstance(lying, Exception)
        for each in lying
        if each.replica not in own
    ]
    if beside:
        raise Conflict(
            f"{group} is not founded anew beside its data, which no seat has taken: "
            f"{_shown(beside)}. Start the nodes that have a majority of its directories, and see "
            "that they have room; directories that are not wanted any more, move away"
        )
    silent = [
        f"{names.get(node) or node}: {lying}"
        for node, lying in said.items()
        if isinstance(lying, Exception)
    ]
    if silent:
        raise Stopped(
            f"{group} is not founded while it is not known whether its data lie on {_shown(silent)}"
        )


def _shown(each: Iterable[str]) -> str:
    listed = sorted(each)
    more = f" and {len(listed) - SHOWN_MAX} more" if len(listed) > SHOWN_MAX else ""
    return ", ".join(listed[:SHOWN_MAX]) + more
