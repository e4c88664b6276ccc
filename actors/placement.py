"""Where replicas may stand: one placement group for each Raft group.

Ray reserves a *bundle* (a share of a node) for every replica, on different nodes: `STRICT_SPREAD`.
A placement group only reserves. When a node dies Ray moves its bundle to a spare node, where the
disk is empty; who a replica is, its directory says, never its place (law 1).

Decide: `plan` and `plan_removal` are pure, from what is wanted and what was observed to actions.
Act: `observe`, `act`, and the loops that wait for Ray, each with its deadline. Too few nodes are
refused in the plan, because Ray itself would leave the group pending for ever and say nothing.

Where directories of a group lie, there it goes: while Ray chooses, the nodes that it shall not
choose are held, which is over once it has chosen, so that a bundle can move to any of them later.

A learner has a placement group to itself, named as its seat, so that one can come or go while the
others stay. It stands on a node with the resource `analytics`, one of each Raft group to a node.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from actors.config import FIRST_GROUP, KINDS, ClusterConfig
from actors.ray_env import ANALYTICS, META, NAMESPACE
from actors.seat_names import group_of, is_learner
from state_machines.errors import Invalid, Unavailable

BUNDLE_META: Final = 0.01  #: of its node's resource for each replica: a hundred at most
NODE_ID_LABEL: Final = "ray.io/node-id"  #: every node has it
BUNDLE_CPUS: Final = 0.1  #: logical; Spark asks for whole ones, so most of a node stays free
PLACE_SECONDS: Final = 60.0  #: until Ray has found a place for every bundle
REMOVE_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05

READY: Final = "CREATED"  #: Ray's word for: every bundle has its node
GONE: Final = "REMOVED"
ALARMING: Final = frozenset({"PENDING", "RESCHEDULING"})  #: a bundle has no node


class NotEnoughNodes(Unavailable):
    """A group wants more replicas than there are nodes to carry them."""

    code = "NOT_ENOUGH_NODES"


class NotPlaced(Unavailable):
    """Ray found no place for a group within the deadline."""

    code = "NOT_PLACED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A living Ray node."""

    id: str
    name: str
    meta: float  #: how much of the resource `meta` it has in all
    meta_free: float  #: what no placement group has reserved of it
    cpus_free: float
    analytics: float = 0.0  #: how much of the resource `analytics` it has in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A placement group, in Ray's words: of a Raft group's voters, or of one learner's seat."""

    group: str
    state: str
    bundles: int
    nodes: tuple[str, ...] = ()  #: node ids by bundle index; empty text where a bundle has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What Ray says there is."""

    nodes: tuple[Node, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    actors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """Have so much of the resource `meta` of a node, all that is free, while Ray chooses."""

    node: str
    meta: float


@dataclass(frozen=True, slots=True)
class Reserve:
    """Make the placement group of a Raft group, or of a learner's seat."""

    group: str
    replicas: int
    strategy: str
    resource: str = META
    avoid: tuple[str, ...] = ()  #: ids of nodes where it shall not stand
    holds: tuple[Hold, ...] = ()  #: of nodes where it shall not stand at first

    @property
    def bundles(self) -> list[dict[str, float]]:
        """One for each replica, by its number."""
        return [{"CPU": BUNDLE_CPUS, self.resource: BUNDLE_META}] * self.replicas


@dataclass(frozen=True, slots=True)
class KillActor:
    """End an actor for good."""

    name: str


@dataclass(frozen=True, slots=True)
class Release:
    """Give the places of a group back."""

    group: str


Action = Reserve | KillActor | Release


# -- decide ---------------------------------------------------------------------------------


def plan(
    config: ClusterConfig, groups: Sequence[str], observed: Observed, homes: Sequence[str] = ()
) -> tuple[Action, ...]:
    """What is missing for these groups to have their places. Nothing, if they have them.

    `homes`: ids of the nodes that have directories of theirs, the best first (`directories.py`).
    Raises NotEnoughNodes, or Invalid where a group exists with another number of replicas.
    """
    reserved = {each.group: each for each in observed.reservations if each.state != GONE}
    able = [node for node in observed.nodes if node.meta > 0]
    actions: list[Action] = []
    for group in groups:
        if group in reserved:
            if reserved[group].bundles != config.replicas:
                raise Invalid(
                    f"replicas is {config.replicas}, but {group} was placed with "
                    f"{reserved[group].bundles}; its number of seats is fixed when it is founded"
                )
            continue
        if not able or (len(able) < config.replicas and not config.allow_colocated):
            raise NotEnoughNodes(
                f"{group} wants {config.replicas} replicas on as many nodes, and "
                f"{len(able)} of {len(observed.nodes)} nodes offer the resource `{META}`. Add "
                f"nodes (`ray start … --resources='{{\"{META}\": 1}}'`), lower `replicas`, or let "
                "replicas share a node with `--allow-colocated`"
            )
        strategy = "STRICT_SPREAD" if len(able) >= config.replicas else "SPREAD"
        holds = _holds(able, homes, config.replicas)
        actions.append(Reserve(group, config.replicas, strategy, holds=holds))
    return tuple(actions)


def _holds(able: Sequence[Node], homes: Sequence[str], replicas: int) -> tuple[Hold, ...]:
    """Leave Ray the homes to choose, and for what they are too few the nodes with most room."""
    rank = {node: place for place, node in enumerate(homes)}
    if not any(node.id in rank for node in able):
        return ()
    preferred = sorted(able, key=lambda node: (rank.get(node.id, len(rank)), -node.cpus_free))
    return tuple(
        Hold(node.id, node.meta_free)
        for node in preferred[replicas:]
        if node.meta_free >= BUNDLE_META
    )


def check_learners(config: ClusterConfig, observed: Observed) -> None:
    """Raise NotEnoughNodes if the learners that are wanted would find no place."""
    if config.learners:
        _learners_nodes(config, observed)


def plan_learner(config: ClusterConfig, seat: str, observed: Observed) -> tuple[Action, ...]:
    """What is missing for a learner's seat to have its place: on a node of its own kind, where no
    other learner of its group stands. Raises NotEnoughNodes."""
    reserved = {each.group: each for each in observed.reservations if each.state != GONE}
    if seat in reserved:
        return ()
    resource, able = _learners_nodes(config, observed)
    beside = {
        node
        for each in reserved.values()
        if is_learner(each.group) and group_of(each.group) == group_of(seat)
        for node in each.nodes
    }
    taken = tuple(sorted(node.id for node in able if node.id in beside))
    if len(taken) == len(able):
        if not config.allow_colocated:
            raise NotEnoughNodes(
                f"{seat} wants a node of its own, and on each of the {len(able)} nodes that offer "
                f"the resource `{resource}` stands another learner of {group_of(seat)}; let them "
                "share a node with `--allow-colocated`"
            )
        taken = ()
    return (Reserve(seat, 1, "PACK", resource, taken),)


def _learners_nodes(config: ClusterConfig, observed: Observed) -> tuple[str, list[Node]]:
    """The resource whose nodes carry the learners, and these nodes."""
    able = [node for node in observed.nodes if node.analytics > 0]
    if len(able) >= config.learners or (able and config.allow_colocated):
        return ANALYTICS, able
    voting = [node for node in observed.nodes if node.meta > 0]
    if voting and config.allow_colocated:
        return META, voting
    raise NotEnoughNodes(
        f"learners is {config.learners}, each of a group on a node of its own, and {len(able)} of "
        f"{len(observed.nodes)} nodes offer the resource `{ANALYTICS}`. Add nodes "
        f"(`ray start … --resources='{{\"{ANALYTICS}\": 1}}'`; a local cluster has them with "
        "`metaray up --local N --learners M`, if it is started so and N is large enough), lower "
        "`learners`, or let learners share nodes, with voters if need be, with `--allow-colocated`"
    )


def plan_removal(groups: Sequence[str], observed: Observed) -> tuple[Action, ...]:
    """End the seats of these groups, then controllers and caches, then give the places back.

    In this order: an actor whose placement group went first hangs in RESTARTING for ever and keeps
    its name; a controller is made again by a metadata leader that still lives.
    """
    seats = [name for name in sorted(observed.actors) if group_of(name) in groups]
    others = [
        name
        for name in sorted(observed.actors)
        if FIRST_GROUP in groups and name.startswith(("controller-", "cache-"))
    ]
    reserved = [
        each.group
        for each in observed.reservations
        if (each.group in groups or group_of(each.group) in groups) and each.state != GONE
    ]
    return (*map(KillActor, [*seats, *others]), *map(Release, reserved))


def plan_learner_removal(seat: str, observed: Observed) -> tuple[Action, ...]:
    """End the actor of a learner's seat, then give its place back."""
    if seat in observed.actors:
        return (KillActor(seat),)
    reserved = [each for each in observed.reservations if each.group == seat and each.state != GONE]
    return tuple(Release(each.group) for each in reserved)


def alarms(observed: Observed) -> tuple[str, ...]:
    """Groups that lack a place for a replica, in words."""
    return tuple(
        f"{each.group}: placement {each.state}, no node for "
        + (
            "this learner"
            if is_learner(each.group)
            else "replica "
            + ", ".join(str(number) for number, node in enumerate(each.nodes) if not node)
        )
        for each in observed.reservations
        if each.state in ALARMING
    )


# -- act ------------------------------------------------------------------------------------


def observe() -> Observed:
    """Ask Ray. Needs a connected process."""
    free = ray.state.available_resources_per_node()
    table = placement_group_table()
    taken = _taken(table)
    nodes = tuple(
        Node(
            id=node["NodeID"],
            name=node.get("NodeName", ""),
            meta=float(node["Resources"].get(META, 0)),
            # Not as Ray says: it is late by what it was told last, and a hold needs all that is.
            meta_free=round(node["Resources"].get(META, 0) - taken.get(node["NodeID"], 0), 4),
            cpus_free=float(free.get(node["NodeID"], {}).get("CPU", 0)),
            analytics=float(node["Resources"].get(ANALYTICS, 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    )
    named = ray.util.list_named_actors(all_namespaces=True)
    actors = tuple(sorted(each["name"] for each in named if each["namespace"] == NAMESPACE))
    return Observed(nodes=nodes, reservations=_reservations(table), actors=actors)


def states() -> dict[str, str]:
    """Ray's word for the placement of each group that has one."""
    return {each.group: each.state for each in _reservations(placement_group_table())}


def ensure_group(
    config: ClusterConfig,
    group: str,
    seconds: float = PLACE_SECONDS,
    *,
    homes: Sequence[str] = (),
) -> PlacementGroup:
    """The placement group of a Raft group, made if there is none, with a node for every bundle: on
    its `homes` first (`plan`).

    A group that serves with one node lost (RESCHEDULING) is given back as it is. Raises
    NotEnoughNodes, or NotPlaced after `seconds`, in which case nothing that was made is left.
    """
    return _placed(group, plan(config, [group], observe(), homes), config.replicas, seconds)


def ensure_learner(
    config: ClusterConfig, seat: str, seconds: float = PLACE_SECONDS
) -> PlacementGroup:
    """The same for a learner's seat."""
    return _placed(seat, plan_learner(config, seat, observe()), 1, seconds)


def _placed(group: str, actions: Sequence[Action], bundles: int, seconds: float) -> PlacementGroup:
    """Act, and wait until every bundle has its node."""
    deadline = time.monotonic() + seconds
    holds = [hold for each in actions if isinstance(each, Reserve) for hold in each.holds]
    with _held(holds, deadline) as held:
        act(actions if held else [])
        while held:
            found = {each.group: each for each in _reservations(placement_group_table())}.get(group)
            if found is not None and (found.state == READY or (not actions and any(found.nodes))):
                return get_placement_group(group)
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        act([Release(group)] if actions else [])
    free = ", ".join(
        f"{node.name or node.id[:8]} {node.cpus_free:g} CPUs and {node.meta_free:g} {META}"
        for node in observe().nodes
    )
    resource = ANALYTICS if is_learner(group) else META
    raise NotPlaced(
        f"{group}: Ray found no place within {seconds:.0f} s for {bundles} bundles of "
        f"{BUNDLE_CPUS:g} CPUs and {BUNDLE_META:g} {resource}; free: {free}"
    )


@contextlib.contextmanager
def _held(holds: Sequence[Hold], deadline: float) -> Iterator[bool]:
    """Whether all of this could be had, until it is given back here, or by this process's end."""
    made: list[PlacementGroup] = []
    try:
        for each in holds:
            there = [{NODE_ID_LABEL: each.node}]
            made.append(placement_group([{META: each.meta}], bundle_label_selector=there))
        yield all(each.wait(max(1, int(deadline - time.monotonic()))) for each in made)
    finally:
        for each in made:
            remove_placement_group(each)


def remove(groups: Sequence[str], seconds: float = REMOVE_SECONDS) -> None:
    """Take these groups off the cluster; their directories stay. Raises NotPlaced at the end."""
    _gone(lambda: plan_removal(groups, observe()), seconds)


def remove_learner(seat: str, seconds: float = REMOVE_SECONDS) -> None:
    """Take a learner's seat off the cluster, as `remove` does a group."""
    _gone(lambda: plan_learner_removal(seat, observe()), seconds)


def _gone(left: Callable[[], tuple[Action, ...]], seconds: float) -> None:
    """Act until nothing is left to be done."""
    deadline = time.monotonic() + seconds
    while actions := left():
        if time.monotonic() > deadline:
            raise NotPlaced(f"not removed within {seconds:.0f} s: {actions}")
        actors = [each for each in actions if isinstance(each, KillActor)]
        act(actors or actions)  # places only once no actor is left in them
        time.sleep(POLL_SECONDS)


def act(actions: Iterable[Action]) -> None:
    """Carry out what was planned. Ray takes each in hand at once and finishes it later."""
    for action in actions:
        match action:
            case Reserve(group=group, strategy=strategy, avoid=avoid):
                elsewhere = {NODE_ID_LABEL: f"!in({','.join(avoid)})"}
                placement_group(
                    action.bundles,
                    strategy,
                    name=group,
                    lifetime="detached",
                    bundle_label_selector=[elsewhere] * len(action.bundles) if avoid else None,
                )
            case KillActor(name=name):
                _kill(name)
            case Release(group=group):
                _release(group)


def _kill(name: str) -> None:
    try:
        handle = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return  # ended by itself meanwhile
    ray.kill(handle, no_restart=True)


def _release(group: str) -> None:
    try:
        found = get_placement_group(group)
    except ValueError:
        return
    remove_placement_group(found)


def _taken(table: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """How much of the resource `meta` of each node placement groups have."""
    taken: dict[str, float] = {}
    for each in table.values():
        for number, node in each["bundles_to_node_id"].items():
            if each["state"] != GONE and node:
                meta = float(each["bundles"][number].get(META, 0))
                taken[node] = taken.get(node, 0.0) + meta
    return taken


def _reservations(table: Mapping[str, dict[str, Any]]) -> tuple[Reservation, ...]:
    found = []
    for each in table.values():
        learner = is_learner(each["name"])
        kind, _, number = (group_of(each["name"]) if learner else each["name"]).rpartition("-")
        if kind not in KINDS or not number.isdigit() or each["state"] == GONE:
            continue
        where = each["bundles_to_node_id"]
        found.append(
            Reservation(
                group=each["name"],
                state=each["state"],
                bundles=len(each["bundles"]),
                nodes=tuple(where.get(number) or "" for number in range(len(each["bundles"]))),
            )
        )
    return tuple(sorted(found, key=lambda each: each.group))
