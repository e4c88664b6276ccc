"""Settings: defaults, units, limits, and what is unwise."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from actors.config import KEYS_MAX, ClusterConfig, RaftSettings
from state_machines.errors import Invalid


def test_defaults_are_those_of_the_guide() -> None:
    config = ClusterConfig()
    assert config.groups == ("metadata-0", "offset-0", "mqtt-0")
    assert config.replicas == 3
    raft = config.raft
    assert (raft.heartbeat_interval_ms, raft.slow_write_ms) == (250, 1_000)
    assert (raft.election_timeout_min_ms, raft.election_timeout_max_ms) == (1_500, 3_000)
    assert (raft.write_timeout_ms, raft.heartbeat_timeout_ms) == (30_000, 30_000)
    assert (raft.heartbeat_check_ms, raft.batch_linger_ms, raft.batch_max) == (1_000, 0, 1_000)
    core = raft.core()
    assert (core.heartbeat_ticks, core.election_ticks_min, core.election_ticks_max) == (5, 30, 60)


def test_a_nervous_election_timeout_is_supported_and_warned_about() -> None:
    config = ClusterConfig.parse(
        {"raft": {"heartbeat_interval": "250 ms", "election_timeout_min": "299 ms"}}
    )
    core = config.raft.core()
    assert core.election_ticks_min == 6  # rounded up: 300 ms, never less than was asked for
    assert core.heartbeat_ticks == 5
    [warning] = config.warnings()
    assert "election_timeout_min (299 ms)" in warning
    assert "4 times" in warning


@pytest.mark.parametrize("shortest", range(51, 400, 7))
def test_every_valid_timing_is_valid_in_ticks(shortest: int) -> None:
    for heartbeat in range(50, shortest, 13):
        settings = RaftSettings(
            heartbeat_interval_ms=heartbeat,
            election_timeout_min_ms=shortest,
            election_timeout_max_ms=shortest + 1,
        )
        core = settings.core()
        assert core.heartbeat_ticks < core.election_ticks_min < core.election_ticks_max


def test_units_are_read() -> None:
    raft = ClusterConfig.parse(
        {
            "raft": {"write_timeout": "2 min", "flush_bytes": "16 MiB", "heartbeat_interval": 100},
            "controller": {"heartbeat_timeout": "5s"},
        }
    ).raft
    assert raft.write_timeout_ms == 120_000
    assert raft.flush_bytes == 16 << 20
    assert raft.heartbeat_interval_ms == 100
    assert raft.heartbeat_timeout_ms == 5_000


def test_groups_start_in_their_order_however_they_are_given() -> None:
    config = ClusterConfig.parse({"groups": ["mqtt-0", "offset-1", "metadata-0", "offset-0"]})
    assert config.groups == ("metadata-0", "offset-0", "offset-1", "mqtt-0")


@pytest.mark.parametrize("metadata", [None, {}, {"raft": None}])
def test_what_is_not_said_keeps_its_default(metadata: object) -> None:
    assert ClusterConfig.parse(metadata) == ClusterConfig()


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ([], "metadata must hold keys"),
        ({"replica": 3}, "metadata.replica is not a setting"),
        ({"replicas": 0}, "replicas must be between 1 and 7"),
        ({"replicas": 8}, "replicas must be between 1 and 7"),
        ({"replicas": "3"}, "replicas must be between 1 and 7"),
        ({"replicas": True}, "replicas must be between 1 and 7"),
        ({"learners": -1}, "learners must be between 0 and 3, not -1"),
        ({"learners": 4}, "learners must be between 0 and 3, not 4"),
        ({"learners": True}, "learners must be between 0 and 3, not True"),
        ({"learners": "1"}, "learners must be between 0 and 3, not '1'"),
        ({"allow_colocated": "yes"}, "allow_colocated must be true or false"),
        ({"groups": "metadata-0"}, "metadata.groups must be a list"),
        ({"groups": []}, "groups must be 1 to 64 names"),
        ({"groups": ["metadata-0", "other-0"]}, "'other-0' is none of"),
        ({"groups": ["metadata-0", 7]}, "7 is none of"),
        ({"groups": ["metadata-00"]}, "'metadata-00' is none of"),
        ({"groups": ["offset-0"]}, "must contain metadata-0"),
        ({"groups": ["metadata-0", "mqtt-1"]}, "mqtt-1 is there twice or out of sequence"),
        ({"groups": ["metadata-0", "metadata-0"]}, "metadata-0 is there twice"),
        ({"raft": []}, "metadata.raft must hold keys"),
        ({"raft": {"heartbeat": 1}}, "metadata.raft.heartbeat is not a setting"),
        ({"raft": {"heartbeat_timeout": "1 s"}}, "metadata.raft.heartbeat_timeout is not"),
        ({"raft": {"heartbeat_interval": "1 h"}}, "must be a whole number with ms, s, min"),
        ({"raft": {"heartbeat_interval": "-1 ms"}}, "heartbeat_interval_ms must be between 10"),
        ({"raft": {"heartbeat_interval": 0.5}}, "must be a whole number with ms, s, min"),
        ({"raft": {"heartbeat_interval": True}}, "must be a whole number with ms, s, min"),
        ({"raft": {"heartbeat_interval": "1 ms"}}, "heartbeat_interval_ms must be between 10"),
        ({"raft": {"heartbeat_interval": "40 ms"}}, "must be at least tick_ms (50)"),
        ({"raft": {"election_timeout_min": "250 ms"}}, "must be more than heartbeat_interval_ms"),
        ({"raft": {"election_timeout_max": "1 s"}}, "must be more than election_timeout_min_ms"),
        ({"raft": {"flush_bytes": "1 GB"}}, "must be a whole number with B, KiB, MiB, GiB"),
        ({"raft": {"batch_max": 10_001}}, "batch_max must be between 1 and 10000"),
        ({"raft": {"metadata_nice": -21}}, "metadata_nice must be between -20 and 19, not -21"),
        ({"raft": {"metadata_nice": "20"}}, "metadata_nice must be between -20 and 19, not 20"),
        ({"raft": {"metadata_nice": "--1"}}, "metadata_nice must be a whole number, not '--1'"),
        ({"raft": {"metadata_slice_us": -1}}, "metadata_slice_us must be between 0 and 100000"),
        ({"raft": {"metadata_slice_us": 99}}, "metadata_slice_us must be 0, or 100 and more, not"),
        (
            {"raft": {"batch_linger": "1 s", "write_timeout": "1 s"}},
            "write_timeout_ms (1000) must be more than batch_linger_ms (1000)",
        ),
        ({"raft": {"cpu_latency_us": -2}}, "cpu_latency_us must be between -1 and 10000, not -2"),
        ({"raft": {"cpu_latency_us": "1 us"}}, "cpu_latency_us must be a whole number, not '1 us'"),
        ({"raft": {"write_timeout": 10**30}}, "write_timeout_ms must be between 100 and 600000"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(metadata: object, named: str) -> None:
    with pytest.raises(Invalid) as refused:
        ClusterConfig.parse(metadata)
    assert named in refused.value.detail


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"metadata: [", "is not YAML"),
        (b"\xff\xfe\xff", "is not UTF-8"),
        (b"- a list", "must hold keys and values"),
        (b"metadata: {replicas: 9}", "replicas must be between"),
        (
            b"a: 1\nmetadata: {replicas: 3, 'replicas': 5}",
            "line 2: the key 'replicas' is there twice",
        ),
        (b"metadata: {}\nmetadata: {learners: 1}", "line 2: the key 'metadata' is there twice"),
        (b"[[{a: 1, a: 2}]]", "line 1: the key 'a' is there twice"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(content)
    with pytest.raises(Invalid) as refused:
        ClusterConfig.load(path)
    assert str(path) in refused.value.detail
    assert named in refused.value.detail


def test_a_key_that_a_mapping_takes_from_another_is_not_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("a: &a {learners: 1, replicas: 3}\nmetadata: {<<: *a, replicas: 5}\nb: *a\n")
    assert ClusterConfig.load(path) == ClusterConfig(learners=1, replicas=5)


@pytest.mark.parametrize("depth", [5, 6, 100])
def test_keys_that_merging_multiplies_are_refused(tmp_path: Path, depth: int) -> None:
    """Each level takes the one before ten times: made first, these would fill the memory."""
    keys = ", ".join(f"k{number}: 1" for number in range(10))
    lines = [f"a0: &a0 {{{keys}}}"]
    for level in range(1, depth):
        before = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {{<<: [{before}]}}")
    lines.append("metadata: {replicas: 5}")
    path = tmp_path / "cluster.yaml"
    path.write_text("\n".join(lines[:4] + lines[-1:]))
    assert ClusterConfig.load(path).replicas == 5, "so many are read"
    path.write_text("\n".join(lines))
    with pytest.raises(Invalid, match=f"cluster.yaml has more than {KEYS_MAX} keys, the limit"):
        ClusterConfig.load(path)


def test_mappings_may_merge_one_another_in_a_long_row(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    row = [f"a{level}: &a{level} {{<<: *a{level - 1}}}" for level in range(1, 400)]
    path.write_text("\n".join(["a0: &a0 {replicas: 5}", *row, "metadata: *a399"]))
    assert ClusterConfig.load(path).replicas == 5


def test_a_mapping_that_merges_itself_has_its_keys_once(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("metadata: &it\n  replicas: 5\n  <<: *it\n")
    assert ClusterConfig.load(path).replicas == 5


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file"):
        ClusterConfig.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"replicas": 1}, "no failure"),
        ({"replicas": 4}, "survives no more failures with 4 replicas than with 3"),
        ({"allow_colocated": True}, "on"),
        ({"allow_colocated": True, "learners": 1}, "learners may stand on the nodes of voters"),
    ],
)
def test_what_is_unwise_is_said(given: dict[str, Any], word: str) -> None:
    assert any(word in warning for warning in ClusterConfig(**given).warnings())


def test_learners_are_none_unless_they_are_asked_for_and_cost_no_warning() -> None:
    assert ClusterConfig.parse({}).learners == 0
    config = ClusterConfig.parse({"learners": 2})
    assert (config.learners, config.warnings()) == (2, ())


def test_settings_travel_to_the_actors() -> None:
    config = ClusterConfig(replicas=5)
    assert pickle.loads(pickle.dumps(config)) == config
