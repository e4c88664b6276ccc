"""What is said of an error out of Java: its cause, and not the stack below it."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError

from jobs.session import last_line


@pytest.mark.parametrize(
    ("said", "last"),
    [
        (
            ": java.lang.OutOfMemoryError: heap\n\tat a.B.c(B.java:1)\n\t... 3 more\n",
            ": java.lang.OutOfMemoryError: heap",
        ),
        ("way\ncause\n\n", "cause"),
        ("", "ValueError"),
    ],
)
def test_the_cause_is_said(said: str, last: str) -> None:
    assert last_line(ValueError(said)) == last


@pytest.mark.parametrize("dead", [Py4JNetworkError("no answer"), AssertionError(), OSError()])
def test_an_error_whose_words_went_with_the_jvm_is_one_all_the_same(dead: Exception) -> None:
    class OutOfJava(Exception):
        def __str__(self) -> str:
            raise dead

    assert last_line(OutOfJava()).startswith("its Java process ")
