"""Which Python `make setup` takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from metaray import pythons


def _python(folder: Path, name: str, says: str) -> str:
    """Something that is called as Python is, and answers so."""
    folder.mkdir(exist_ok=True)
    made = folder / name
    made.write_text(f"#!/bin/sh\n{says}\n")
    made.chmod(0o755)
    return str(made)


def test_the_quickest_is_taken(tmp_path: Path) -> None:
    paces = {"slow": 6_200, "quick": 4_400, "slower": 7_000}
    files = [_python(tmp_path, name, f"echo {us}") for name, us in paces.items()]
    assert pythons.quickest(files) == files[1]


def test_one_that_was_disturbed_has_other_turns(tmp_path: Path) -> None:
    slow = _python(tmp_path, "slow", "echo 6200")
    turns = tmp_path / "turns"
    quick = _python(
        tmp_path,
        "quick",
        f"echo >>'{turns}'; [ $(wc -l <'{turns}') = 3 ] && echo 4400 || echo 9000",
    )
    assert pythons.quickest([slow, quick]) == quick
    assert turns.read_text() == "\n" * pythons.ROUNDS


def test_what_is_hardly_quicker_leaves_the_first_one_its_place(tmp_path: Path) -> None:
    files = [_python(tmp_path, f"python{us}", f"echo {us}") for us in (1_000, 901, 899)]
    assert pythons.quickest(files[:2]) == files[0]
    assert pythons.quickest(files) == files[2]


def test_what_cannot_run_metaray_is_passed_over(tmp_path: Path) -> None:
    """An older one stumbles over the file, a newer one says so, something else says anything."""
    says = ["exit 1", "echo 1; exit 1", "echo Python 2.7", "kill -9 $$", ""]
    files = [_python(tmp_path, f"python{number}", each) for number, each in enumerate(says)]
    assert pythons.quickest([*files, str(tmp_path / "gone")]) == ""
    files.append(_python(tmp_path, "python3", "echo 9000"))
    assert pythons.quickest(files) == files[-1]


def test_every_folder_of_the_path_is_looked_at(tmp_path: Path) -> None:
    first, second = tmp_path / "my tools", tmp_path / "bin"
    files = [
        _python(first, "python3.11", ""),
        _python(second, "python3.11", ""),
        _python(second, "python3", ""),
    ]
    (first / "python3").mkdir()  # no program
    (first / "python").symlink_to(second / "python3")  # as in a virtual environment
    (second / "python3.12").touch()  # may not be run
    path = f"{first}:{tmp_path / 'gone'}:{second}"
    assert pythons.found(["python3.11", "python3.12", "python3", "python"], path) == files
    assert pythons.found(["python"], path) == [files[2]]
    assert pythons.found([files[2], str(first / "python3")], path) == [files[2]]


def test_it_runs_on_its_own_and_tells_a_pace() -> None:
    command = [sys.executable, "-I", pythons.__file__]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(told.stdout) > 0
    found = subprocess.run(
        [*command, sys.executable], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == f"{Path(sys.executable).resolve()}\n"


def test_another_version_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pythons.fits()
    for version in [(3, 10, 13), (3, 13, 0)]:
        monkeypatch.setattr(sys, "version_info", version)
        assert pythons.main([]) == 1
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert pythons.main([]) == 1
    assert capsys.readouterr().out == ""


def test_none_is_said_by_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pythons.main(["python3"]) == 1
    python = _python(tmp_path, "python3", "echo 5000")
    assert pythons.main(["python3"]) == 0
    assert capsys.readouterr().out == f"{python}\n"
