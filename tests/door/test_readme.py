"""The README's example runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from metaray.local import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60


@pytest.mark.ray
def test_five_lines(service: LocalCluster, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = next(
        block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "connect_sync" in block
    )
    # A new user's terminal: nothing set, and the cluster where `metaray up` has put it.
    (tmp_path / ".metaray").symlink_to(service.data, target_is_directory=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    plain.pop("METARAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=plain,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "b'hello'" in done.stdout
