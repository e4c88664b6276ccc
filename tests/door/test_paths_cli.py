"""What an empty path is on the command line: nothing that is read, and nothing that is written."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

import bench.command  # noqa: F401 - adds its commands
from metaray.cli.app import app
from tests.door.test_cli import run


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("export", "--out", ""), "--out"),
        (("backup", "--out", ""), "--out"),
        (("backup", "verify", ""), "directory"),
        (("restore", ""), "directory"),
        (("report", "--cut", ""), "--cut"),
        (("repair", "--plan", ""), "--plan"),
        (("history", "run", "--out", ""), "--out"),
        (("up", "--local", "3", "--config", ""), "--config"),
        (("status", "--data", ""), "--data"),
        (("bench", "storm", "--out", ""), "--out"),
    ],
)
def test_an_empty_path_is_refused_and_is_not_where_the_command_runs(
    words: tuple[str, ...], option: str
) -> None:
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    said = " ".join(done.stderr.replace("│", " ").split())
    assert f"Invalid value for '{option}': it is empty; `.` is the directory" in said


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("demo", "--out", "file"), "out: file"),
        (("demo", "--out", "file/r"), "out: file/r"),
        (("demo", "--out", "out", "--json", "."), "json: ."),
        (("demo", "--out", "out", "--json", "file/x.json"), "json: file"),
        (("bench", "--out", "file"), "out: file"),
        (("bench", "storm", "--out", "file"), "out: file"),
    ],
)
def test_a_long_run_that_could_not_be_written_down_is_not_begun(
    words: tuple[str, ...], field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("metaray.local.up", mock.Mock(side_effect=AssertionError("it is begun")))
    Path("file").touch()
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.startswith(f"Invalid: {field} cannot be written: ")


def callbacks(tree: typer.Typer) -> Iterator[Callable[..., Any]]:
    """What every command that is written by hand is made of."""
    groups = tree.registered_groups
    yield from (each.callback for each in tree.registered_commands if each.callback)
    for group in groups:
        assert group.typer_instance is not None
        yield from callbacks(group.typer_instance)
    if tree.registered_callback is not None and tree.registered_callback.callback is not None:
        yield tree.registered_callback.callback


def test_no_command_takes_a_path_otherwise() -> None:
    paths = 0
    for callback in callbacks(app):
        for name, hint in typing.get_type_hints(callback, include_extras=True).items():
            if typing.get_origin(hint) is typing.Annotated:
                plain, *told = typing.get_args(hint)
                if Path in (plain, *typing.get_args(plain)):
                    paths += 1
                    assert told[0].parser is not None, (callback.__qualname__, name)
    assert paths > 40


def test_an_input_without_a_file_is_refused() -> None:
    done = run("report", "lag", "--input", "watermarks=")
    assert (done.exit_code, done.stderr) == (2, "Invalid: input: 'watermarks' names no file\n")
