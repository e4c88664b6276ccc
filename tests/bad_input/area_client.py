"""What programs hand to a client: operations and options of any type, before anything is sent.

A dataclass takes whatever it is given, so `Caller.call` is the first to look. What it refuses has
not reached a group, not even by a registration.
"""

from __future__ import annotations

import asyncio
import dataclasses
import typing
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

import msgpack

from actors.caller import Caller
from state_machines import op
from state_machines.errors import Invalid, MetarayError, Unavailable
from state_machines.limits import PARTS_MAX, REQUEST_BYTES_MAX, VALUES_MAX
from state_machines.metadata.kv import GetKv, PutKv
from tests.actors.scripted import Script
from tests.actors.virtual_time import VirtualLoop
from tests.bad_input import bodies, values
from tests.bad_input.battery import Case, Outcome, Wrong, refused
from tests.bad_input.bodies import ALL, Spot


class Text(str):
    """A string that is more than one."""

    __slots__ = ()


class Number(int):
    """A number that is more than one."""


OBJECTS: Final[tuple[Any, ...]] = (
    *(None, True, 1, 1.5, "a", b"a", (), [], {}, {1}, object(), Text("a"), Number(1), print, int),
    *(bytearray(b"a"), memoryview(b"a"), range(2), ("a",), (1,), (None,), ((),), ["a"], ..., 1j),
    *values.FLOATS,
    *values.HUGE,
    *values.SURROGATES,
    *((each,) for each in values.SURROGATES),
)
OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "timeout_ms": (-1, 2**31, 2**63, 10**400, 1.5, float("nan"), float("inf"), "1", None, True),
    "min_revision": (-1, 2**63, 2**64, 10**400, 1.5, "1", None, True),
    "group": (1, None, b"metadata-0", "\ud800", "a\nb", "x" * 10_000, "nobody-0"),
    "stale": (1, "yes", None),
}


def run(
    act: Callable[[Caller], Any], names: tuple[str, ...] = (), *, must: bool = False
) -> Outcome:
    """A call of a client whose group would take anything."""
    script = Script()

    async def call() -> Outcome:
        caller = Caller(script, timeout_ms=100, rng=Random(1))
        try:
            await act(caller)
        except Unavailable as error:
            if must:
                raise Wrong("let in", f"it was tried: {error.detail[:200]}") from None
            return refused(error)  # there is no such group
        except MetarayError as error:
            if script.calls and isinstance(error, Invalid):
                raise Wrong("changed", f"sent, then refused: {error.detail[:200]}") from None
            return refused(error, names)
        except AssertionError as error:
            if "assert" in str(error) or script.calls:
                return Outcome.TAKEN  # the scripted group knows a few operations only
            raise
        finally:
            await caller.close()
        if must:
            raise Wrong("let in", "it was carried out")
        return Outcome.TAKEN

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(call())


def call(operation: Any, names: tuple[str, ...], must: bool, **options: Any) -> Outcome:
    return run(lambda caller: caller.call(operation, **options), names, must=must)


def crowded(body: bytes) -> bool:
    """Whether it has more lists and maps, or more values, than all of a body may have.

    As with its bytes, that is asked of the whole: 10,000 items of 12 fields are too many values.
    """
    parts = values = 0

    def some(items: list[Any], count: int = 0) -> None:
        nonlocal parts, values
        parts += 1
        values += count or len(items)

    msgpack.unpackb(
        body, list_hook=some, object_pairs_hook=lambda pairs: some(pairs, 2 + 2 * len(pairs))
    )
    return parts > PARTS_MAX or values > VALUES_MAX


def look(tag: str, operation: Any, names: tuple[str, ...], must: bool) -> Outcome:
    """Only the check that comes before a call: what it lets through, a group can decode.

    Unless there is too much of it: the group says so.
    """
    try:
        op.validate(operation)
    except Invalid as error:
        return refused(error, names)
    if must:
        raise Wrong("let in", f"{tag}")
    body = op.encode(operation)
    if len(body) <= REQUEST_BYTES_MAX:
        if crowded(body):
            try:
                op.decode(ALL, tag, body)
            except Invalid as error:
                return refused(error, ("body",))
            raise Wrong("let in", f"{tag}: more than a body may have")
        again = op.decode(ALL, tag, body)
        if again != operation:
            raise Wrong("changed", f"{tag}: another operation after a round")
    return Outcome.TAKEN


def instance(kind: Any, plain: dict[str, Any]) -> Any:
    """An object from the plain values of a body."""
    hints = typing.get_type_hints(kind)

    def made(hint: Any, value: Any) -> Any:
        if value is None:
            return None
        hint = bodies._optional(hint)
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            return tuple(made(item, each) for each in value)
        if dataclasses.is_dataclass(hint):
            return instance(hint, value)
        return value

    return kind(**{name: made(hints[name], value) for name, value in plain.items()})


def replaced(operation: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """The operation with another value in one place."""
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        changed = list(operation)
        changed[first] = replaced(operation[first], rest, value) if rest else value
        return tuple(changed)
    inner = replaced(getattr(operation, first), rest, value) if rest else value
    return dataclasses.replace(operation, **{first: inner})


def fits(hint: Any, value: Any) -> bool:
    """Whether this may stand there, as far as its type goes."""
    if value is None:
        return type(None) in typing.get_args(hint)
    some = bodies._optional(hint)
    if typing.get_origin(some) is tuple:
        item = typing.get_args(some)[0]
        return type(value) is tuple and all(fits(item, each) for each in value)
    if type(value) is not some:
        return False
    if some is int:
        return bool(-(2**63) <= value < 2**63)
    return (
        some is not str or value.isprintable() or not any("\ud800" <= c <= "\udfff" for c in value)
    )


class Client:
    """Operations as objects, and the options of a call."""

    name = "client"
    frame_bytes = REQUEST_BYTES_MAX

    def __init__(self) -> None:
        self._tags = sorted(ALL)
        self._spots: list[tuple[str, Spot]] = [
            (tag, spot) for tag in self._tags for spot in bodies.spots(tag)
        ]
        self._options = [
            (operation, name, value)
            for operation in (PutKv(key="k", value=b"v"), GetKv(key="k"))
            for name, offered in OPTIONS.items()
            for value in offered
        ]
        self.listed = len(self._options) + len(self._spots) * len(OBJECTS)

    def case(self, number: int) -> Case:
        if number < len(self._options):
            operation, name, value = self._options[number]
            plausible = name == "group" and value in ("nobody-0", "x" * 10_000, "a\nb")
            fine = plausible or (value is True and name == "stale") or value in (2**31,)
            shown = "a large number" if type(value) is int and value > 2**64 else repr(value)[:40]
            run_it = partial(call, operation, (name,), not fine, **{name: value})
            return Case(f"{type(operation).__name__} with {name} {shown}", run_it)
        number -= len(self._options)
        if number < len(self._spots) * len(OBJECTS):
            (tag, spot), value = (
                self._spots[number // len(OBJECTS)],
                OBJECTS[number % len(OBJECTS)],
            )
            return self._placed(tag, spot, value)
        rng = Random(f"client {number}")
        tag, spot = rng.choice(self._spots)
        at_edge = bodies.edges(spot)
        if not at_edge or rng.random() < 0.2:
            return self._placed(tag, spot, rng.choice(OBJECTS), sent=rng.random() < 0.2)
        _, value = rng.choice(at_edge)
        if isinstance(value, list):
            value = _objects(spot.hint, value if rng.random() < 0.1 else value[:100])
        return self._placed(tag, spot, value, edge=True)

    @staticmethod
    def _placed(
        tag: str, spot: Spot, value: Any, *, sent: bool = False, edge: bool = False
    ) -> Case:
        whole = instance(ALL[tag], bodies.base(tag))
        operation = replaced(whole, spot.path, value)
        must = not edge and not fits(spot.hint, value)
        names = [each.removesuffix("s") for each in spot.path if isinstance(each, str)]
        said = tuple(names) if must else ()
        what = f"{tag} {spot.path} {type(value).__name__}"
        if sent and op.kind(ALL[tag]):
            return Case(f"{what} sent", partial(call, operation, said, must))
        return Case(what, partial(look, tag, operation, said, must))


def _objects(hint: Any, items: list[Any]) -> tuple[Any, ...]:
    """Plain items as objects, where objects belong."""
    kind = typing.get_args(hint)[0]
    if not dataclasses.is_dataclass(kind):
        return tuple(items)
    return tuple([instance(kind, each) for each in items[:1]]) * len(items)
