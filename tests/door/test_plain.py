"""A checkout in a path with a space: Ray and Spark are started by way of a link."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metaray import plain
from tests.kernel import ROOT


def test_a_path_without_a_space_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/opt/metaray/.venv")
    assert plain.interpreter() == Path("/opt/metaray/.venv/bin/python")


def test_a_path_with_a_space_is_linked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "my projects"
    here.mkdir()
    monkeypatch.setattr(sys, "prefix", str(here))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = plain.interpreter()
    assert " " not in first.relative_to(tmp_path).parts[0]
    assert first.parent.parent.resolve() == here.resolve()
    assert plain.interpreter() == first


def test_a_link_that_leads_elsewhere_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "my projects"
    here.mkdir()
    monkeypatch.setattr(sys, "prefix", str(here))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    link = plain.interpreter().parent.parent
    link.unlink()
    link.symlink_to(tmp_path)
    assert plain.interpreter().parent.parent.resolve() == here.resolve()
    assert link.readlink() == tmp_path


def test_the_module_prints_an_interpreter_that_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metaray.plain"], capture_output=True, text=True, check=True
    )
    python = done.stdout.strip()
    assert not any(character.isspace() for character in python)
    said = subprocess.run(
        [python, "-c", "import metaray; print('here')"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "here\n"


@pytest.mark.parametrize("module", ["metaray.cli", "tests.nemesis"])
def test_what_starts_ray_and_spark_does_so_by_the_link(module: str, tmp_path: Path) -> None:
    """Found by the nemesis, which could not start Spark by its own path: that had a space."""
    here = tmp_path / "my projects"
    here.symlink_to(sys.prefix, target_is_directory=True)
    subprocess.run(
        [here / "bin" / "python", "-m", module, "--help"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=True,
    )
    (link,) = tmp_path.glob("metaray-*")
    assert link.readlink() == here
