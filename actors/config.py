"""How a cluster is to be: its groups, its replicas, its timing. Read from `cluster.yaml`.

`cluster.yaml` is Ray's launcher file; Ray leaves its key `metadata:` to us (`metadata.groups`,
`metadata.replicas`, `metadata.learners`, and a mapping for each of `SECTIONS`). Durations and sizes
there carry their unit (`250 ms`, `30 s`, `8 MiB`; a bare number is milliseconds, or bytes); here
the unit is in the name. Everything is checked when it is made: a wrong value is refused with its
name and its limit before anything has started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import yaml

import state_machines.intervals  # noqa: F401 - declares settings
from state_machines.errors import Invalid
from state_machines.raft.config import RaftConfig
from state_machines.settings import SETTINGS

KINDS: Final = ("metadata", "offset", "mqtt")  #: in the order in which they start
FIRST_GROUP: Final = "metadata-0"  #: holds the slot map and the nodes: nothing works without it
SECTIONS: Final = ("raft", "controller", "watch", "history")  #: of settings, under `metadata:`
GROUPS_MAX: Final = 64
REPLICAS_MAX: Final = 7  #: more make every write slower and no failure likelier to be survived
LEARNERS_MAX: Final = 3  #: each is sent every entry once more by its leader
FILE_BYTES_MAX: Final = 64 << 10  #: a launcher file is a few pages
DEPTH_MAX: Final = 32  #: of lists and mappings in it
KEYS_MAX: Final = 16_384  #: once what mappings merge (`<<`) is in each of them
BITS_MAX: Final = 1_000  #: of a number: more digits than anybody counts in
SLICE_US_MIN: Final = 100  #: the shortest that Linux gives
SHOWN_MAX: Final = 80  #: characters of a wrong value in what is said of it
PATH_MAX: Final = 4_096  #: characters of a path
SANE_HEARTBEATS: Final = 4  #: heartbeats that should fit into the shortest election timeout

_UNITS: Final = {
    "ms": {"": 1, "ms": 1, "s": 1_000, "min": 60_000},
    "bytes": {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
    "": {"": 1},
}
_MERGE: Final = "tag:yaml.org,2002:merge"
_QUANTITY = re.compile(r"(-?\d{1,300})\s*([A-Za-z]*)", re.ASCII)
_GROUP = re.compile(rf"({'|'.join(KINDS)})-(0|[1-9]\d{{0,3}})", re.ASCII)


def _setting(default: int, low: int, high: int, unit: str = "", section: str = "raft") -> int:
    """A whole number within limits. `section` is where `cluster.yaml` has it, under `metadata`."""
    limits = {"low": low, "high": high, "unit": unit, "section": section}
    value: int = field(default=default, metadata=limits)
    return value


def _live(name: str) -> int:
    """A setting of the controller that can be changed while it runs: here is what it begins with.

    Its limits and its default are declared where its values are checked (`state_machines`).
    """
    of = SETTINGS[name]
    return _setting(of.default, of.low, of.high, of.unit, "controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """How replicas and the controller pace themselves. The same for all groups of a cluster.

    What stands under `controller` can be changed while it runs (`metadata.config`).
    """

    heartbeat_interval_ms: int = _setting(250, 10, 60_000, "ms")
    """A leader says this often that it is there."""

    election_timeout_min_ms: int = _setting(1_500, 50, 600_000, "ms")
    """A follower that hears nothing for this long, and a random while more, asks for votes."""

    election_timeout_max_ms: int = _setting(3_000, 51, 1_200_000, "ms")
    """Up to here the random while may go; the wider, the fewer split votes."""

    tick_ms: int = _setting(50, 5, 1_000, "ms")
    """The core's unit of time: all of the above are rounded to it."""

    write_timeout_ms: int = _setting(30_000, 100, 600_000, "ms")
    """A write that is not applied by then is answered with an error."""

    slow_write_ms: int = _setting(1_000, 1, 600_000, "ms")
    """A write that takes longer is logged as a warning, with the time of each phase."""

    batch_linger_ms: int = _setting(0, 0, 1_000, "ms")
    """A leader waits this long for company before it makes an entry. 0: whatever has come while
    the entry before was being saved goes together, which sizes itself."""

    batch_max: int = _setting(1_000, 1, 10_000)
    """Calls that go into one entry at most, and operations for which none lingers any longer."""

    flush_interval_ms: int = _setting(5_000, 10, 60_000, "ms")
    """Applied rows reach the disk at least this often; until then the log has them."""

    flush_bytes: int = _setting(16 << 20, 64 << 10, 1 << 30, "bytes")
    """Applied rows reach the disk once they fill this much memory; sooner if they lie scattered
    over too many pages (`storage.state.FLUSH_PAGES`). Half as much more while the disk is slow."""

    flush_log_bytes: int = _setting(16 << 20, 64 << 10, 1 << 40, "bytes")
    """They do as well once the entries that made them have so much: a start carries these out
    again, and until then they are in memory."""

    journal_bytes: int = _setting(4 << 20, 4 << 10, 1 << 30, "bytes")
    """What was saved is carried from the journal into LMDB once it has reached this size."""

    hot_bytes: int = _setting(20 << 20, 0, 1 << 40, "bytes")
    """Rows on the disk that were read or written lately are kept in this much memory, of each
    replica, beside those of the last flush. 0: none are."""

    log_keep_entries: int = _setting(2_000, 1, 1_000_000)
    """Entries kept behind the last flush, so that a replica that was away needs no snapshot. They
    are kept in memory; at times there are twice as many."""

    log_keep_bytes: int = _setting(64 << 20, 64 << 10, 1 << 40, "bytes")
    """What these entries may take, an eighth more at times. Fewer are kept if they are large."""

    map_bytes: int = _setting(1 << 30, 1 << 20, 1 << 44, "bytes")
    """Address space an LMDB file starts with; it grows ahead of need."""

    metadata_nice: int = _setting(-10, -20, 19)
    """The nice value of the autogroups of metadata's voters (`autogroup`). 0: as all others."""

    metadata_slice_us: int = _setting(100, 0, 100_000)
    """How long a turn of metadata's voters at the processor is (`slices`; Linux takes 100 and more
    for what they are). 0: as all others'."""

    cpu_latency_us: int = _setting(0, -1, 10_000)
    """While a replica is busy, idle processors of its machine wake up within this many microseconds
    (`cpu_latency`). 0: they do not sleep. -1: as the machine likes."""

    heartbeat_timeout_ms: int = _live("heartbeat_timeout_ms")
    """A broker that has not been heard for this long is dead."""

    order_check_ms: int = _live("order_check_ms")
    """How often the controller reads what operators have told it: pauses and live settings."""

    heartbeat_check_ms: int = _live("heartbeat_check_ms")
    """How often the controller looks for dead brokers."""

    failover_check_ms: int = _live("failover_check_ms")
    """How often it looks for segments without a leader."""

    storage_check_ms: int = _live("storage_check_ms")
    """How often it removes shards and segments that were deleted."""

    timer_check_ms: int = _live("timer_check_ms")
    """How often the controller looks for due wills and expired sessions."""

    lease_check_ms: int = _live("lease_check_ms")
    """How often it looks for leases that have run out."""

    offset_check_ms: int = _live("offset_check_ms")
    """How often it looks for consumer groups that have been silent for too long."""

    connector_check_ms: int = _live("connector_check_ms")
    """How often it gives connectors to brokers, and takes them back."""

    session_check_ms: int = _live("session_check_ms")
    share_check_ms: int = _live("share_check_ms")
    """How often it looks after the groups of shared subscriptions."""

    quota_check_ms: int = _live("quota_check_ms")
    """How often it tells the groups what tenants may have."""

    tenant_check_ms: int = _live("tenant_check_ms")
    """How often it goes on with the deletion of tenants."""

    schedule_check_ms: int = _live("schedule_check_ms")
    """How often it submits reports that are due."""

    advice_check_ms: int = _live("advice_check_ms")
    """How often it looks after advice: lets it expire, and carries out what it may."""

    repair_check_ms: int = _live("repair_check_ms")
    """How often the controller looks for seats that have lost their disk."""

    history_ms: int = _setting(600_000, 100, 86_400_000, "ms", "watch")
    """A replica keeps what changed for this long, so that watches can be resumed."""

    history_changes: int = _setting(50_000, 1, 10_000_000, section="watch")
    """So many changes at most: the oldest go first."""

    history_bytes: int = _setting(16 << 20, 64 << 10, 1 << 34, "bytes", "watch")
    """What they may take of a replica's memory, about."""

    hold_ms: int = _setting(3_600_000, 1_000, 7 * 86_400_000, "ms", "history")
    """Compaction of the log waits for an exporter of the operation history that was heard within
    this time."""

    hold_bytes: int = _setting(256 << 20, 0, 1 << 40, "bytes", "history")
    """What may be kept for it beyond what is kept anyway, in the memory of each replica. If it is
    slower than that, the history has a gap and says so. A leader keeps as much for replicas that
    are sent its state, until they have caught up; one that is slower than that is sent it again."""

    rotate_ms: int = _setting(30_000, 100, 86_400_000, "ms", "history")
    """The exporter begins a new file this often, and a crash costs it that much work."""

    rotate_bytes: int = _setting(8 << 20, 64 << 10, 1 << 30, "bytes", "history")
    """Or once there are so many bytes of rows, for each group."""

    keep_ms: int = _setting(0, 0, 3_650 * 86_400_000, "ms", "history")
    """Files whose commands are all older than this are deleted. 0: none are."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, limits = getattr(self, each.name), each.metadata
            if type(value) is not int:
                raise Invalid(f"{each.name} must be a whole number, not {_shown(value)}")
            if not limits["low"] <= value <= limits["high"]:
                raise Invalid(
                    f"{each.name} must be between {limits['low']} and {limits['high']}, "
                    f"not {_shown(value)}"
                )
        if self.heartbeat_interval_ms < self.tick_ms:
            raise Invalid(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be at least tick_ms "
                f"({self.tick_ms})"
            )
        for name, other in (
            ("election_timeout_min_ms", "heartbeat_interval_ms"),
            ("election_timeout_max_ms", "election_timeout_min_ms"),
            ("write_timeout_ms", "batch_linger_ms"),
        ):
            above, below = getattr(self, name), getattr(self, other)
            if above <= below:
                raise Invalid(f"{name} ({above}) must be more than {other} ({below})")

        if 0 < self.metadata_slice_us < SLICE_US_MIN:
            raise Invalid(
                f"metadata_slice_us must be 0, or {SLICE_US_MIN} and more, "
                f"not {self.metadata_slice_us}"
            )

    def of_replica(self) -> dict[str, int]:
        """What replicas go by. The controller's are not among them: others may be in force."""
        names = [each.name for each in fields(self) if each.metadata["section"] != "controller"]
        return {name: getattr(self, name) for name in names}

    def core(self) -> RaftConfig:
        """The same in ticks. Elections are rounded up and heartbeats down: never more nervous."""
        shortest = -(-self.election_timeout_min_ms // self.tick_ms)
        longest = -(-self.election_timeout_max_ms // self.tick_ms)
        return RaftConfig(
            heartbeat_ticks=self.heartbeat_interval_ms // self.tick_ms,
            election_ticks_min=shortest,
            election_ticks_max=max(longest, shortest + 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What `metaray up` is to bring about."""

    groups: tuple[str, ...] = ("metadata-0", "offset-0", "mqtt-0")
    """Kept in starting order, whatever order they were given in: metadata, offset, mqtt."""

    replicas: int = 3
    """Members of each group: 3 survive the loss of one node, 5 of two."""
    replicas_chosen: bool = field(default=True, compare=False)  #: else groups keep what they have

    learners: int = 0
    """Replicas of each group that never vote, for analytics: on nodes of their own, which offer the
    resource `analytics`. Their loss costs no write."""

    allow_colocated: bool = False
    """Let replicas of one group share a node when there are fewer nodes than replicas, and learners
    stand on the voters' nodes where none are kept for them."""

    history_path: str = ""
    """Where the operation history is exported to, by an actor that is made at the start. A path on
    the node that it runs on, better on storage that all nodes share; empty: nowhere."""

    raft: RaftSettings = RaftSettings()

    def __post_init__(self) -> None:
        if type(self.replicas) is not int or not 1 <= self.replicas <= REPLICAS_MAX:
            raise Invalid(
                f"replicas must be between 1 and {REPLICAS_MAX}, not {_shown(self.replicas)}"
            )
        if type(self.learners) is not int or not 0 <= self.learners <= LEARNERS_MAX:
            raise Invalid(
                f"learners must be between 0 and {LEARNERS_MAX}, not {_shown(self.learners)}"
            )
        if type(self.allow_colocated) is not bool:
            raise Invalid(
                f"allow_colocated must be true or false, not {_shown(self.allow_colocated)}"
            )
        path = self.history_path
        if not isinstance(path, str) or len(path) > PATH_MAX or "\0" in path:
            raise Invalid(f"history.path must be text of at most {PATH_MAX} characters")
        if path and not path.startswith("/"):
            raise Invalid(f"history.path must begin with /, {_shown(path)} does not")
        if not 1 <= len(self.groups) <= GROUPS_MAX:
            raise Invalid(f"groups must be 1 to {GROUPS_MAX} names, not {len(self.groups)}")
        for group in self.groups:
            if not isinstance(group, str) or not _GROUP.fullmatch(group):
                raise Invalid(
                    f"groups: {_shown(group)} is none of {', '.join(f'{k}-N' for k in KINDS)}"
                )
        numbers = sorted(_order(group) for group in self.groups)
        if numbers[0] != (0, 0):
            raise Invalid(f"groups must contain {FIRST_GROUP}, which holds the slot map")
        for (kind, number), (kind_before, before) in zip(numbers[1:], numbers, strict=False):
            if number != (before + 1 if kind == kind_before else 0):
                raise Invalid(
                    f"groups: {KINDS[kind]}-{number} is there twice or out of sequence; the groups "
                    "of a kind are numbered 0, 1, 2 …"
                )
        object.__setattr__(self, "groups", tuple(sorted(self.groups, key=_order)))

    @classmethod
    def load(cls, path: Path) -> ClusterConfig:
        """Read `metadata:` of a launcher file. What it does not say keeps its default."""
        try:
            content = _content(path)
        except OSError as error:
            raise Invalid(f"{path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise Invalid(f"{path} is not UTF-8: {error.reason}") from error
        if not isinstance(content, dict):
            raise Invalid(f"{path} must hold keys and values, as a Ray launcher file does")
        try:
            return cls.parse(content.get("metadata", {}))
        except Invalid as error:
            raise Invalid(f"{path}: {error.detail}") from error

    @classmethod
    def parse(cls, metadata: object) -> ClusterConfig:
        """Read the value of `metadata:`."""
        plain = ("replicas", "learners", "allow_colocated")
        sections = _mapping(metadata, "metadata", {"groups", *plain})
        given: dict[str, Any] = {name: sections[name] for name in plain if name in sections}
        if "groups" in sections:
            if not isinstance(sections["groups"], list):
                raise Invalid("metadata.groups must be a list of names")
            given["groups"] = tuple(sections["groups"])
        settings: dict[str, int] = {}
        for section in SECTIONS:
            known = {_key(each): each for each in fields(RaftSettings) if _in(each, section)}
            more = {"path"} if section == "history" else set()
            values = _mapping(sections.get(section, {}), f"metadata.{section}", more.union(known))
            for key, value in values.items():
                if key in more:
                    given[f"{section}_{key}"] = value
                    continue
                settings[known[key].name] = _quantity(
                    value, f"metadata.{section}.{key}", known[key]
                )
        return cls(**given, raft=RaftSettings(**settings))

    def warnings(self) -> tuple[str, ...]:
        """What is allowed, and unwise."""
        found = []
        heartbeat, shortest = self.raft.heartbeat_interval_ms, self.raft.election_timeout_min_ms
        if shortest < SANE_HEARTBEATS * heartbeat:
            found.append(
                f"election_timeout_min ({shortest} ms) is less than {SANE_HEARTBEATS} times "
                f"heartbeat_interval ({heartbeat} ms): one late heartbeat can cost an election. "
                "Failover is fast without it, because a dead leader's connection says so."
            )
        if self.replicas % 2 == 0:
            found.append(
                f"replicas ({self.replicas}) is even: a group survives no more failures with "
                f"{self.replicas} replicas than with {self.replicas - 1}, and needs one more vote"
            )
        if self.replicas == 1:
            found.append("replicas is 1: no failure is survived, and a lost disk loses the data")
        if self.allow_colocated:
            found.append("allow_colocated is on: the loss of one node can stop a group")
        if self.allow_colocated and self.learners:
            found.append(
                "learners may stand on the nodes of voters, because allow_colocated is on: a scan "
                "there takes from the processor and the disk that writes need"
            )
        return tuple(found)


def _content(path: Path) -> object:
    """What a YAML file of a reasonable size and depth holds."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise Invalid(f"{path} is larger than {FILE_BYTES_MAX} bytes, the limit")
    text, depth = data.decode(), 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                raise Invalid(f"{path} is nested deeper than {DEPTH_MAX}, the limit")
        _check_keys(path, text)
        return yaml.safe_load(text)
    except Invalid:
        raise
    except Exception as error:  # a date in month 99 is a ValueError there, and so on
        words = " ".join(str(error).split())
        raise Invalid(f"{path} is not YAML: {_shown(words, 300)}") from error


def _check_keys(path: Path, text: str) -> None:
    """Raise Invalid for a key that a mapping has twice, YAML would silently take the last; and for
    more than `KEYS_MAX` keys: each merge copies all that it names, with what that has merged."""
    nodes, seen = [yaml.compose(text, Loader=yaml.SafeLoader)], set()
    sizes: dict[int, int] = {}
    count = 0
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))  # an alias is the same node again, perhaps within itself
        if not isinstance(node, yaml.MappingNode):
            nodes += reversed(node.value)
            continue
        nodes += [each for pair in reversed(node.value) for each in pair]
        count += _merged_size(node, sizes)
        if count > KEYS_MAX:
            raise Invalid(f"{path} has more than {KEYS_MAX} keys, the limit, once it is merged")
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in keys:
                line = key.start_mark.line + 1
                raise Invalid(f"{path}, line {line}: the key {_shown(key.value)} is there twice")
            keys.add((key.tag, key.value))


def _merged_size(node: yaml.MappingNode, sizes: dict[int, int]) -> int:
    """Keys of a mapping once it has merged what it names. `sizes`: those that are known, of all
    that stand before it, so that this goes no deeper than the file does."""
    size = sizes.get(id(node))
    if size is None:
        size = sizes[id(node)] = len(node.value)  # for who merges itself
        for key, value in node.value:
            if key.tag == _MERGE:
                named = value.value if isinstance(value, yaml.SequenceNode) else [value]
                maps = [each for each in named if isinstance(each, yaml.MappingNode)]
                size += sum([_merged_size(each, sizes) for each in maps]) - 1
        size = sizes[id(node)] = min(size, KEYS_MAX + 1)
    return size


def _shown(value: object, characters: int = SHOWN_MAX) -> str:
    """A wrong value in a refusal: in one line, and never more than a line."""
    if isinstance(value, str):
        return repr(value) if len(value) <= characters else f"{value[:characters]!r} …"
    if isinstance(value, int) and value.bit_length() > SHOWN_MAX:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"a {type(value).__name__}"


def _order(group: str) -> tuple[int, int]:
    kind, _, number = group.rpartition("-")
    return KINDS.index(kind), int(number)


def _in(setting: Field[Any], section: str) -> bool:
    return bool(setting.metadata["section"] == section)


def _key(setting: Field[Any]) -> str:
    """The name in `cluster.yaml`, where the unit stands beside the value instead."""
    return setting.name.removesuffix("_ms")


def _mapping(value: object, where: str, known: set[str]) -> Mapping[str, Any]:
    if where == "metadata":
        known = known.union(SECTIONS)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Invalid(f"{where} must hold keys and values, not {_shown(value)}")
    for key in value:
        if key not in known:
            name = key if isinstance(key, str) and key.isidentifier() else _shown(key)
            raise Invalid(f"{where}.{name} is not a setting; there are {', '.join(sorted(known))}")
    return value


def _quantity(value: object, where: str, setting: Field[Any]) -> int:
    """A whole number with its unit, in the base unit."""
    units = _UNITS[setting.metadata["unit"]]
    text = ""
    if isinstance(value, str) or (type(value) is int and value.bit_length() < BITS_MAX):
        text = str(value).strip()
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise Invalid(
            f"{where} must be a whole number{f' with {known}' * bool(known)}, not {_shown(value)}"
        )
    return int(match[1]) * units[match[2]]
