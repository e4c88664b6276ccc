"""Which controllers a metadata group's seats make and end, as their leads come and go."""

from __future__ import annotations

import pytest

from actors import autogroup, remote
from actors.config import RaftSettings
from actors.ray_env import DATA_VARIABLE
from actors.remote import ControllerKeeper, SeatActor
from actors.seat_names import group_of
from actors.seat_spec import SeatSpec
from tests.actors.wires import eventually, in_loop


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The term of each look of a keeper that is over."""
    terms: list[int] = []
    settle = ControllerKeeper._settle

    def counted(keeper: ControllerKeeper, term: int, led: int) -> None:
        settle(keeper, term, led)
        terms.append(term)

    monkeypatch.setattr(ControllerKeeper, "_settle", counted)
    return terms


@pytest.fixture
def controllers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of those that there are, all on one node. Ray's part is played by a set."""
    names: set[str] = set()
    monkeypatch.setattr(remote, "named_actors", lambda: {*names, "metadata-0/0", "cache-1f"})
    monkeypatch.setattr(remote, "kill", names.remove)
    monkeypatch.setattr(remote, "answers", lambda name, seconds: True)
    monkeypatch.setattr(
        remote, "create_controller", lambda term, _: names.add(f"controller-{term}")
    )
    return names


def keeper(number: int) -> ControllerKeeper:
    seats = ("metadata-0/0", "metadata-0/1")
    return ControllerKeeper(SeatSpec("metadata-0", seats[number], seats, RaftSettings()))


async def end(keeper: ControllerKeeper) -> None:
    """It leads no more, and has done what it does then."""
    keeper.leadership(0)
    assert keeper._task is not None
    await keeper._task


@in_loop
async def test_who_led_before_leaves_a_successor_on_its_own_node_its_controller(
    controllers: set[str],
) -> None:
    first, second = keeper(0), keeper(1)
    first.leadership(1)
    await eventually(lambda: controllers == {"controller-1"})
    second.leadership(2)
    await eventually(lambda: controllers == {"controller-2"})
    await end(first)
    assert controllers == {"controller-2"}
    await end(second)
    assert controllers == set()


@in_loop
async def test_a_controller_that_is_gone_is_made_again_while_the_lead_lasts(
    controllers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "KEEPER_SECONDS", 0.01)
    leads = keeper(0)
    leads.leadership(3)
    await eventually(lambda: controllers == {"controller-3"})
    controllers.clear()
    await eventually(lambda: controllers == {"controller-3"})
    await end(leads)
    assert controllers == set()


@in_loop
async def test_a_controller_of_the_term_in_force_is_left_alone(
    controllers: set[str], looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often its keeper looks."""
    monkeypatch.setattr(remote, "KEEPER_SECONDS", 0.001)
    killed: list[str] = []
    end_it = remote.kill

    def kill(name: str) -> None:
        killed.append(name)
        end_it(name)

    monkeypatch.setattr(remote, "kill", kill)
    leads = keeper(0)
    leads.leadership(3)
    await eventually(lambda: len(looks) > 5)
    assert (killed, controllers) == ([], {"controller-3"})
    await end(leads)
    assert killed == ["controller-3"]


@in_loop
async def test_a_keeper_looks_again_when_it_is_told_or_after_its_time_and_not_before(
    controllers: set[str], looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "KEEPER_SECONDS", 1_000.0)
    leads = keeper(0)
    leads.leadership(3)
    await eventually(lambda: controllers == {"controller-3"})
    leads.leadership(4)
    await eventually(lambda: controllers == {"controller-4"})
    await end(leads)
    assert (controllers, looks) == (set(), [3, 4, 0])


@in_loop
async def test_a_controller_that_could_not_be_made_is_made_soon(
    controllers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "KEEPER_SECONDS", 1_000.0)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.01)
    create, faults = remote.create_controller, [OSError("no answer")]

    def once(term: int, spec: SeatSpec) -> None:
        if faults:
            raise faults.pop()
        create(term, spec)

    monkeypatch.setattr(remote, "create_controller", once)
    leads = keeper(0)
    leads.leadership(3)
    await eventually(lambda: controllers == {"controller-3"})
    await end(leads)


def looking(monkeypatch: pytest.MonkeyPatch, said: list[bool], begun: int) -> list[int]:
    """Whether the controller answers at each look, from the second on: the first one makes it.
    From the `begun`th on it has begun, by Ray's word. Returns when it was started again."""
    told = iter(said)
    asked, again = [0], list[int]()

    def start_again_if_up(name: str) -> bool:
        if asked[0] >= begun:
            again.append(asked[0])
        return asked[0] >= begun

    def answers(name: str, seconds: float) -> bool:
        assert name == "controller-3"
        asked[0] += 1
        return next(told, True)

    monkeypatch.setattr(remote, "KEEPER_SECONDS", 0.001)
    monkeypatch.setattr(remote, "answers", answers)
    monkeypatch.setattr(remote, "start_again_if_up", start_again_if_up)
    return again


@in_loop
@pytest.mark.parametrize(
    ("said", "begun", "at"),
    [
        ([True, False, False, False, True], 0, [4]),
        ([True, False, False, True, False, False, True], 0, []),
        ([False] * 9 + [True], 10, []),
        ([False] * 9 + [True], 5, [6, 9]),
        ([False, False, True, False, False, False], 0, [6]),
    ],
    ids=["it hangs", "it is slow", "it begins", "it begins, and hangs", "it is slow, and hangs"],
)
async def test_a_controller_that_hangs_is_started_again(
    said: list[bool],
    begun: int,
    at: list[int],
    controllers: set[str],
    looks: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again = looking(monkeypatch, said, begun)
    leads = keeper(0)
    leads.leadership(3)
    await eventually(lambda: len(looks) > len(said) + 3)
    await end(leads)
    assert again == at


@in_loop
async def test_that_a_controller_before_was_silent_says_nothing_of_the_next(
    controllers: set[str], looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "KEEPER_SECONDS", 0.001)
    silent = {f"controller-{term}": remote.SILENT_LOOKS - 1 for term in (3, 4)}
    again: list[str] = []

    def answers(name: str, seconds: float) -> bool:
        silent[name] -= 1
        if name == "controller-3" and not silent[name]:
            leads.leadership(4)
        return silent[name] < 0

    monkeypatch.setattr(remote, "answers", answers)
    monkeypatch.setattr(remote, "start_again_if_up", again.append)
    leads = keeper(0)
    leads.leadership(3)
    await eventually(lambda: looks.count(4) > remote.SILENT_LOOKS + 3)
    await end(leads)
    assert again == []


@in_loop
async def test_only_voters_of_the_first_group_keep_a_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Terms of other groups say nothing about which controller is the newer one."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(autogroup, "begin", lambda nice: None)
    keep = []
    for seat in ("metadata-0/0", "metadata-0/learner-0", "metadata-1/0", "offset-0/0"):
        actor = SeatActor.__new__(SeatActor)
        spec = SeatSpec(group_of(seat), seat, (seat,), RaftSettings(metadata_slice_us=0))
        await actor.__init__(spec)  # type: ignore[misc]
        if actor._keeper is not None:
            keep.append(seat)
    assert keep == ["metadata-0/0"]
