"""Our modules with some of their text changed, in this process only.

    rewriting.install(lambda module, source: source.replace(old, new))

Planted bugs (`tests/mutants`) and points at which to fail (`tests/crash`) come into the product in
this way, so that there is no switch for either in production code, and nothing to pay for them.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, ModuleType

OURS = frozenset({"state_machines", "storage", "actors", "jobs", "metaray"})

Rewrite = Callable[[str, str], str]
"""(module, source) -> the source to run."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles what `rewrite` makes of a file. Never reads or writes the cache of compiled code."""

    def __init__(self, fullname: str, path: str, rewrite: Rewrite) -> None:
        super().__init__(fullname, path)
        self._rewrite = rewrite

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self._rewrite(fullname, self.get_data(path).decode())
        return self.source_to_code(source.encode(), path)


class _Finder(MetaPathFinder):
    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in OURS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(fullname, spec.loader.path, self._rewrite)
        return spec


def install(rewrite: Rewrite) -> None:
    """From now on every module of ours is imported as `rewrite` leaves it. Only once a process,
    and before the first of our modules is imported."""
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in OURS)
    if loaded:
        raise RuntimeError(f"too late to rewrite what is imported already: {', '.join(loaded)}")
    sys.meta_path.insert(0, _Finder(rewrite))
