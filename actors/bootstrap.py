"""From a running Ray cluster to serving groups, in the order `metadata`, `offset`, `mqtt`.

Every step may be repeated: a start that was interrupted is finished by the next one, and a start of
a cluster that already serves changes nothing.

Founding a group takes three rounds over all its seats (`seat.py`), because a replica that speaks
before every founder has written down the same configuration could be outvoted by a second founding.
A seat is activated only after *all* are prepared, so a seat that was activated once proves that the
rest were prepared: whoever is vacant beside it has lost its disk and must join as someone new.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors import calls, directories, placement, remote
from actors.config import ClusterConfig
from actors.duties.slots import Slots
from actors.seat_names import learner_seats, voter_seats
from actors.seat_spec import SeatSpec
from state_machines.errors import Conflict, Invalid, NoQuorum, Stopped
from state_machines.raft.messages import Configuration

SEAT_SECONDS = 60.0  #: until every seat of a new group has answered once
ABSENT_SECONDS = 10.0  #: after this long a founded group starts without those that do not answer
LEADER_SECONDS = 60.0  #: until a group has a leader
POLL_SECONDS = 0.05  #: between two looks at something only polling can see
CALL_SECONDS = 10.0  #: our own deadline for one round of calls
LOOK_SECONDS = 2.0  #: the same for one look at something only polling can see

log = logging.getLogger(__name__)


def specs(config: ClusterConfig) -> list[SeatSpec]:
    """The voters' seats of every group, groups in starting order (`learners.py` has the others)."""
    found = []
    for group in config.groups:
        voters, learners = seats_of(config, group)
        seats = voters + learners
        found += [SeatSpec(group, seat, seats, config.raft, config.groups) for seat in voters]
    return found


def seats_of(config: ClusterConfig, group: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a group's seats: the voters', the learners'."""
    return voter_seats(group, config.replicas), learner_seats(group, config.learners)


def start_group(config: ClusterConfig, group: str, cluster: str) -> str:
    """Place, seat and found one group, and wait for its leader. Returns the cluster id.

    `cluster` is empty for "whatever the directories say, a new one if they say nothing".
    """
    seats = [spec for spec in specs(config) if spec.group == group]
    homes: tuple[str, ...] = ()
    if group not in placement.states():
        placement.remove([group])  # actors whose places were taken away hang and keep their names
        homes = directories.homes(_ask_nodes(group)[0])
    reserved = placement.ensure_group(config, group, homes=homes)
    living = calls.named_actors()
    for number, spec in enumerate(seats):
        if spec.seat not in living:
            remote.create_seat(spec, reserved, number, placement.BUNDLE_CPUS)
    names = [spec.seat for spec in seats]
    hellos = wait_for_seats(names)
    try:
        check_seats(group, hellos, config.replicas)
        if any(each["status"] == "active" for each in hellos.values()):
            check_voters(group, voters_known(names), config)
        cluster = agree_on_cluster(hellos, cluster)
        found_group(group, hellos, cluster, lambda: _ask_nodes(group))
    except (Conflict, Invalid, Stopped) as error:
        places = _places(hellos)
        empty = all(each["status"] == "vacant" for each in hellos.values())
        if empty or living.isdisjoint(names):
            placement.remove([group])  # the next start places it anew; the directories stay
        raise type(error)(f"{error.detail} ({places})") from None
    # Each group's first candidate is another one, so that leaders spread over the nodes.
    wait_for_leader(names, candidate=names[config.groups.index(group) % len(names)])
    return cluster


def _ask_nodes(group: str) -> tuple[directories.Said, dict[str, str]]:
    """Which directories of a group the nodes have that may carry voters, and their names."""
    names = {node.id: node.name for node in placement.observe().nodes if node.meta > 0}
    return remote.ask_nodes(tuple(names), directories.lying_here, group), names


def wait_for_seats(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each seat says of itself, once all have answered. Raises Stopped naming who did not.

    A group that was founded serves with a majority, so there the absence of the others is only
    logged: a lost node or a broken disk does not keep a cluster from starting.
    """
    begun = time.monotonic()
    while True:
        answers = calls.each_call(names, "hello", seconds=CALL_SECONDS)
        well = {
            name: each
            for name, each in answers.items()
            if isinstance(each, dict) and not each["fault"]
        }
        if len(well) == len(names):
            return well
        waited = time.monotonic() - begun
        silent = [name for name, each in answers.items() if not isinstance(each, dict)]
        wrong = "; ".join(
            f"{name}: {each['fault'] if isinstance(each, dict) else each}"
            for name, each in sorted(answers.items())
            if name not in well
        )
        if _is_majority(well, names) and (not silent or waited > ABSENT_SECONDS):
            log.warning("starting without %s", wrong)
            return well
        if not silent:
            raise Stopped(wrong)
        if waited > SEAT_SECONDS:
            raise Stopped(f"no answer within {SEAT_SECONDS:.0f} s from {wrong}")
        time.sleep(POLL_SECONDS)


def _is_majority(well: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> bool:
    active = [name for name, each in well.items() if each["status"] == "active"]
    return len(active) > len(names) // 2


def _places(hellos: Mapping[str, Any]) -> str:
    """Which node each seat is on, for an error that sends somebody to a directory."""
    nodes = {node.id: node.name for node in placement.observe().nodes}
    where = calls.each_call(list(hellos), "node", seconds=CALL_SECONDS)
    return ", ".join(f"{name} is on {nodes.get(str(each), each)}" for name, each in where.items())


def check_seats(group: str, hellos: Mapping[str, Mapping[str, Any]], replicas: int) -> None:
    """Raise Invalid for fewer seats than a majority of those that founded the group: it could elect
    nobody, and the controller, which might help, would not come."""
    for each in hellos.values():
        founders = each["founding"].voters if each.get("founding") else ()
        if each["replica"] in founders and each["status"] == "active":
            if replicas <= len(founders) // 2:
                raise Invalid(
                    f"replicas is {replicas}, but {group} was founded with {len(founders)}, of "
                    "which a majority is needed: another number takes a backup and a restore into "
                    "new directories"
                )
            return


def voters_known(names: Sequence[str]) -> Sequence[int]:
    """The voters of a group by the newest configuration that a replica of it has; none if it is
    not known."""
    said = calls.each_call(names, "status", seconds=CALL_SECONDS).values()
    known = [each for each in said if isinstance(each, dict) and each.get("voters")]
    newest = max(known, key=lambda each: int(each["configuration_index"]), default={"voters": ()})
    voters: Sequence[int] = newest["voters"]
    return voters


def check_voters(group: str, voters: Sequence[int], config: ClusterConfig) -> None:
    """Say so if the controller is going to give the group another number of voters than it has.

    Raise Invalid for fewer seats than a majority of them, who may be others than have founded it,
    and Conflict for another number that nobody has chosen.
    """
    replicas, have = config.replicas, len(voters)
    if replicas <= have // 2:
        raise Invalid(
            f"replicas is {replicas}, but {group} has {have} voters, of which a majority is needed"
        )
    if voters and replicas != have and not config.replicas_chosen:
        raise Conflict(
            f"replicas: nobody said how many, {group} has {have} voters and would get {replicas}, "
            f"the default; say `--replicas {have}` to leave it so, `--replicas {replicas}` to have "
            "it changed"
        )
    if voters and replicas != have:
        log.warning("%s has %d voters, and gets %d: `replicas`", group, have, replicas)


def agree_on_cluster(hellos: Mapping[str, Mapping[str, Any]], cluster: str) -> str:
    """The one cluster that all directories belong to. Raises Conflict when there are two."""
    known: dict[str, list[str]] = {}
    for name, each in hellos.items():
        if each["cluster"]:
            known.setdefault(str(each["cluster"]), []).append(name)
    if cluster:
        known.setdefault(cluster, ["the group before"])
    if len(known) > 1:
        shown = ", ".join(f"{' and '.join(who)}: {each}" for each, who in sorted(known.items()))
        raise Conflict(
            f"data directories of different clusters: {shown}; start each cluster on its own data"
        )
    return next(iter(known), "") or uuid.uuid4().hex


def found_group(
    group: str,
    hellos: Mapping[str, Mapping[str, Any]],
    cluster: str,
    ask_nodes: Callable[[], tuple[directories.Said, Mapping[str, str]]],
) -> None:
    """Found the group unless it has been; finish a founding that was interrupted.

    `ask_nodes` tells what lies on the nodes, and their names. Raises what
    `directories.check_founding` does, with nothing founded.
    """
    names = list(hellos)
    active = [name for name in names if hellos[name]["status"] == "active"]
    if active:
        # Prepared together, so activated together; anyone else is the controller's to repair.
        founders = hellos[active[0]]["founding"].voters if hellos[active[0]]["founding"] else ()
        for name in names:
            if hellos[name]["status"] == "founding" and hellos[name]["replica"] in founders:
                _all([name], "activate")
        return
    directories.check_founding(
        group, *ask_nodes(), {int(hellos[name]["replica"]) for name in names}
    )
    ids = _all(names, "reserve", cluster)
    configuration = Configuration(voters=tuple(sorted(int(each) for each in ids.values())))
    _all(names, "found", configuration)
    _all(names, "activate")


def _all(names: Sequence[str], method: str, *args: Any) -> dict[str, Any]:
    answers = calls.each_call(names, method, *args, seconds=CALL_SECONDS)
    for name, each in answers.items():
        if isinstance(each, Exception):
            why = getattr(each, "cause", None) or each  # what Ray tells the story of
            raise Stopped(f"{name}: {method} failed: {why}") from each
    return answers


def wait_for_leader(
    names: Sequence[str], seconds: float = LEADER_SECONDS, *, candidate: str = ""
) -> dict[str, Any]:
    """The leader's status, once its no-op is committed and applied. Raises NoQuorum at the end.

    `candidate` is a seat to be asked to stand if there is no leader: a group that has just been
    started need not wait for an election timeout, and one candidate alone makes no tie.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        leader = calls.leader_among(names, LOOK_SECONDS)
        if leader is not None and leader["applied"] and leader["applied"] >= leader["commit"]:
            return leader
        if leader is None and candidate:
            calls.each_call([candidate], "campaign", seconds=LOOK_SECONDS)
            candidate = ""  # if it fails, the timeouts elect
        time.sleep(POLL_SECONDS)
    said = calls.each_call(names, "status", seconds=LOOK_SECONDS)
    roles = ", ".join(
        f"{name} is {each['role'] if isinstance(each, dict) else 'silent'}"
        for name, each in said.items()
    )
    group = names[0].rpartition("/")[0]
    raise NoQuorum(f"{group}: no leader within {seconds:.0f} s; {roles}")


def wait_for_controller(
    seats: Sequence[str], seconds: float = LEADER_SECONDS
) -> tuple[dict[str, Any], str]:
    """The controller's status, once it stands on the metadata leader's node, and where that sits.

    `seats`: of the first group of metadata. Whoever leads by then counts: the lead may move
    meanwhile, and the controller follows it.
    """
    deadline = time.monotonic() + seconds
    seat = "any leader"
    while time.monotonic() < deadline:
        leader = calls.leader_among(seats, LOOK_SECONDS)
        if leader is not None:
            seat = leader["seat"]
            controller = _controller_on(calls.each_call([seat], "node", seconds=LOOK_SECONDS)[seat])
            if controller is not None:
                return controller, seat
        time.sleep(POLL_SECONDS)
    raise NoQuorum(f"no controller beside {seat} within {seconds:.0f} s")


def wait_for_slots(seats: Sequence[str], seconds: float = LEADER_SECONDS) -> Sequence[str]:
    """Wait until the controller has given out the slots of kinds that have several groups, for what
    comes before that has its place in group 0. Returns which groups have none, and why.

    `seats`: as for `wait_for_controller`. Does not wait for a duty that is paused.
    """
    deadline = time.monotonic() + seconds
    asked_ms: dict[str, int] = {}  # when each controller was asked first, by its own clock
    while True:
        controller, _ = wait_for_controller(seats)
        asked = asked_ms.setdefault(controller["name"], controller["now_ms"])
        duty = controller["duties"][Slots.name]
        # One that began before may not have seen every group.
        begun_ms = duty["last_run_ms"] - duty["last_seconds"] * 1000
        if duty["paused"] or (begun_ms >= asked and not duty["last_error"]):
            said: Sequence[str] = duty["under_way"]
            return said
        if time.monotonic() > deadline:
            why = duty["last_error"] or "it has not been looked at"
            raise NoQuorum(f"slots: not given out within {seconds:.0f} s: {why}")
        time.sleep(POLL_SECONDS)


def _controller_on(node: Any) -> dict[str, Any] | None:
    """The status of the controller there that is in force, if one is."""
    names = [name for name in calls.named_actors() if name.startswith(remote.CONTROLLER_PREFIX)]
    for answer in calls.each_call(sorted(names), "status", seconds=LOOK_SECONDS).values():
        if isinstance(answer, dict) and not answer["fenced"] and answer["node"] == node:
            return answer
    return None
