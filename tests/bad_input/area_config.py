"""What operators write: `cluster.yaml` with a wrong value in every place, and text that is none.

Whatever the file holds, `ClusterConfig.load` returns a configuration whose core settings can be
made, or says in one line what is wrong with it.
"""

from __future__ import annotations

import math
import shutil
import weakref
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, Final

import yaml

from actors.config import FILE_BYTES_MAX, ClusterConfig, RaftSettings
from state_machines.errors import Invalid
from tests.bad_input import values
from tests.bad_input.battery import Case, Outcome, refused

LAUNCHER: Final = (Path(__file__).parents[2] / "cluster.yaml").read_bytes()
SMALL: Final = b"""cluster_name: c
metadata:
  groups: [metadata-0, "offset-0"]
  replicas: 3
  raft: &raft
    heartbeat_interval: 250 ms
    flush_bytes: 8 MiB
  controller: {heartbeat_timeout: 30 s}
"""
SETTINGS: Final = tuple(
    (each.metadata["section"], each.name.removesuffix("_ms")) for each in fields(RaftSettings)
)
PLACES: Final = (
    *((section, key) for section, key in SETTINGS),
    *((key,) for key in ("groups", "replicas", "allow_colocated", "raft", "controller", "other")),
    (),
)
BOMB: Final = b"\n".join(
    [b"a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 10)]
    + [b"metadata: {groups: *a9, replicas: *a9, raft: {tick: *a9}}"]
)

MERGES: Final = b"\n".join(
    [b"a0: &a0 {%s}" % b", ".join([b"k%d: 1" % n for n in range(10)])]
    + [b"a%d: &a%d {<<: [%s]}" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 6)]
    + [b"metadata: {}"]
)
"""Each level takes the keys of the one before ten times."""

TEXTS: Final[tuple[bytes, ...]] = (
    *(
        b"",
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbfmetadata: {}",
        b"metadata",
        b"[]",
        b"- 1",
        b"42",
        b"~",
    ),
    *(b"metadata: 1", b"metadata: []", b"metadata: text", b"metadata: {raft: 7}"),
    *(b"metadata: {? [1, 2] : 3}", b"metadata: {1: 2}", b"metadata: {~: 2}", b"metadata: {1.5: 2}"),
    *(b"metadata: {<<: 1}", b"metadata: &a {raft: *a}", b"metadata: &a [*a]", b"a: *b", b"\tx: 1"),
    *(
        b"metadata: !!python/object/apply:os.system [exit]",
        b"metadata: !!binary x",
        b"%YAML 9.9\n---\na",
    ),
    *(b"metadata: {raft: {tick: 2001-99-99}}", b"a: 9999-99-99 99:99:99", b"a: !!timestamp x"),
    *(
        b"a: !!int x",
        b"a: !!float x",
        b"a: 0x",
        b"a: 0b",
        b"a: 0o9",
        b"a: 1:99:99",
        b"a: 08",
        b"a: !!bool x",
    ),
    *(b"metadata: {raft: {tick: %s}}" % (digit * 5_000) for digit in (b"9", b"1_", b"0")),
    b"metadata: {raft: {tick: '%s'}}" % (b"9" * 5_000),
    b"metadata: {replicas: %s}" % (b"9" * 5_000),
    b"metadata: {replicas: 0x%s}" % (b"f" * 5_000),
    b'metadata: {raft: {tick: "5\\n0"}}',
    b'metadata: {"ra\\nft: forged": 1}',
    b'metadata: {groups: ["metadata-0\\nmetadata-0: no leader"]}',
    "metadata: {raft: {tick: \u0665\u0660}}".encode(),
    "metadata: {raft: {tick: '\u0665\u0660'}}".encode(),
    "metadata: {groups: [metadata-\u0660]}".encode(),
    *(b"[" * depth for depth in (10, 1_000, 10_000)),
    *(b"metadata: " + b"{a: " * depth for depth in (10, 1_000, 10_000)),
    *(b"metadata: " + b"[" * depth + b"]" * depth for depth in (10, 400, 10_000)),
    *(BOMB, MERGES),
    b"metadata: {x: " + b"y" * 60_000 + b"}",
    b"metadata:\n" + b"".join(b"  k%d: 1\n" % n for n in range(2_000)),
    b"a" * FILE_BYTES_MAX,
    b"a" * (FILE_BYTES_MAX + 1),
    b"metadata: {}\n---\nmetadata: {}",
    b"metadata: {replicas: 3}\nmetadata: {replicas: 0}",
    LAUNCHER + LAUNCHER,
)

ODD: Final[tuple[Any, ...]] = (
    *values.NUMBERS,
    *values.FLOATS,
    *values.TEXTS,
    *(2**64, 10**30, 10**4_000),
    *(None, True, False, [], {}, [1], {"a": 1}, b"x", "x" * 500, "9" * 400),
    *(
        "50 ms",
        "50ms",
        "-50 ms",
        "5 s",
        "5 min",
        "1 h",
        "0",
        "1.5 s",
        "1e3",
        "8 MiB",
        "8MB",
        "0x10",
    ),
    *("9" * 18 + " min", "50 ms ms", "ms", "5\n0", "\u0665\u0660", "50\u00a0ms"),
    *(
        ["metadata-0"],
        ["metadata-1"],
        ["metadata-0"] * 2,
        ["offset-0"],
        [1],
        [None],
        [["metadata-0"]],
    ),
    *(["metadata-0", "x-0"], ["metadata-00"], ["metadata-0\n"], ["metadata-0/../.."], "metadata-0"),
    [f"metadata-{n}" for n in range(65)],
    *({"tick": 5}, {"tick": {}}, {"heartbeat_interval": 10, "tick": 50}),
)


def load(path: Path, text: bytes) -> Outcome:
    """A file with this text."""
    path.write_bytes(text)
    try:
        found = ClusterConfig.load(path)
    except Invalid as error:
        return refused(error, [str(path)])
    found.raft.core()
    found.warnings()
    return Outcome.TAKEN


def parse(value: object) -> Outcome:
    """This under `metadata:`."""
    try:
        found = ClusterConfig.parse(value)
    except Invalid as error:
        return refused(error)
    found.raft.core()
    found.warnings()
    return Outcome.TAKEN


def make(kind: Callable[..., object], given: dict[str, Any]) -> Outcome:
    """The class itself, as a program would."""
    try:
        kind(**given)
    except Invalid as error:
        return refused(error, tuple(given))
    return Outcome.TAKEN


def _at(place: tuple[str, ...], value: Any) -> Any:
    for key in reversed(place):
        value = {key: value}
    return value


class Config:
    """The launcher's file, and the settings made by hand."""

    name = "config"
    frame_bytes = FILE_BYTES_MAX

    def __init__(self) -> None:
        folder = mkdtemp(prefix="bad-input-")
        weakref.finalize(self, shutil.rmtree, folder)
        self._path = Path(folder) / "cluster.yaml"
        flipped = [values.flipped(SMALL, bit) for bit in range(8 * len(SMALL))]
        self._texts = [*TEXTS, *values.cuts(SMALL), *flipped]
        self._placed = [(place, value) for place in PLACES for value in ODD]
        self._made = [
            *((RaftSettings, each.name, value) for each in fields(RaftSettings) for value in MADE),
            *((ClusterConfig, "replicas", value) for value in MADE),
            *((ClusterConfig, "allow_colocated", value) for value in MADE),
        ]
        self.listed = len(self._texts) + len(self._placed) + len(self._made)

    def case(self, number: int) -> Case:
        if number < len(self._texts):
            text = self._texts[number]
            what = f"text {text[:40]!r}" if number < len(TEXTS) else f"damaged {number}"
            return Case(what, partial(load, self._path, text), size=len(text), wide=True)
        number -= len(self._texts)
        if number < len(self._placed):
            place, value = self._placed[number]
            return Case(f"{place} {type(value)!s} ", partial(parse, _at(place, value)))
        number -= len(self._placed)
        if number < len(self._made):
            kind, name, value = self._made[number]
            return Case(f"{kind.__name__} {name}", partial(make, kind, {name: value}))
        rng = Random(f"config {number}")
        match rng.randrange(4):
            case 0:
                text = values.mangled(rng, rng.choice((SMALL, SMALL, SMALL, LAUNCHER)))
                return Case("mangled", partial(load, self._path, text), size=len(text))
            case 1:
                text = values.noise(rng)[:4_096]
                return Case("noise", partial(load, self._path, text), size=len(text))
            case 2:
                text = yaml.safe_dump(
                    _at(("metadata",), self._odd(rng)), allow_unicode=True
                ).encode()
                return Case("odd file", partial(load, self._path, text), size=len(text))
            case _:
                return Case("odd values", partial(parse, self._odd(rng)))

    @staticmethod
    def _odd(rng: Random) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for _ in range(rng.randrange(1, 5)):
            place = rng.choice(PLACES[:-1])
            at = given
            for key in place[:-1]:
                at = at[key] if isinstance(at.get(key), dict) else at.setdefault(key, {})
                if not isinstance(at, dict):
                    at = given
            plausible = rng.choice((10, 50, "250 ms", "1 s", 3, 1_000, "8 MiB", ["metadata-0"]))
            odd = rng.choice([each for each in ODD if each is not math.nan and not _huge(each)])
            at[place[-1]] = plausible if rng.random() < 0.5 else odd
        return given


def _huge(value: Any) -> bool:
    """Beyond what Python writes out in decimal digits."""
    return type(value) is int and abs(value) > 10**3_000


MADE: Final[tuple[Any, ...]] = (
    *values.NUMBERS,
    *values.HUGE,
    *values.FLOATS,
    None,
    True,
    "50",
    b"5",
    [],
    {},
    "\n",
)
