"""Bugs of the walls: input that is not checked, or is run."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

PACKING: Final = "state_machines.packing"

WALLS: Final = (
    Mutant(
        "a-proposal-enters-the-log-unseen",
        "law 18",
        "actors.replica",
        "            admitted, size = self._machine.admit(request.proposal), request.ByteSize()\n",
        "            admitted, size = (), request.ByteSize()\n",
    ),
    Mutant(
        "a-request-has-no-limit",
        "law 18",
        "actors.requests",
        "    if len(request) > REQUEST_BYTES_MAX:\n",
        "    if len(request) < 0:\n",
    ),
    Mutant(
        "a-body-has-no-limit",
        "law 18",
        PACKING,
        "    if len(data) > limit:\n",
        "    if len(data) < 0:\n",
    ),
    Mutant(
        "a-body-nests-without-limit",
        "law 18",
        PACKING,
        "    if _deeper(value, DEPTH_MAX):\n",
        "    if _deeper(value, 10 * DEPTH_MAX):\n",
    ),
    Mutant(
        "the-values-of-a-body-are-not-counted",
        "law 18",
        PACKING,
        "        values += count or len(items)\n",
        "        values += 0 * (count or len(items))\n",
    ),
    Mutant(
        "a-name-may-come-twice",
        "law 18",
        PACKING,
        "    if len(found) != len(pairs):\n",
        "    if len(found) > len(pairs):\n",
    ),
    Mutant(
        "a-chunk-is-decoded-however-long-it-is",
        "law 18",
        "actors.snapshots",
        "        if len(data) > CHUNK_MESSAGE_BYTES_MAX:\n",
        "        if len(data) < 0:\n",
    ),
    Mutant(
        "what-cannot-be-read-is-unpickled",
        "law 19",
        PACKING,
        "    except (ValueError, TypeError, msgpack.UnpackException):\n        raise Invalid(",
        "    except (ValueError, TypeError, msgpack.UnpackException):\n"
        "        if data[:1] == b'\\x80':\n"
        "            return __import__('pickle').loads(data)\n"
        "        raise Invalid(",
    ),
    Mutant(
        "an-append-with-a-gap-is-taken",
        "law 18",
        "state_machines.wire.codec",
        "        if entry.index != index + 1:\n",
        "        if entry.index <= 0:\n",
    ),
    Mutant(
        "a-term-may-be-any-number",
        "law 18",
        "state_machines.wire.codec",
        "    if value > TERM_MAX:\n",
        "    if value < 0:\n",
    ),
    Mutant(
        "a-chunk-for-another-replica-is-taken",
        "law 12",
        "actors.snapshots",
        "            if getattr(message, name) != wanted:\n",
        "            if not getattr(message, name):\n",
    ),
    Mutant(
        "a-proof-does-not-say-whose-it-is",
        "design 6",
        "actors.direct.secret",
        "parts = (side.encode(), ",
        'parts = (b"", ',
    ),
    Mutant(
        "a-lease-may-take-a-shard-from-its-segments",
        "design 5.8",
        "state_machines.lease_rows",
        "if table.name not in tables or not table.kind:",
        "if not table.kind:",
    ),
    Mutant(
        "a-launcher-file-multiplies-its-keys",
        "law 18",
        "actors.config",
        "        if count > KEYS_MAX:",
        "        if count < 0:",
    ),
    Mutant(
        "a-command-that-is-ended-undoes-nothing",
        "docs/operations.md: on the terminal",
        "metaray.cli.ending",
        "    raise SystemExit(SIGNALLED + number)\n",
        "    signal.raise_signal(signal.SIGKILL)\n",
    ),
    Mutant(
        "ray-answers-for-a-command-that-is-ended",
        "docs/operations.md: on the terminal",
        "metaray.cli.ending",
        "        by_raising()\n",
        "",
    ),
    Mutant(
        "names-on-the-terminal-become-pictures",
        "docs/operations.md: on the terminal",
        "metaray.cli.app",
        "console = Console(emoji=False)",
        "console = Console()",
    ),
    Mutant(
        "a-backup-is-for-everybody-to-read",
        "docs/operations.md: encryption",
        "metaray.cut_directory",
        'alone(out, lock="", mode=0o700)',
        'alone(out, lock="")',
    ),
    Mutant(
        "a-manifest-has-no-limit",
        "law 18",
        "jobs.cut",
        "        if len(data) > MANIFEST_BYTES_MAX:\n",
        "        if len(data) < 0:\n",
    ),
    Mutant(
        "a-backup-of-large-rows-is-read-at-once",
        "law 18",
        "metaray.backups",
        "            yield from pages(parquet, rows=BATCH_ROWS)\n",
        "            yield from parquet.iter_batches(batch_size=BATCH_ROWS)\n",
    ),
    Mutant(
        "down-removes-whatever-a-file-says",
        "design 5.6",
        "metaray.local.state",
        '    if name != state["mark"] or not _MARK.fullmatch(name):\n',
        "    if not name:\n",
    ),
    Mutant(
        "a-cache-makes-all-that-a-request-has-parts",
        "law 18",
        "actors.node_cache",
        "            message = parsed(request, kind)\n",
        "            message = kind.FromString(request)\n",
    ),
)
