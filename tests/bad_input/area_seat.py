"""What reaches an actor: `propose`, `query`, `watch`, `deliver` and `chunk` of a real seat.

One seat leads a group of its own, with real storage. Whatever it is called with it answers with an
encoded reply, or refuses a peer with Invalid; it goes on leading, and its log grows by nothing that
was refused before it was proposed. Among the calls are requests that are well formed and wrong in
what they mean: an old sequence with other commands, a client that was never registered, revisions
that are not kept or not there yet.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, Final

from actors.seat import Seat
from state_machines import op
from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX, REQUEST_BYTES_MAX
from state_machines.metadata.kv import DeleteKv, GetKv, PutKv
from state_machines.wire import api_pb2 as api
from state_machines.wire import codec
from tests.actors.wires import Group
from tests.bad_input import area_codec, values
from tests.bad_input.area_codec import CLAIMS, assigned
from tests.bad_input.area_requests import error_of
from tests.bad_input.battery import Case, Outcome, Wrong, refused
from tests.bad_input.values import delimited
from tests.machine.alone import wire
from tests.wire.test_codec import MESSAGES

GROUP: Final = "metadata-0"
SHORT_MS: Final = 5  #: nobody waits longer for an answer that does not come
SECONDS: Final = 5.0  #: for any call; longer is a hang
KEPT: Final = 10  #: sequences of the past whose replies are kept
ACKED: Final = 5

Method = str
NO_REQUESTS: Final = (None, 1, "a", bytearray(b"a"), [b"a"], b"", b"\0", b"\xff" * 10)


def proposal(client: int, sequence: int, *commands: Any, acked: int = 0) -> api.ProposeRequest:
    made = api.Proposal(
        client=client, sequence=sequence, acked=acked, commands=[wire(each) for each in commands]
    )
    return api.ProposeRequest(group=GROUP, proposal=made, timeout_ms=2_000)


def bombs() -> list[tuple[str, Method, bytes]]:
    """Requests within the size limit that would be many times that once decoded."""
    many = REQUEST_BYTES_MAX // 2 - 64
    head = delimited(1, GROUP.encode())
    return [
        ("empty commands", "propose", head + delimited(2, b"\x22\x00" * many)),
        ("empty queries", "query", head + b"\x2a\x00" * many),
        ("empty tables", "watch", head + b"\x12\x00" * many),
        ("a long group", "query", delimited(1, b"\0" * (REQUEST_BYTES_MAX - 64))),
        ("unknown fields", "propose", head + b"\x78\x01" * many),
        ("groups", "query", head + b"\x7b\x7c" * many),
        ("too large", "watch", bytes(REQUEST_BYTES_MAX + 1)),
        *(
            (f"claims {claim}", method, head + delimited(2, b"", claim))
            for method in ("propose", "query", "watch")
            for claim in CLAIMS
        ),
    ]


class SeatArea:
    """The methods of a seat that others call."""

    name = "seat"
    frame_bytes = REQUEST_BYTES_MAX

    def __init__(self) -> None:
        self._folder = mkdtemp(prefix="bad-input-")
        self._runner = asyncio.Runner()
        self._group = Group(Path(self._folder), name=GROUP, replicas=1)
        self._seat, self._client = self._runner.run(self._begin())
        assert self._seat.replica is not None
        self._replica = self._seat.replica
        self._listed = self._requests()
        self.listed = len(self._listed)

    async def _begin(self) -> tuple[Seat, int]:
        """A group with a past: a client, a key, and some replies that are kept."""
        await self._group.found("c")
        seat = await self._group.leader()
        register = api.Proposal(
            sequence=1, commands=[api.Command(tag=op.REGISTER_TAG, body=b"\x80")]
        )
        asked = api.ProposeRequest(group=GROUP, proposal=register, timeout_ms=2_000)
        client = api.Reply.FromString(await seat.propose(asked.SerializeToString())).client
        for sequence in range(1, KEPT + 1):
            put = proposal(client, sequence, PutKv(key="k", value=b"v"), acked=min(sequence, ACKED))
            await seat.propose(put.SerializeToString())
        return seat, client

    def close(self) -> None:
        self._runner.run(self._group.close())
        self._runner.close()
        shutil.rmtree(self._folder)

    def case(self, number: int) -> Case:
        if number < self.listed:
            what, method, data, wanted = self._listed[number]
            bomb = what.startswith("bomb")
            run = partial(self._call, method, data, wanted)
            return Case(f"{method} {what}", run, bomb=bomb, size=len(data) if bomb else 0)
        rng = Random(f"seat {number}")
        method, data = self._drawn(rng)
        return Case(f"{method} drawn", partial(self._call, method, data), size=len(data), wide=True)

    # -- one call ---------------------------------------------------------------------------

    def _call(self, method: Method, data: Any, wanted: str = "") -> Outcome:
        return self._runner.run(self._answer(method, data, wanted))

    async def _answer(self, method: Method, data: Any, wanted: str) -> Outcome:
        core = self._replica.core
        before = (core.last_index, core.term)
        try:
            async with asyncio.timeout(SECONDS):
                said = await getattr(self._seat, method)(data)
        except Invalid as error:
            outcome = refused(error)
        except TimeoutError:
            raise Wrong("hang", f"{method} did not answer") from None
        else:
            outcome = self._said(method, said, wanted)
        if self._replica.stopped_because:
            raise Wrong("crash", f"the replica stopped: {self._replica.stopped_because}")
        if not self._replica.leads:
            raise Wrong("changed", "the replica no longer leads")
        early = wanted == "INVALID" or method in ("query", "watch", "deliver", "chunk")
        if early and before != (core.last_index, core.term):
            raise Wrong("changed", f"the log grew: {before}")
        return outcome

    @staticmethod
    def _said(method: Method, said: Any, wanted: str) -> Outcome:
        if method in ("deliver", "chunk"):
            return Outcome.TAKEN if said else Outcome.DROPPED
        reply = api.Reply.FromString(said)
        parts: list[Any] = [reply, *reply.results]
        codes = {api.Code.Name(each.code) for each in parts}
        for each in parts:
            if each.code != api.OK:
                refused(error_of(each.code, each.detail))
        if wanted and wanted.lstrip("=") not in codes:
            raise Wrong("let in", f"{codes} instead of {wanted}: {str(reply)[:200]}")
        return Outcome.TAKEN if codes == {"OK"} else Outcome.REFUSED

    # -- what is called ---------------------------------------------------------------------

    def _requests(self) -> list[tuple[str, Method, Any, str]]:
        """Calls, and the code that has to be in the reply. INVALID: and nothing was proposed;
        with = before it the refusal is part of the log."""
        made: list[tuple[str, Method, Any, str]] = [
            (f"bomb of {what}", method, data, "") for what, method, data in bombs()
        ]
        for method in ("propose", "query", "watch", "deliver", "chunk"):
            made += [(repr(value), method, value, "") for value in NO_REQUESTS]
        put, get = PutKv(key="k", value=b"other"), GetKv(key="k")
        client, odd = self._client, (0, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)

        def propose(what: str, request: api.ProposeRequest, wanted: str) -> None:
            made.append((what, "propose", request.SerializeToString(), wanted))

        for sequence in range(ACKED + 1, KEPT + 1):
            propose(f"{sequence} with other commands", proposal(client, sequence, put), "=INVALID")
            same = proposal(client, sequence, PutKv(key="k", value=b"v"))
            propose(f"{sequence} again", same, "OK")
        for sequence in range(1, ACKED + 1):
            propose(f"{sequence}, long acknowledged", proposal(client, sequence, put), "=INVALID")
        for other in (client + 1, client - 1, 1, 2**62, 2**63 - 1):
            propose(f"client {other}", proposal(other, 1, put), "SESSION_EXPIRED")
        for other in (2**63, 2**64 - 1):
            propose(f"client {other}", proposal(other, 1, put), "INVALID")
        for sequence in (0, 2**63, 2**64 - 1):
            propose(f"sequence {sequence}", proposal(client, sequence, put), "INVALID")
        propose("no command", proposal(client, 90), "INVALID")
        propose("many commands", proposal(client, 90, *[put] * (BATCH_ITEMS_MAX + 1)), "INVALID")
        propose("client 0 writes", proposal(0, 1, put), "INVALID")
        absent = PutKv(key="absent", value=b"", expected_revision=7)
        propose("compare with what is absent", proposal(client, 100, absent), "CONFLICT")
        propose("delete nothing", proposal(client, 101, DeleteKv(key="absent")), "NOT_FOUND")
        present = PutKv(key="k", value=b"", expected_revision=0)
        propose("create what is there", proposal(client, 102, present), "CONFLICT")
        for group in ("", "metadata-1", "offset-0", "metadata-0\n", "x" * 5_000):
            for name, kind in (
                ("propose", api.ProposeRequest),
                ("query", api.QueryRequest),
                ("watch", api.WatchRequest),
            ):
                request: Any = kind(group=group)
                made.append((f"group {group[:20]!r}", name, request.SerializeToString(), "INVALID"))
        for revision in odd:
            asked = api.QueryRequest(
                group=GROUP, stale=True, min_revision=revision, queries=[wire(get)]
            )
            asked.timeout_ms = SHORT_MS if revision else 2_000
            wanted = "UNKNOWN" if revision else "OK"
            made.append((f"revision {revision}", "query", asked.SerializeToString(), wanted))
            watch = api.WatchRequest(
                group=GROUP, tables=["metadata.kv"], from_revision=revision, timeout_ms=SHORT_MS
            )
            wanted = "COMPACTED" if revision else "OK"  # its log is shorter than that
            made.append((f"from {revision}", "watch", watch.SerializeToString(), wanted))
        for tables in ([], ["nothing"], ["a\nb"], ["metadata.kv"] * 65, ["x" * 9_000]):
            watch = api.WatchRequest(group=GROUP, tables=tables, timeout_ms=SHORT_MS)
            made.append((f"{len(tables)} tables", "watch", watch.SerializeToString(), ""))
        for what, decode, data in area_codec.FRAMES:
            if decode is codec.decode_envelope:
                made.append((what, "deliver", data, ""))  # of another cluster
        for message in MESSAGES:
            made += [
                (f"{message!r} for {group}"[:90], "deliver", self._envelope(message, group), "")
                for group in (GROUP, "mqtt-0")
            ]
        return made

    @staticmethod
    def _envelope(message: Any, group: str) -> bytes:
        return codec.encode_envelope(
            cluster="c", group=group, sender=message.sender, seat=f"{group}/9", messages=[message]
        )

    def _drawn(self, rng: Random) -> tuple[Method, bytes]:
        put = PutKv(key=rng.choice("abc"), value=b"x")
        kinds: dict[Method, Callable[[], Any]] = {
            "propose": lambda: proposal(self._client, 200 + rng.randrange(9), put),
            "query": lambda: api.QueryRequest(group=GROUP, queries=[wire(GetKv(key="k"))]),
            "watch": lambda: api.WatchRequest(group=GROUP, tables=["metadata.kv"]),
        }
        method = rng.choice((*kinds, *kinds, "deliver", "chunk"))
        if method not in kinds:
            data = rng.choice(area_codec.FRAMES)[2]
            return method, rng.choice((values.mangled(rng, data), values.noise(rng)))
        request = kinds[method]()
        match rng.randrange(4):
            case 0:
                return method, values.noise(rng)
            case 1:
                request.timeout_ms = SHORT_MS
                return method, values.mangled(rng, request.SerializeToString())
            case _:
                for _ in range(rng.randrange(1, 4)):
                    assigned(request, rng)
                request.timeout_ms = SHORT_MS
                return method, request.SerializeToString()
