"""What the demo shows while it runs: one line a step, with its time, and the checks that failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape


@dataclass(slots=True)
class Steps:
    """The steps so far (seconds by name) and what did not hold."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    checks: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[Note]:
        """Show a step as running, then as done with its time and what it noted."""
        note = Note()
        begun = time.monotonic()
        with self.console.status(f"[bold]{name}[/] …"):
            yield note
        took = time.monotonic() - begun
        self.seconds[name] = round(took, 3)
        said = f"  [dim]{note.text}[/]" if note.text else ""
        self.console.print(f"[green]✓[/] {name} [cyan]{took:.1f} s[/]{said}", highlight=False)

    def say(self, text: str) -> None:
        """One line between steps."""
        self.console.print(f"  {text}", highlight=False)

    def check(self, held: bool, what: str) -> bool:
        """Count a check; one that did not hold is shown at once and makes the run fail."""
        self.checks += 1
        if not held:
            self.failures.append(what)
            self.console.print(f"[red]✗ {escape(what)}[/]", highlight=False)
        return held


@dataclass(slots=True)
class Note:
    """What a step wants shown beside its time."""

    text: str = ""
