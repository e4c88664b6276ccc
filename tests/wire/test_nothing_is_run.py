"""Law 19: bytes from outside are data. A pickle, which would run what it names, is only refused."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.config import ClusterConfig
from state_machines import op, packing
from state_machines.errors import Invalid
from state_machines.wire import codec

Door = Callable[[bytes], Any]

DOORS: dict[str, Door] = {
    "a body": packing.load,
    "a command": lambda data: op.decode(op.COMMANDS, op.REGISTER_TAG, data),
    "a query": lambda data: op.decode(op.QUERIES, "metadata.kv.get", data),
    "a reply": lambda data: packing.unpack(tuple[int, ...], data, "reply"),
    "an envelope": codec.decode_envelope,
    "a message": codec.decode_message,
}


class _Makes:
    """Unpickled, it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("door", DOORS)
def test_a_pickle_is_refused_and_not_run(door: str, protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    data = pickle.dumps(_Makes(made), protocol)
    with pytest.raises(Invalid):
        DOORS[door](data)
    assert not made.exists()
    pickle.loads(data)
    assert made.exists(), "it would have been seen"


@pytest.mark.parametrize("tag", ["python/object/apply:os.mkdir", "python/object/new:os.mkdir"])
def test_a_launcher_file_makes_no_objects(tag: str, tmp_path: Path) -> None:
    made, file = tmp_path / "made", tmp_path / "cluster.yaml"
    file.write_text(f"metadata: !!{tag} ['{made}']")
    with pytest.raises(Invalid, match="is not YAML"):
        ClusterConfig.load(file)
    assert not made.exists()
    with suppress(yaml.YAMLError, TypeError):
        yaml.unsafe_load(file.read_text())
    assert made.exists(), "it would have been seen"
