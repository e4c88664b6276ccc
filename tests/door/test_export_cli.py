"""`metaray export`: what is typed reaches the export, and what it made is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jobs.cut import CutFile, Manifest
from jobs.errors import OutputFailed
from metaray import exporting
from metaray.cli import export
from metaray.cli.app import app
from metaray.exporting import Progress

MANIFEST = Manifest(
    cluster="c",
    taken_ms=7,
    cut={"mqtt-0": 41, "offset-0": 1_234_567},
    files=[
        CutFile(
            path=f"t/{group}-{n}.parquet",
            table="t",
            group=group,
            rows=9_000,
            bytes=50_000,
            sha256="",
        )
        for group, n in (("mqtt-0", 0), ("offset-0", 0), ("offset-0", 1))
    ],
    schema="s",
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def made(out: Path, **choice: Any) -> Manifest:
        for done in (0, 1, 2):
            choice["progress"](Progress(2, done, 10 * done, 20, 100 * done, done))
        found.update(out=out, **choice)
        if (out / "full").exists():
            raise OutputFailed("out: No space left on device")
        return MANIFEST

    monkeypatch.setattr(exporting, "export", made)
    monkeypatch.setattr(export, "join_cluster", lambda address, data: None)
    return found


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["export", *words])


def test_what_is_typed_is_what_is_exported(asked: dict[str, Any], tmp_path: Path) -> None:
    done = run("--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["cut"] == MANIFEST.cut
    assert len(said["files"]) == 3
    assert (asked["groups"], asked["tables"], asked["source"]) == (None, None, "")
    assert asked["min_index"] == {}
    words = ("--groups", "offset-0, mqtt-0", "--tables", "t,", "--from", "learner")
    done = run("--out", str(tmp_path), *words, "--min-index", "offset-0=12,mqtt-0=0")
    assert done.exit_code == 0, done.output
    assert asked["groups"] == ["offset-0", "mqtt-0"]
    assert (asked["tables"], asked["source"]) == (["t"], "learner")
    assert asked["min_index"] == {"offset-0": 12, "mqtt-0": 0}
    assert "1,234,567" in done.stdout
    assert "18,000" in done.stdout
    assert "100.0 kB" in done.stdout


@pytest.mark.usefixtures("asked")
def test_a_directory_is_named_as_it_is_though_it_looks_like_markup(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "cut[v2]"))
    assert done.stdout.replace("\n", "").endswith("cut[v2]")


@pytest.mark.parametrize(
    "words", ["offset-0", "offset-0=", "=3", "offset-0=-1", "a=1,b=x", "a=" + "9" * 19]
)
def test_an_index_that_is_none_is_refused(
    words: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    done = run("--out", str(tmp_path), "--min-index", words)
    assert done.exit_code == 2
    assert "Invalid: min-index: " in done.stderr
    assert asked == {}


def test_what_goes_wrong_is_one_line(asked: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    done = run("--out", str(tmp_path))
    assert done.exit_code == 2
    assert done.stderr.strip().endswith("OutputFailed: out: No space left on device")
    assert run().exit_code == 2  # where to is to be said
