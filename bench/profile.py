"""Where a row's processor time goes: its leader, a follower and the client, sampled by py-spy.

py-spy comes with Ray and looks at a process from outside, so what is sampled runs as it always
does. It is a further run of the row, which no figure of the table comes from. A sample counts the
thread that holds the interpreter's lock: what runs Python, not what waits. Stacks go to
`profile/<row>-<who>.folded` (one line a stack, as flame graphs are drawn from); the functions that
most samples ended in are printed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.markup import escape
from rich.table import Table

from actors import calls
from bench.rows import Row
from metaray.client import Client
from state_machines.errors import Invalid

RATE: Final = 200  #: samples a second
TOP: Final = 8  #: functions printed of each process
CALL_SECONDS: Final = 5.0
END_SECONDS: Final = 30.0
DIRECTORY: Final = "profile"


@dataclass(slots=True)
class Profiles:
    """The profiles of a run; `out` is the directory of its other results."""

    out: Path
    found: dict[str, dict[str, list[tuple[str, float]]]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise Invalid where no process may be sampled, before anything is started."""
        _spy()

    async def take(self, row: Row, client: Client, seconds: float) -> None:
        """Run the row once more and sample it."""
        (self.out / DIRECTORY).mkdir(parents=True, exist_ok=True)
        processes = await asyncio.to_thread(_processes, client.seats(row.group))
        processes["client"] = os.getpid()
        spies = [
            await _sampled(pid, seconds, self._file(row, who)) for who, pid in processes.items()
        ]
        try:
            await row.measure(client, seconds)
        finally:
            said = [await _ended(each) for each in spies]
        for (who, pid), what in zip(processes.items(), said, strict=True):
            if what:
                raise Invalid(f"profile: py-spy cannot look at {who}, process {pid}: {what}")
            folded = self._file(row, who).read_text()
            self.found.setdefault(row.name, {})[who] = top(folded)

    def _file(self, row: Row, who: str) -> Path:
        return self.out / DIRECTORY / f"{row.name}-{who}.folded"

    def table(self) -> Table:
        """The functions that most samples ended in, by row and process."""
        table = Table("workload", "process", "share", "function")
        for row, processes in self.found.items():
            for who, functions in processes.items():
                for number, (function, share) in enumerate(functions):
                    where = (row, who) if not number else ("", "")
                    table.add_row(*where, f"{share:.1%}", escape(function))
        return table


def sampled(row: Row) -> bool:
    """Whether a profile says something of this row: not of a process that is killed."""
    return row.load is None or row.load.kind != "failover"


def top(folded: str, count: int = TOP) -> list[tuple[str, float]]:
    """The functions that most samples ended in, each with its share of all samples.

    A line is `outermost;...;innermost samples`.
    """
    ends: Counter[str] = Counter()
    for line in folded.splitlines():
        stack, _, samples = line.rpartition(" ")
        function, line_number, _ = stack.rpartition(";")[2].rpartition(":")
        ends[f"{function})" if line_number else stack] += int(samples)
    total = ends.total()
    return [(name, samples / total) for name, samples in ends.most_common(count)]


def _spy() -> str:
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        raise Invalid("profile: py-spy is not installed; it comes with ray[default]")
    return found


def _processes(seats: Sequence[str]) -> dict[str, int]:
    """The processes of the leader and of one follower."""
    leads = calls.leader_among(seats, CALL_SECONDS)
    if leads is None:
        raise Invalid(f"profile: nobody leads {', '.join(seats)} just now")
    leader = str(leads["seat"])
    follower = next(each for each in seats if each != leader)
    pids = calls.each_call([leader, follower], "process", seconds=CALL_SECONDS)
    return {"leader": int(pids[leader]), "follower": int(pids[follower])}


async def _sampled(pid: int, seconds: float, file: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(_spy(), "record", "--pid", str(pid), "--duration", str(max(1, int(seconds)))),
        *("--rate", str(RATE), "--format", "raw", "--nonblocking", "--gil", "--output", str(file)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def _ended(spy: asyncio.subprocess.Process) -> str:
    """What it had to complain of, empty if it did its work."""
    try:
        async with asyncio.timeout(END_SECONDS):
            _, errors = await spy.communicate()
    except TimeoutError:
        spy.kill()
        await spy.wait()
        return f"no end within {END_SECONDS:.0f} s"
    if spy.returncode == 0:
        return ""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {spy.returncode}"
