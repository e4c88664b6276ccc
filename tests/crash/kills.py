"""Chains of lives: a victim is killed, another goes on in its directory, and the last is judged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from storage import filesystem
from tests.crash.verdict import Verdict, judge
from tests.crash.victim import RESTED, SPARED, End, Order
from tests.crash.victim_workload import GROUPS
from tests.proof.record import ROOT

KILLED: Final = -9
ANSWER_SECONDS: Final = 400


@dataclass(frozen=True, slots=True)
class Chain:
    """What became of one directory."""

    orders: tuple[Order, ...]
    ends: tuple[End, ...]
    verdict: Verdict

    @property
    def kills(self) -> int:
        """Lives that ended by kill -9."""
        return sum(end.status == KILLED for end in self.ends)


class Lab:
    """A nursery of victims, warm, and a place on a real disk for their directories."""

    def __init__(self, place: Path, *, broken: str = "") -> None:
        """`broken`: the product has this bug of `victim_broken`, to see the verdict find it."""
        place.mkdir(parents=True, exist_ok=True)
        kind = filesystem.check(place)
        if kind in filesystem.VOLATILE:
            raise RuntimeError(f"{place} is on {kind}, which is no disk")
        self.place = place
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.victim", *broken.split()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._nursery:  # closes its pipes, which ends it, and waits
            pass
        if not any(self.place.iterdir()):
            self.place.rmdir()

    def live(self, order: Order) -> End:
        """One life, to its end."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(order.line() + "\n")
        self._nursery.stdin.flush()
        line = self._nursery.stdout.readline()
        if not line:
            raise RuntimeError(f"the nursery has died over {order}")
        return End(**json.loads(line))

    def chain(self, name: str, *orders: Order, keep: bool = False) -> Chain:
        """These lives one after another in a fresh directory, one more that comes to rest, and the
        verdict. The directory is kept when something was wrong, or to `keep` it."""
        root = self.place / name
        shutil.rmtree(root, ignore_errors=True)
        numbered = [
            replace(order, root=str(root), life=number) for number, order in enumerate(orders, 1)
        ]
        final = replace(
            numbered[-1],
            life=len(orders) + 1,
            seed=numbered[-1].seed + 1,
            armed=None,
            phases=(),
            rest=True,
            kill_after=None,
            once_serving=False,
        )
        lives = (*numbered, final)
        ends = tuple([self.live(order) for order in lives])
        verdict = judge(root, seats_of(final))
        for order, end in zip(lives, ends, strict=True):
            fine = (RESTED,) if order.rest else (KILLED, SPARED)
            if end.status not in fine:
                verdict.wrong.append(f"life {order.life} ended with {end.status}: {order}")
        if not verdict.wrong and not keep:
            shutil.rmtree(root)
        return Chain(lives, ends, verdict)


def seats_of(order: Order) -> dict[str, int]:
    """How many replicas each group has."""
    return {group: 3 if group == order.wide else 1 for group in GROUPS}
