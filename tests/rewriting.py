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
    """Compiles what the rewrites make of a file. What they leave alone is loaded as ever; what
    they change never comes from the cache of compiled code, nor goes into it."""

    def __init__(self, fullname: str, path: str, rewrites: Sequence[Rewrite]) -> None:
        super().__init__(fullname, path)
        self._rewrites = rewrites

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        was = source = self.get_data(path).decode()
        for rewrite in self._rewrites:
            source = rewrite(fullname, source)
        if source == was:
            return super().get_code(fullname)
        return self.source_to_code(source.encode(), path)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.rewrites: list[Rewrite] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in OURS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(fullname, spec.loader.path, self.rewrites)
        return spec


_finder = _Finder()


def install(rewrite: Rewrite) -> None:
    """From now on every module of ours is imported as `rewrite` leaves it, after those that were
    installed before. Has to come before the first of our modules is imported."""
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in OURS)
    if loaded:
        raise RuntimeError(f"too late to rewrite what is imported already: {', '.join(loaded)}")
    _finder.rewrites.append(rewrite)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
