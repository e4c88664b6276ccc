"""Field numbers that never move: the committed `proto/entities.proto` is what remembers them.

A generation reads the numbers of the last one from the file it is about to write. A field keeps its
number wherever it stands in its class; a new one gets the next number that nobody ever had; of one
that is gone the number and the name are reserved. A message is known again by what it stands for (a
tag, a table, a type), so it keeps its name too when another class of the same name appears.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_MESSAGE: Final = re.compile(r"^message (\w+) \{$")
_STANDS_FOR: Final = re.compile(r'^  option \((\w+)\) = "(.+)";$')
_FIELD: Final = re.compile(r"^  (?:optional |repeated )?[\w.]+ (\w+) = (\d+);")
_RESERVED: Final = re.compile(r"^  reserved ([^;]+);$")


@dataclass(slots=True)
class Message:
    """What is remembered of a message: its name, its fields' numbers, and what was retired."""

    name: str
    numbers: dict[str, int] = field(default_factory=dict)
    retired_numbers: set[int] = field(default_factory=set)
    retired_names: set[str] = field(default_factory=set)

    def renumber(self, fields: Sequence[str]) -> None:
        """Give these fields their numbers, and retire those that are not among them."""
        for name in [each for each in self.numbers if each not in fields]:
            self.retired_numbers.add(self.numbers.pop(name))
            self.retired_names.add(name)
        # A name that comes back stands for another field: it may, the old number may not.
        self.retired_names.difference_update(fields)
        last = max([*self.numbers.values(), *self.retired_numbers], default=0)
        for name in fields:
            if name not in self.numbers:
                last += 1
                self.numbers[name] = last

    def reserved(self) -> list[str]:
        """The statements that keep what was retired from coming back."""
        numbers = ", ".join(map(str, sorted(self.retired_numbers)))
        names = ", ".join(f'"{each}"' for each in sorted(self.retired_names))
        return [f"  reserved {each};" for each in (numbers, names) if each]


def remembered(text: str) -> dict[str, Message]:
    """The messages of a generated file, by each of the things that they stand for."""
    found: dict[str, Message] = {}
    message = Message("")
    for line in text.splitlines():
        if match := _MESSAGE.match(line):
            message = Message(match[1])
        elif match := _STANDS_FOR.match(line):
            found[f"{match[1]} {match[2]}"] = message
        elif match := _RESERVED.match(line):
            for each in match[1].split(", "):
                if each.startswith('"'):
                    message.retired_names.add(each.strip('"'))
                else:
                    message.retired_numbers.add(int(each))
        elif match := _FIELD.match(line):
            message.numbers[match[1]] = int(match[2])
    return found
