"""Failpoints: what they are in production, and a sample of what the lab does with all of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import rewriting
from tests.crash import failpoints
from tests.crash.failpoints import ROOT, found, rewritten
from tests.crash.failpoints_plan import RECOVERY, trials
from tests.crash.kills import KILLED, Lab
from tests.crash.victim import RESTED, SPARED

GOLDEN = Path(__file__).parent / "failpoints.golden"
PLACE = ROOT / "build" / f"crash-test-{os.getpid()}"
LEAST = {
    "log": 7,
    "journal": 4,
    "checkpoint": 2,
    "disk": 5,
    "vote": 4,
    "apply": 8,
    "flush": 6,
    "compact": 4,
    "snapshot": 8,
    "receive": 4,
    "stage": 4,
    "install": 8,
    "identity": 4,
    "member": 8,
    "read": 4,
    "controller": 6,
    "client": 6,
}
"""How many there are to be in each area."""

KILLS = (
    "apply.duplicate-1",
    "apply.before_point-9",
    "client.registered-2",
    "compact.after_base-2",
    "controller.after_repair-1",
    "flush.after_write-4",
    "checkpoint.written-2",
    "identity.after_directory-1",
    "install.moved-1",
    "journal.after_append-30",
    "log.after_reconcile-1",
    "log.before_save-30",
    "receive.after_chunk-1",
    "vote.before_promise-4",
)
ERRORS = ("install.switched-1-raise", "client.answered-1-stop")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(PLACE) as made:
        yield made


def test_every_failpoint_is_described() -> None:
    described = [line.split(maxsplit=1) for line in GOLDEN.read_text().splitlines()]
    assert [name for name, _ in described] == sorted(found())
    assert len({text for _, text in described}) == len(described)


def test_every_area_has_its_failpoints() -> None:
    areas = Counter(name.partition(".")[0] for name in found())
    assert {area: areas[area] for area, least in LEAST.items() if areas[area] < least} == {}
    assert areas.total() >= 60
    assert set(RECOVERY) <= set(found())


def test_every_failpoint_comment_becomes_a_call_on_its_line() -> None:
    seen: list[str] = []
    for package in sorted(rewriting.OURS):
        for path in sorted((ROOT / package).rglob("*.py")):
            before = path.read_text(encoding="utf-8").splitlines()
            after = rewritten("", "\n".join(before)).splitlines()
            compile("\n".join(after), str(path), "exec")
            assert len(before) == len(after)
            for old, new in zip(before, after, strict=True):
                if "failpoint" in old:
                    assert new != old, f"{path}: this is no failpoint: {old}"
                    seen.append(old.split()[-1])
                else:
                    assert new == old
    assert sorted(seen) == sorted(found())


def test_a_name_that_is_used_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "a.py").write_text("# failpoint: log.twice\n# failpoint: log.twice\n")
    monkeypatch.setattr(failpoints, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"log\.twice"):
        found()


@pytest.mark.parametrize("which", KILLS)
def test_what_was_acknowledged_survives_a_kill_at(lab: Lab, which: str) -> None:
    trial = next(each for each in trials(list(found())) if str(each) == f"{which}-kill")
    ending = trial.orders[:-1]
    chain = lab.chain(which, *ending)
    assert chain.verdict.wrong == []
    assert [end.status for end in chain.ends] == [KILLED] * len(ending) + [RESTED]
    assert chain.verdict.ended[-1] == trial.name
    assert chain.verdict.acknowledged > 0


@pytest.mark.parametrize("which", ERRORS)
def test_an_error_that_one_seat_meets_or_a_pause_costs_nothing_at(lab: Lab, which: str) -> None:
    trial = next(each for each in trials(list(found())) if str(each) == which)
    order = replace(trial.orders[0], phases=trial.orders[0].phases[:1])
    chain = lab.chain(which, order)
    assert chain.verdict.wrong == []
    assert [end.status for end in chain.ends] == [SPARED, RESTED]
    assert chain.verdict.ended == [trial.name]
