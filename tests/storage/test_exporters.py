"""What a replica writes down of the exporters that it keeps its log for."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.exporters import EXPORTERS, ExportersFile


def test_what_was_written_is_found_again(tmp_path: Path) -> None:
    file = ExportersFile(tmp_path)
    assert file.found == {}
    file.save({"history-1": 7, "history-ä": 0})
    assert ExportersFile(tmp_path).found == {"history-1": 7, "history-ä": 0}
    file.save({})
    assert ExportersFile(tmp_path).found == {}
    assert [each.name for each in tmp_path.iterdir()] == [EXPORTERS]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"exporters": {"a": 1}, "crc": 1}'])
def test_what_cannot_be_read_is_said_and_counts_as_nothing(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / EXPORTERS).write_bytes(content)
    assert ExportersFile(tmp_path).found == {}
    assert EXPORTERS in caplog.text


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    ExportersFile(tmp_path).save({"history-1": 7})
    path = tmp_path / EXPORTERS
    path.write_bytes(path.read_bytes().replace(b"7", b"6", 1))
    assert ExportersFile(tmp_path).found == {}
