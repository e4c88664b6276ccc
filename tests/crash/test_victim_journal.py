"""What a kill leaves of a victim's journal is read, and nothing else that is not whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.crash.victim_journal import Journal, read


def test_a_line_that_a_kill_has_cut_ends_its_life_and_no_more(tmp_path: Path) -> None:
    """Kills, chain 1000014: an entry of 130 KB, cut at the end of a page."""
    path = tmp_path / "journal"
    Journal(path)("life", 1)
    with path.open("ab") as file:
        file.write(b'["entry","metadata-0",7,1,0,"CAEQByLK')
    Journal(path)("life", 2)
    with path.open("ab") as file:
        file.write(b'["match",1')
    assert list(read(path)) == [["life", 1], ["life", 2]]


def test_a_line_that_is_broken_within_a_life_is_no_kill(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal("life", 1)
    with path.open("ab") as file:
        file.write(b'["match",1\n')
    journal("rest")
    with pytest.raises(json.JSONDecodeError):
        list(read(path))
