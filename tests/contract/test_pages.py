"""docs/entities.md: fresh, and nothing is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaray.contract import __main__ as command
from metaray.contract import pages, registry
from state_machines.errors import NotFound

FILE = Path(__file__).parents[2] / "docs" / "entities.md"


def test_the_page_is_what_the_registry_gives(request: pytest.FixtureRequest) -> None:
    now = pages.generate()
    if request.config.getoption("--rewrite"):
        FILE.write_text(now, encoding="utf-8")
        return
    assert FILE.read_text(encoding="utf-8") == now, "something was added: run 'make contract'"


def test_every_tag_table_type_and_limit_is_on_it() -> None:
    text = pages.generate()
    for entity in registry.entities():
        assert f"### {entity.kind}.{entity.name}\n" in text
        for operation in entity.operations:
            assert f"| `{operation.tag}`<br>`{operation.cls.__name__}`<br>" in text
        for table in entity.tables:
            assert f"**Table `{table.name}`**" in text
    for cls in registry.parts():
        assert text.count(f"**`{cls.__name__}`**") == 1
    assert "| `VALUE_BYTES_MAX` | 1 048 576 | one value" in text


def test_every_row_of_a_table_has_its_columns() -> None:
    columns = 0
    for line in pages.generate().splitlines():
        if not line.startswith("|"):
            columns = 0
            continue
        count = line.replace("\\|", "").count("|")
        assert columns in (0, count), line
        columns = count


def test_an_operation_is_said_with_defaults_refusals_and_meanings() -> None:
    (line,) = (
        line for line in pages.generate().splitlines() if line.startswith("| `metadata.kv.delete`")
    )
    assert '`tenant` str = `"default"`' in line
    assert "`expected_revision` int or none = none" in line
    assert "*NotFound* key: … is not there<br>*Conflict* expected_revision: …" in line
    assert "command, by `(tenant, key)`" in line
    assert NotFound.__name__ in line
    (line,) = (
        line for line in pages.generate().splitlines() if line.startswith("| `mqtt.session.close`")
    )
    assert "`expiry_s` int or none (s) = none: DISCONNECT may change it" in line


def test_what_is_stale_is_written_or_only_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.md"
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "FILES", {path: lambda before: before or "new\n"})
    assert command.main(["--check"]) == 1
    assert "page.md is not what the registry gives: run 'make contract'" in capsys.readouterr().err
    assert not path.exists()
    assert command.main([]) == 0
    assert capsys.readouterr().out == "wrote page.md\n"
    assert path.read_text(encoding="utf-8") == "new\n"
    assert command.main(["--check"]) == 0
    assert command.main([]) == 0
    assert capsys.readouterr() == ("", "")
