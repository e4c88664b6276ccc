"""Products that break a law, to see that the verdict finds out. Names say what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Rewrite = Callable[[str, str], str]


def _replace(module: str, *pairs: tuple[str, str]) -> Rewrite:
    def rewrite(name: str, source: str) -> str:
        if name != module:
            return source
        for old, new in pairs:
            assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {module}"
            source = source.replace(old, new)
        return source

    return rewrite


BROKEN: Final[dict[str, Rewrite]] = {
    "rows-behind-their-point": _replace(
        "storage.state",
        (
            "Flush(self._engine, self._under, self.applied, self._under_bytes)\n",
            "Flush(self._engine, self._under, "
            "self.flushed if self.flushed.index else self.applied, self._under_bytes)\n"
            "        setattr(self._flush, 'said', self.applied)\n",
        ),
        ("self.installed = flush.point, False", "self.installed = vars(flush)['said'], False"),
    ),
    "a-retry-is-applied-again": _replace(
        "state_machines.machine",
        (
            "        if kept is not None:\n",
            "        if kept is not None and kept == b'':\n",
        ),
    ),
    "an-install-keeps-the-old-rows": _replace(
        "storage.state",
        (
            "        self._shelf.switch()\n",
            "        kept = [(t, k, v) for t in self._engine.tables() if t != STATE\n"
            "                for k, v in self._engine.scan(t)\n"
            "                if t not in self._shelf.staged.tables()\n"
            "                or self._shelf.staged.get(t, k) is None]\n"
            "        self._shelf.staged.write(kept)\n"
            "        self._shelf.switch()\n",
        ),
    ),
}
