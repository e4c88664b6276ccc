"""What clients send: every field of every command and query wrong in turn, and bodies that break.

Each case meets a machine with a past. A leader's `admit` has to refuse without touching a row; what
it lets in is applied to a copy, where a refusal has to leave every row as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate
from random import Random
from typing import Any, Final

import msgpack

from state_machines import op
from state_machines.errors import BY_CODE, Invalid, MetarayError
from state_machines.limits import BATCH_ITEMS_MAX, DEPTH_MAX, REQUEST_BYTES_MAX
from state_machines.machine import Machine
from state_machines.raft.messages import Entry
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.bad_input import bodies, values
from tests.bad_input.battery import Case, Outcome, Wrong, refused
from tests.bad_input.bodies import ALL, MISSING
from tests.entities.group import rows_but_books
from tests.machine.plausible import CLIENT, NOW_MS, history

ENTRIES: Final = 60
SEQUENCE: Final = 1 << 20  #: later than all of the past
LARGE: Final = 60 << 10
BEYOND: Final = frozenset({"items 10001", "size 131071", "size 131073"})
"""What no body may hold anywhere, so that its field is not looked at."""

UNSAID: Final = (
    "negative",
    "empty",
    "NUL",
    "wildcard",
    "UTF-8",
    "alone",
    "level",
    "shared",
    "not a group",
    "neither",
    "one of",
    "twice",
    "JSON",
    "is wanted",
)
"""Words of refusals that need no number: the limit is in the word."""


class Watched(MemoryKeyValue):
    """Rows that know whether somebody has written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def put(self, table: str, key: tuple[Any, ...], value: bytes) -> None:
        self.writes += 1
        super().put(table, key, value)

    def delete(self, table: str, key: tuple[Any, ...]) -> None:
        self.writes += 1
        super().delete(table, key)


@cache
def past(kind: str) -> Watched:
    """The rows of a group that has lived."""
    store = Watched()
    machine = Machine(kind, f"{kind}-0", store)
    for index, batch in enumerate(history(kind, Random(3), ENTRIES), 1):
        machine.apply(Entry(1, index, batch.SerializeToString()))
    return store


@cache
def kind_of(tag: str) -> str:
    """The kind of group to try an operation on: that of a valid body, which may decide it."""
    if tag not in ALL:
        return "metadata"
    return op.home(op.decode(ALL, tag, bodies.packed(bodies.base(tag)))) or "metadata"


def error_of(code: int, detail: str) -> MetarayError:
    return BY_CODE[api.Code.Name(api.Code.ValueType(code))](detail)


def propose(
    kind: str,
    proposal: api.Proposal,
    names: Sequence[str] = (),
    *,
    must: bool = False,
    limit: bool = False,
) -> Outcome:
    """What becomes of a proposal. `must`: it has to be refused before it is in the log."""
    store = past(kind)
    writes = store.writes
    try:
        Machine(kind, f"{kind}-0", store).admit(proposal)
    except Invalid as error:
        if store.writes != writes:
            raise Wrong("changed", "admission wrote") from None
        said = limit and not any(word in error.detail for word in UNSAID)
        return refused(error, names, said)
    if must:
        raise Wrong("let in", f"{[(each.tag, each.body[:80]) for each in proposal.commands]}")
    mine = copy.deepcopy(store)
    before = rows_but_books(mine)
    batch = api.Batch(now_ms=NOW_MS, proposals=[proposal])
    entry = Entry(1, ENTRIES + 1, batch.SerializeToString())
    (applied,) = Machine(kind, f"{kind}-0", mine).apply(entry)
    reply = api.Reply.FromString(applied.reply)
    codes = {reply.code, *(each.code for each in reply.results)}
    result: Any
    for result in (reply, *reply.results):
        if result.code != api.OK:
            refused(error_of(result.code, result.detail))
    if codes - {api.OK} and (api.OK not in {each.code for each in reply.results}):
        if rows_but_books(mine) != before:
            raise Wrong("changed", f"refused, and yet rows changed: {reply}")
        return Outcome.REFUSED
    return Outcome.TAKEN


def ask(
    kind: str,
    queries: list[api.Command],
    names: Sequence[str] = (),
    *,
    must: bool = False,
    limit: bool = False,
) -> Outcome:
    """What becomes of queries."""
    store = past(kind)
    writes = store.writes
    reply = Machine(kind, f"{kind}-0", store).query(queries, NOW_MS)
    if store.writes != writes:
        raise Wrong("changed", "a query wrote")
    outcome = Outcome.TAKEN
    each: Any
    for each in (reply, *reply.results):
        if each.code != api.OK:
            error = error_of(each.code, each.detail)
            said = limit and not any(word in error.detail for word in UNSAID)
            outcome = refused(error, names, said)
    if must and outcome is not Outcome.REFUSED:
        raise Wrong("let in", f"{[(each.tag, each.body[:80]) for each in queries]}")
    return outcome


def send(
    tag: str, body: bytes, names: Sequence[str] = (), *, must: bool = False, limit: bool = False
) -> Outcome:
    """One operation with this body, to a group of its kind."""
    kind, command = kind_of(tag), api.Command(tag=tag, body=body)
    if tag in op.QUERIES:
        return ask(kind, [command], names, must=must, limit=limit)
    client = 0 if tag == op.REGISTER_TAG else CLIENT
    proposal = api.Proposal(client=client, sequence=SEQUENCE, commands=[command])
    return propose(kind, proposal, names, must=must, limit=limit)


Made = Callable[[], Case]


def _field_cases(tag: str) -> list[Made]:
    found: list[Made] = []

    def add(what: str, body: Any, names: Sequence[str], must: bool, limit: bool = False) -> None:
        def make() -> Case:
            data = (bodies.packed_text if names == ["body"] else bodies.packed)(body())
            run = partial(send, tag, data, names, must=must, limit=limit)
            return Case(f"{tag} {what}", run, size=len(data), wide=True)

        found.append(make)

    for spot in bodies.spots(tag):
        place = partial(bodies.placed, tag, spot.path)
        names = [each.removesuffix("s") for each in spot.path if isinstance(each, str)]
        for value in bodies.wrong_types(spot.hint):
            text = isinstance(value, msgpack.ExtType)
            add(
                f"{spot.path} is {value!r}",
                partial(place, value),
                ["body"] if text else names,
                True,
            )
        for what, value in bodies.edges(spot):
            sized = not what.startswith(("text", "emoji"))
            says = ["body"] if what in BEYOND else names if sized else ()
            add(f"{spot.path} {what}", partial(place, value), says, False, sized)
        if isinstance(spot.path[-1], str):
            add(f"{spot.path} missing", partial(place, MISSING), names, not spot.default)
    return found


def _body_cases(tag: str) -> list[Made]:
    """Bodies that are no maps of fields, or more than that."""
    whole = bodies.packed(bodies.base(tag))
    fields = whole[1:] if whole[0] & 0xF0 == 0x80 else whole[3:]
    count = len(bodies.base(tag))
    one = bodies.packed("x")
    deep = {**bodies.base(tag), "x": 1}
    for _ in range(DEPTH_MAX):
        deep = {**bodies.base(tag), "x": [deep]}
    must: list[tuple[str, bytes]] = [
        *(
            (repr(value), msgpack.packb(value))
            for value in (None, True, 1, 1.5, "a", b"a", [], [1])
        ),
        ("empty", b""),
        ("twice", whole + whole),
        ("something behind", whole + b"\xc0"),
        ("too deep", msgpack.packb(deep)),
        ("a number as a name", bytes((0x80 | count + 1,)) + fields + b"\x01\x01"),
        ("too large", whole + bytes(REQUEST_BYTES_MAX)),
        *((f"nested {depth}", b"\x91" * depth + b"\xc0") for depth in (17, 500, 1_025, 10_000)),
        *((f"maps {depth}", b"\x81\xa1a" * depth + b"\xc0") for depth in (17, 500, 10_000)),
        *((f"claims {head.hex()}", head) for head in _CLAIMS),
    ]
    if count:
        first = next(iter(bodies.base(tag)))
        again = bodies.packed(first) + bodies.packed(bodies.base(tag)[first])
        must.append(("a name twice", bytes((0x80 | count + 1,)) + fields + again))
    may = [
        ("an unknown name", bytes((0x80 | count + 1,)) + fields + one + one),
        ("a name in bytes", bytes((0x80 | count + 1,)) + fields + b"\xc4\x01x\x01"),
        ("a name of nothing", bytes((0x80 | count + 1,)) + fields + b"\xa0\xcb" + bytes(8)),
    ]
    return [
        *(
            partial(Case, f"{tag} body {what}", partial(send, tag, data, ["body"], must=True))
            for what, data in must
        ),
        *(partial(Case, f"{tag} body {what}", partial(send, tag, data)) for what, data in may),
    ]


_CLAIMS: Final = tuple(
    bytes.fromhex(each)
    for each in (
        *(
            "ddffffffff",
            "dfffffffff",
            "dbffffffff",
            "c6ffffffff",
            "c9ffffffff01",
            "dcffff",
            "deffff",
        ),
        *("81a161ddffffffff", "81a161dfffffffff", "81dbffffffff", "d9ff", "c8ffff01", "c1", "ff"),
        *("cf", "d3ff", "cb7ff8000000000000", "d6ff00000000", "c70cff000000000000000000000000"),
    )
)


def bombs() -> list[tuple[str, bytes]]:
    """Bodies within the size limit that would be many times that as objects."""
    tens = b"\xdc" + BATCH_ITEMS_MAX.to_bytes(2, "big")

    def listed(item: bytes) -> bytes:
        lists = (REQUEST_BYTES_MAX - 64) // (len(tens) + BATCH_ITEMS_MAX * len(item))
        inner = (tens + item * BATCH_ITEMS_MAX) * lists
        return b"\x81\xa1x\xdd" + lists.to_bytes(4, "big") + inner

    names = b"".join(b"\xa4%04x\xa2zz" % each for each in range(BATCH_ITEMS_MAX))
    maps = 40
    return [
        *(
            (f"lists of {item.hex()}", listed(item))
            for item in (
                b"\xc0",
                b"\xa2ab",
                b"\x90",
                b"\x80",
                b"\xc4\x01a",
                b"\xcf" + bytes(7) + b"\xff",
            )
        ),
        (
            "maps of names",
            b"\x81\xa1x\xdd"
            + maps.to_bytes(4, "big")
            + (b"\xde" + BATCH_ITEMS_MAX.to_bytes(2, "big") + names) * maps,
        ),
        ("a million names", b"\xdf" + (10**6).to_bytes(4, "big") + names * 100),
        (
            "wide texts",
            b"\x81\xa1x\xdd"
            + (30).to_bytes(4, "big")
            + (b"\xdb" + (131_004).to_bytes(4, "big") + b"a" * 131_000 + "\U0001f600".encode())
            * 30,
        ),
        (
            "wide text",
            b"\x81\xa1x\xdb"
            + (REQUEST_BYTES_MAX - 64).to_bytes(4, "big")
            + b"a" * (REQUEST_BYTES_MAX - 68)
            + "\U0001f600".encode(),
        ),
        (
            "one value",
            b"\x81\xa1x\xc6"
            + (REQUEST_BYTES_MAX - 64).to_bytes(4, "big")
            + bytes(REQUEST_BYTES_MAX - 64),
        ),
    ]


class Requests:
    """Bodies of operations, and proposals of them."""

    name = "requests"
    frame_bytes = REQUEST_BYTES_MAX

    def __init__(self) -> None:
        self._tags = sorted(ALL)
        self._made: list[Made] = []
        for what, data in bombs():
            for tag in ("metadata.kv.put", "metadata.kv.range"):
                self._made.append(
                    partial(
                        Case,
                        f"{tag} bomb of {what}",
                        partial(send, tag, data),
                        True,
                        len(data),
                        what.startswith("wide"),
                    )
                )
        for tag in self._tags:
            self._made += [*_field_cases(tag), *_body_cases(tag)]
        self._whole = [bodies.packed(bodies.base(tag)) for tag in self._tags]
        # Then every body cut at every offset, and each of its bits flipped.
        self._starts = list(accumulate((9 * len(each) for each in self._whole), initial=0))
        self.listed = len(self._made) + self._starts[-1]

    def case(self, number: int) -> Case:
        if number < len(self._made):
            return self._made[number]()
        if number < self.listed:
            return self._damaged(number - len(self._made))
        return self._drawn(Random(f"requests {number}"))

    def _damaged(self, place: int) -> Case:
        index = max(at for at, start in enumerate(self._starts[:-1]) if start <= place)
        tag, whole = self._tags[index], self._whole[index]
        place -= self._starts[index]
        if place < len(whole):
            return Case(f"{tag} cut at {place}", partial(send, tag, whole[:place], must=True))
        bit = place - len(whole)
        return Case(f"{tag} bit {bit}", partial(send, tag, values.flipped(whole, bit)))

    def _drawn(self, rng: Random) -> Case:
        tag = rng.choice(self._tags)
        match rng.randrange(5):
            case 0:
                data = values.mangled(rng, bodies.packed(bodies.base(tag)))
                return Case(f"{tag} mangled", partial(send, tag, data))
            case 1:
                data = values.noise(rng)
                return Case(f"{tag} noise", partial(send, tag, data), size=len(data), wide=True)
            case 2:
                return self._proposal(rng)
            case _:
                body = odd_body(rng, tag)
                data = bodies.packed(body)
                return Case(f"{tag} odd", partial(send, tag, data), size=len(data), wide=True)

    def _proposal(self, rng: Random) -> Case:
        """Numbers of the client's that no client has, and commands that do not go together."""
        kind = rng.choice(("metadata", "mqtt", "offset"))
        count = rng.choice((0, 1, 1, 2, 3, 20))
        commands = []
        for _ in range(count):
            tag = rng.choice(self._tags)
            body = bodies.packed(odd_body(rng, tag) if rng.random() < 0.5 else bodies.base(tag))
            said = tag if rng.random() < 0.8 else values.text(rng)
            commands.append(api.Command(tag=said, body=body if len(body) < LARGE else b""))
        proposal = api.Proposal(
            client=rng.choice((0, 1, CLIENT, CLIENT, CLIENT, CLIENT + 1, *values.NUMBERS)) % 2**64,
            sequence=rng.choice((1, 30, SEQUENCE, SEQUENCE, values.number(rng))) % 2**64,
            acked=rng.choice((0, 1, SEQUENCE, values.number(rng))) % 2**64,
            commands=commands,
        )
        return Case(
            f"{kind} proposal {proposal.client} {proposal.sequence} {proposal.acked}",
            partial(propose, kind, proposal),
        )


def odd_body(rng: Random, tag: str) -> dict[str, Any]:
    """A body with one to three odd values in it."""
    body = dict(bodies.base(tag))
    found = bodies.spots(tag)
    for _ in range(rng.choice((1, 1, 2, 3)) if found else 0):
        spot = rng.choice(found)
        at_edge = bodies.edges(spot)
        if at_edge and rng.random() < 0.7:
            value = rng.choice(at_edge)[1]
        else:
            value = values.anything(rng)
        body[str(spot.path[0])] = bodies.placed(tag, spot.path, value)[str(spot.path[0])]
    return body
