"""What a disk may hold after the power fails: everything that was synced, and some of the rest.

A `Volume` follows recorded events. Of each file it knows what is durable and which writes are not
yet; of each directory which names are. An `Image` is one outcome of a crash right there:

- of the writes to a file since its last sync any subset, in order, each whole or in part (sectors
  of 512 bytes, any of them); the call that was under way counts among them;
- a write through O_DSYNC makes itself durable and nothing else;
- a name that was made, renamed or removed is durable once its directory was synced, before that or
  not; a rename happens whole or not at all, and between two directories needs both synced;
- a file may have grown without its content having reached it: zeros.

That is less than file systems promise (they keep an order among names), and what POSIX does.
`lock.mdb` is written through a memory map: of it anything may be there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.crash.recorder import Event

SECTOR = 512
LOCK = "lock.mdb"
ROOT = 0

KEEP = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)
"""How likely each write that was not synced is there: drawn once an image."""
TEAR = (0.0, 0.0, 0.3, 1.0)
"""How likely such a write is there only in part."""
GROWN = 0.3
"""How likely a file has its last size, whatever reached it."""


@dataclass(slots=True)
class _Write:
    offset: int
    data: bytes | None  #: None: the file is cut or grown to `offset`
    forced: bool = False  #: durable by itself; waits here only to stay behind older ones


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Write] = field(default_factory=list)

    def settle(self) -> None:
        for each in self.pending:
            _put(self.durable, each)
        self.pending.clear()

    def trim(self) -> None:
        """Forced writes that no older one can stand behind are durable for good."""
        while self.pending and self.pending[0].forced:
            _put(self.durable, self.pending.pop(0))


@dataclass(slots=True)
class _Name:
    """One change of names. `waits`: directories that have to be synced before it is durable."""

    puts: tuple[int, str] | None
    takes: tuple[int, str] | None
    target: int
    waits: set[int]


@dataclass(frozen=True, slots=True)
class Image:
    """Directories, and files with their content, by relative path."""

    folders: tuple[str, ...]
    files: dict[str, bytes]

    def write(self, root: Path) -> None:
        """Lay it below `root`, which has to be empty or missing."""
        root.mkdir(parents=True, exist_ok=True)
        for each in self.folders:
            (root / each).mkdir(mode=0o700)
        for name, content in self.files.items():
            (root / name).write_bytes(content)


class Volume:
    """A disk below one directory, fed with events in order."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._folders: set[int] = {ROOT}
        self._live: dict[int, dict[str, int]] = {ROOT: {}}
        self._durable: dict[int, dict[str, int]] = {ROOT: {}}
        self._names: list[_Name] = []
        self._by_inode: dict[int, int] = {}
        self._count = 0

    @property
    def unsettled(self) -> int:
        """How many changes are not durable yet."""
        writes = (each for file in self._files.values() for each in file.pending)
        return len(self._names) + sum(not each.forced for each in writes)

    def feed(self, event: Event) -> None:
        """The call returned."""
        match event.kind:
            case "C":
                self._make(event, folder=False)
            case "D":
                self._make(event, folder=True)
            case "W" | "T":
                self._write(event)
            case "S":
                self._sync(event)
            case "R":
                source, target = event.data.decode().split("\n")
                taken, put = self._find(source), self._find(target)
                moved = self._live[taken[0]].pop(taken[1])
                self._live[put[0]][put[1]] = moved
                self._names.append(_Name(put, taken, moved, {put[0], taken[0]}))
            case "U":
                taken = self._find(event.data.decode())
                gone = self._live[taken[0]].pop(taken[1])
                self._names.append(_Name(None, taken, gone, {taken[0]}))
            case _:
                pass  # marks, and what was failed: nothing happened to the disk

    def _make(self, event: Event, folder: bool) -> None:
        self._count += 1
        made = self._by_inode[event.inode] = self._count
        if folder:
            self._folders.add(made)
            self._live[made], self._durable[made] = {}, {}
        else:
            self._files[made] = _File()
        put = self._find(event.data.decode())
        self._live[put[0]][put[1]] = made
        self._names.append(_Name(put, None, made, {put[0]}))

    def _write(self, event: Event) -> None:
        file = self._files[self._by_inode[event.inode]]
        data = event.data if event.kind == "W" else None
        file.pending.append(_Write(event.offset, data, event.durable))
        file.trim()

    def _sync(self, event: Event) -> None:
        # The root is the one directory that was there before.
        what = self._by_inode.get(event.inode, ROOT)
        if what in self._files:
            self._files[what].settle()
            return
        for each in self._names:
            each.waits.discard(what)
        for each in self._names:
            if not each.waits:
                _apply(self._durable, each)
        self._names = [each for each in self._names if each.waits]

    def _find(self, path: str) -> tuple[int, str]:
        folder = ROOT
        *above, name = path.split("/")
        for each in above:
            folder = self._live[folder][each]
        return folder, name

    def image(self, rng: Random, under_way: Event | None = None) -> Image:
        """What may be there if the power fails now, while the call `under_way` has not returned."""
        keep, tear = rng.choice(KEEP), rng.choice(TEAR)
        names = {folder: dict(entries) for folder, entries in self._durable.items()}
        for each in self._names:
            if rng.random() < keep:
                _apply(names, each)
        late: tuple[int, _Write] | None = None
        if under_way is not None and under_way.kind == "W":
            what = self._by_inode[under_way.inode]
            late = what, _Write(under_way.offset, under_way.data)
        folders: list[str] = []
        files: dict[str, bytes] = {}
        stack = [("", ROOT)]
        while stack:
            above, folder = stack.pop()
            for name, what in sorted(names[folder].items()):
                path = above + name
                if what in self._folders:
                    folders.append(path)
                    stack.append((path + "/", what))
                elif name == LOCK:
                    files[path] = rng.randbytes(rng.choice((0, 100, 8192)))
                else:
                    writes = self._files[what].pending
                    if late is not None and late[0] == what:
                        writes = [*writes, late[1]]
                    files[path] = _content(self._files[what].durable, writes, rng, keep, tear)
        return Image(tuple(sorted(folders)), files)


def _apply(names: dict[int, dict[str, int]], change: _Name) -> None:
    if change.takes is not None:
        folder, name = change.takes
        if names[folder].get(name) == change.target:
            del names[folder][name]
    if change.puts is not None:
        folder, name = change.puts
        names[folder][name] = change.target


def _put(content: bytearray, write: _Write) -> None:
    if write.data is None:
        del content[write.offset :]
        content.extend(bytes(write.offset - len(content)))
        return
    _grow(content, write.offset)
    content[write.offset : write.offset + len(write.data)] = write.data


def _grow(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))


def _content(
    durable: bytearray, writes: Iterable[_Write], rng: Random, keep: float, tear: float
) -> bytes:
    content = bytearray(durable)
    size = len(content)
    for each in writes:
        end = each.offset + len(each.data or b"")
        size = end if each.data is None else max(size, end)
        if each.forced or rng.random() < keep:
            if each.data is None or each.forced or rng.random() >= tear:
                _put(content, each)
            else:
                _tear(content, each.offset, each.data, rng)
    if rng.random() < GROWN:
        _grow(content, size)
    return bytes(content)


def _tear(content: bytearray, offset: int, data: bytes, rng: Random) -> None:
    """Some of the sectors."""
    share = rng.random()
    begin = offset - offset % SECTOR
    for sector in range(begin, offset + len(data), SECTOR):
        if rng.random() < share:
            first, last = max(sector, offset), min(sector + SECTOR, offset + len(data))
            _put(content, _Write(first, data[first - offset : last - offset]))
