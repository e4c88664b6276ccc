"""What is streamed to a replica: snapshots with anything wrong in them, whole streams and chunks.

A stream is damaged and then sealed again, so that it is the reader that has to see it and not the
checksum. The receiver stages, the core is asked, the state switches: over memory, and now and then
over LMDB. Unless the whole of it is in order the state stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar, cast
from zlib import crc32

from actors.snapshots import CHUNK_MESSAGE_BYTES_MAX, SEAL_BYTES, SnapshotReceiver, sealed
from actors.storage_thread import StorageThread
from state_machines.errors import Invalid
from state_machines.raft.messages import Configuration, InstallSnapshot, SnapshotMeta
from state_machines.wire import codec
from state_machines.wire import raft_pb2 as pb
from storage import records
from storage.shelf import DiskShelf, MemoryShelf
from storage.snapshot import CHUNK_BYTES
from storage.state import State
from tests.bad_input import values
from tests.bad_input.area_codec import CLAIMS, assigned
from tests.bad_input.area_core import CONFIGURATIONS, LIES
from tests.bad_input.battery import Case, Outcome, Wrong, refused
from tests.bad_input.replica import SELF, TERM, VOTERS, Replica, follower

T = TypeVar("T")

SENDER: Final = 2
ROWS: Final = (("kv", b"a", b"1"), ("kv", b"b", b"x" * 30), ("node", b"n", b""))
META: Final = SnapshotMeta(30, TERM, VOTERS)
BEFORE: Final = 4  #: what the receiver has applied


class Inline:
    """A storage thread that is no thread."""

    async def run(self, job: Callable[[], T]) -> T:
        return job()

    def hand(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        **haste: Any,
    ) -> None:
        done(job())


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")


def header(meta: bytes, claims: int | None = None) -> bytes:
    size = len(meta) if claims is None else claims
    return b"metaray1" + size.to_bytes(4, "big") + meta


def table(name: bytes) -> bytes:
    return b"T" + bytes((len(name),)) + name


def row(key: bytes, value: bytes = b"v", claims: int | None = None) -> bytes:
    size = len(value) if claims is None else claims
    return b"R" + len(key).to_bytes(2, "big") + size.to_bytes(4, "big") + key + value


def end(rows: int) -> bytes:
    return b"E" + rows.to_bytes(8, "big")


HEAD: Final = header(records.meta_to(META))
WHOLE: Final = (
    HEAD
    + b"".join(
        (table(name.encode()) if number in (0, 2) else b"") + row(key, value)
        for number, (name, key, value) in enumerate(ROWS)
    )
    + end(len(ROWS))
)


Nonsense = tuple[str, bytes, int]


def _nonsense() -> list[Nonsense]:
    """Streams that are whole and say nonsense: what, data, and how many rows they say they have."""
    metas = [
        SnapshotMeta(index, term, configuration)
        for index in (0, 1, BEFORE, 30, 2**62, 2**62 + 1, 2**63, 2**64 - 1)
        for term in (0, 1, TERM, TERM + 1, 2**32, 2**62, 2**63, 2**64 - 1)
        for configuration in (VOTERS, Configuration((2, 3)))
    ]
    metas += [SnapshotMeta(30, TERM, each) for each in CONFIGURATIONS]
    names = [
        *(b"", b"\0", b"a\0b", b"kv\0", b"\n", b"a\nb", b"\xff", b"\xed\xa0\x80", b"@state", b"@"),
        *(b"..", b"../x", b"/", b"x" * 64, b"x" * 65, b"x" * 255, b"e\xcc\x81", b" ", b"\x1b[2J"),
        *(b"group.client", b"metadata.kv", b"unknown.table", b"A", b"0"),
    ]
    made: list[Nonsense] = [
        ("table twice", HEAD + table(b"a") + row(b"k") + table(b"a") + row(b"l") + end(2), 2),
        ("no table", HEAD + row(b"k") + end(1), 1),
        ("two streams", WHOLE + WHOLE, 6),
        ("nothing", b"", 0),
    ]
    many = b"".join(table(b"t%05d" % n) + row(b"k") for n in range(300))
    made.append(("many tables", HEAD + many + end(300), 300))
    made += [(f"meta {each}"[:90], header(records.meta_to(each)) + end(0), 0) for each in metas]
    made += [(f"table {each!r}", HEAD + table(each) + row(b"k") + end(1), 1) for each in names]
    for claim in (0, 1, 65_537, 2**20 + 1, 64 << 20, (64 << 20) + 1, *CLAIMS):
        made.append((f"header claims {claim}", header(b"", claim % 2**32), 0))
        claiming = HEAD + table(b"kv") + row(b"k", b"", claim % 2**32) + b"x" * 99
        made.append((f"row claims {claim}", claiming, 0))
    begun = HEAD + table(b"kv")
    made += [(f"key of {n}", begun + row(b"k" * n) + end(1), 1) for n in (0, 480, 481, 65_535)]
    made += [(f"end says {n}", begun + row(b"k") + end(n), 1) for n in (0, 2, 2**64 - 1)]
    return made


def chunks(data: bytes, size: int, rows: int) -> list[pb.SnapshotChunk]:
    """The data in chunks, sealed as a sender does it."""
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    made = [
        pb.SnapshotChunk(
            cluster="c", group="g-0", sender=SENDER, receiver=SELF, term=TERM,
            number=number, data=part, crc=crc32(part),
        )
        for number, part in enumerate(parts)
    ]  # fmt: skip
    made[-1].last, made[-1].records = True, rows
    made[-1].digest = sha256(data).digest()
    return made


def content(state: State) -> list[tuple[str, bytes, bytes]]:
    with state.view() as view:
        return [(name, *each) for name in view.tables() for each in view.rows(name)]


def stream(data: bytes, size: int, rows: int, *, disk: bool = False) -> Outcome:
    return deliver([sealed(each) for each in chunks(data, size, rows)], disk=disk)


def deliver(messages: Sequence[bytes], *, disk: bool = False) -> Outcome:
    """These chunks to a replica, as far as it takes them."""
    if not disk:
        return _deliver(messages, State(MemoryShelf()))
    with TemporaryDirectory(prefix="bad-input-") as folder:
        state = State(DiskShelf(Path(folder) / "state", Path(folder) / "staging"))
        try:
            return _deliver(messages, state)
        finally:
            state.close()


def _deliver(messages: Sequence[bytes], state: State) -> Outcome:
    state.put("kv", ("old",), b"row")
    state.set_applied(SnapshotMeta(BEFORE, 2, VOTERS))
    before = content(state)
    receiver = SnapshotReceiver(
        cluster="c",
        group="g-0",
        replica=SELF,
        storage=cast(StorageThread, Inline()),
        state=state,
    )
    replica = follower()
    outcome = Outcome.DROPPED
    for data in messages:
        try:
            taken, question = at_once(receiver.take(data, replica.core.term))
        except Invalid as error:
            outcome = refused(error)
            continue
        outcome = Outcome.TAKEN if taken else Outcome.REFUSED
        if question is not None:
            return _asked(question, replica, receiver, state)
    if content(state) != before or state.applied.index != BEFORE:
        raise Wrong("changed", "a stream that was not whole changed the state")
    return outcome


def _asked(
    question: InstallSnapshot, replica: Replica, receiver: SnapshotReceiver, state: State
) -> Outcome:
    """The stream is whole: the core decides, and what it wants is installed."""
    if codec.decode_message(codec.encode_message(question)) != question:
        raise Wrong("changed", f"no peer could say that: {question}")
    before = replica.snapshot
    try:
        replica.told(lambda core: core.step(question))
    except Wrong:
        raise
    except AssertionError as stopped:
        if not LIES.fullmatch(str(stopped)):
            raise
        return Outcome.STOPPED
    replica.again()
    if replica.snapshot is not before:
        state.install(receiver.claim(question.meta), question.meta)
        if state.applied != question.meta:
            raise Wrong("changed", f"installed {question.meta}, applied {state.applied}")
    receiver.release()
    return Outcome.TAKEN


class Snapshot:
    """Snapshot streams."""

    name = "snapshot"
    frame_bytes = CHUNK_MESSAGE_BYTES_MAX

    def __init__(self) -> None:
        self._nonsense = _nonsense()
        self._chunk = sealed(chunks(WHOLE, CHUNK_BYTES, len(ROWS))[0])
        self._message = self._chunk[SEAL_BYTES:]
        # The stream cut at every offset and each bit flipped, in small chunks; then a whole chunk,
        # and its message, sealed again.
        frames = (WHOLE, self._chunk, self._message)
        self.listed = 2 * len(self._nonsense) + 9 * sum(map(len, frames))

    def case(self, number: int) -> Case:
        if number < 2 * len(self._nonsense):
            what, data, rows = self._nonsense[number // 2]
            disk = number % 2 == 1
            run = partial(stream, data, CHUNK_BYTES, rows, disk=disk)
            return Case(f"{what}{' on disk' * disk}", run, size=len(data))
        number -= 2 * len(self._nonsense)
        if number < 9 * len(WHOLE):
            what, data = _damaged(WHOLE, number)
            return Case(f"stream {what}", partial(stream, data, 64, len(ROWS)))
        number -= 9 * len(WHOLE)
        if number < 9 * len(self._chunk):
            what, data = _damaged(self._chunk, number)
            return Case(f"chunk {what}", partial(deliver, [data]))
        number -= 9 * len(self._chunk)
        if number < 9 * len(self._message):
            what, data = _damaged(self._message, number)
            return Case(f"sealed {what}", partial(deliver, [_seal(data)]))
        return self._drawn(Random(f"snapshot {number}"))

    @staticmethod
    def _drawn(rng: Random) -> Case:
        match rng.randrange(5):
            case 0:
                data = values.mangled(rng, WHOLE)
                size = rng.choice((7, 64, CHUNK_BYTES))
                return Case("stream mangled", partial(stream, data, size, rng.randrange(5)))
            case 1:
                data = HEAD + values.noise(rng)
                return Case(
                    "noise in a stream", partial(stream, data, CHUNK_BYTES, 0), size=len(data)
                )
            case 2:
                data = values.noise(rng)
                return Case("noise", partial(deliver, [_seal(data)]), size=len(data))
            case 3:
                made = chunks(WHOLE, 64, len(ROWS))
                fields = [assigned(rng.choice(made), rng) for _ in range(rng.choice((1, 1, 2)))]
                messages = [sealed(each) for each in made]
                size = sum(map(len, messages))
                return Case(f"odd {fields}", partial(deliver, messages), size=size, wide=True)
            case _:
                messages = [sealed(each) for each in chunks(WHOLE, 32, len(ROWS))]
                for _ in range(rng.randrange(1, 5)):
                    at, other = rng.randrange(len(messages)), rng.randrange(len(messages))
                    messages[at : at + rng.randrange(2)] = [messages[other]] * rng.randrange(3)
                    messages = messages or [b""]
                return Case("out of order", partial(deliver, messages))


def _seal(message: bytes) -> bytes:
    return crc32(message).to_bytes(SEAL_BYTES, "big") + message


def _damaged(frame: bytes, place: int) -> tuple[str, bytes]:
    if place < len(frame):
        return f"cut at {place}", frame[:place]
    return f"bit {place - len(frame)}", values.flipped(frame, place - len(frame))
