"""Where the directories of a group lie, and that nothing is founded beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors import bootstrap, calls
from actors.directories import Lying, Said, homes, lying_here
from actors.ray_env import DATA_VARIABLE
from state_machines.errors import Conflict, Stopped
from storage.identity import Directory

GROUP = "metadata-0"
SEATS = tuple(f"{GROUP}/{number}" for number in range(3))
NAMES = {"n0": "node-0", "n1": "node-1", "n2": ""}


def lying(replica: int, written_ns: int = 0, status: str = "active") -> tuple[Lying, ...]:
    path = f"/data/{GROUP}/{replica:016x}"
    return (Lying(path=path, replica=replica, status=status, written_ns=written_ns),)


def test_a_node_tells_what_it_has_of_the_group_held_or_not_but_nothing_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(Stopped, match=DATA_VARIABLE):
        lying_here(GROUP)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert lying_here(GROUP) == ()
    Directory.create(tmp_path, "c", "offset-0").close()
    with Directory.create(tmp_path, "c", GROUP) as gone:
        gone.update(status="retired")
    with Directory.create(tmp_path, "c", GROUP) as held:
        held.update(status="active")
        held.log_path.mkdir()
        (held.log_path / "journal").touch()
        os.utime(held.log_path / "journal", ns=(5, 5))
        assert lying_here(GROUP) == (
            Lying(
                path=str(held.path), replica=held.identity.replica, status="active", written_ns=5
            ),
        )
        (held.path / "identity.json").write_text("{")
        with pytest.raises(Stopped, match="BadIdentity"):
            lying_here(GROUP)


def test_those_that_took_part_come_first_and_of_these_who_was_written_to_last() -> None:
    said: Said = {
        "removed": lying(1, written_ns=10),
        "founding": lying(2, written_ns=99, status="founding"),
        "member": lying(3, written_ns=20),
        "empty": (),
        "silent": Stopped("no answer"),
    }
    assert homes(said) == ("member", "removed", "founding")


def test_of_a_nodes_directories_the_one_counts_that_took_part_and_was_written_to_last() -> None:
    said: Said = {
        "two": lying(1, written_ns=60) + lying(2, written_ns=99, status="founding"),
        "old": lying(3, written_ns=5) + lying(4, written_ns=50),
    }
    assert homes(said) == ("two", "old")


def test_a_file_that_goes_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replica lives, and files of its log come and go."""
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with Directory.create(tmp_path, "c", GROUP) as held:
        held.log_path.mkdir()
        (held.log_path / "journal").touch()
        os.utime(held.log_path / "journal", ns=(5, 5))
        (held.log_path / "gone").symlink_to(held.log_path / "nowhere")
        assert [each.written_ns for each in lying_here(GROUP)] == [5]


class Vacant:
    """Seats without a directory, which are asked for one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        monkeypatch.setattr(calls, "each_call", self._each_call)

    def _each_call(self, names: Sequence[str], method: str, *_: Any, seconds: float) -> Any:
        self.asked.append(method)
        return {name: number for number, name in enumerate(names, 1)}

    def found(self, said: Said, **replicas: int) -> None:
        hellos = {
            seat: {"status": "vacant", "replica": replicas.get(f"r{number}", 0)}
            for number, seat in enumerate(SEATS)
        }
        bootstrap.found_group(GROUP, hellos, "cluster", lambda: (said, NAMES))


def test_no_group_is_founded_beside_a_directory_of_it_that_no_seat_has_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seats = Vacant(monkeypatch)
    with pytest.raises(Conflict) as refused:
        seats.found({"n0": lying(7), "n1": (), "n2": lying(8, status="founding")})
    assert f"node-0:/data/{GROUP}/0000000000000007 (active)" in refused.value.detail
    assert f"n2:/data/{GROUP}/0000000000000008 (founding)" in refused.value.detail
    with pytest.raises(Stopped, match="known whether its data lie on node-1: no answer"):
        seats.found({"n0": (), "n1": Stopped("no answer")})
    assert not seats.asked
    seats.found({"n0": lying(7, status="founding"), "n1": ()}, r2=7)
    assert seats.asked == ["reserve", "found", "activate"], "a founding that was cut short goes on"
