"""`java` in metaray's environment: a Java that is asked for, in an autogroup of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors import java
from tests.kernel import ROOT

SAYS = """#!/bin/sh
for each in "$@"; do echo "said $each"; done
echo "session $(ps -o sid= -p $$)"
echo "group $(cat /proc/self/autogroup 2>/dev/null)"
echo "nice $(nice)"
read line
echo "heard $line"
exit 7
"""


def a_java(home: Path) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(SAYS)
    command.chmod(0o755)
    return command


def begin(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("METARAY_")}
    return subprocess.Popen(
        [str(java.HOME / "bin" / "java"), *arguments],
        env={**kept, "PYTHONPATH": str(ROOT), "METARAY_PYTHON": sys.executable, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # as Ray's workers are
    )


def test_it_is_the_same_process_with_a_session_of_its_own(tmp_path: Path) -> None:
    process = begin("-Da=b c", "", METARAY_JAVA=str(a_java(tmp_path / "a java")))
    out, wrong = process.communicate("a line\n", timeout=60)
    said = out.splitlines()
    assert said[:2] == ["said -Da=b c", "said "]
    assert said[2].split() == ["session", str(process.pid)]
    assert said[-1] == "heard a line"
    assert (process.returncode, wrong) == (7, "")


@pytest.mark.parametrize(("given", "nice"), [({}, 10), ({"METARAY_JAVA_NICE": "0"}, 0)])
def test_its_share_is_small_unless_it_is_told_otherwise(
    tmp_path: Path, given: dict[str, str], nice: int
) -> None:
    process = begin(METARAY_JAVA=str(a_java(tmp_path)), **given)
    out, _ = process.communicate("\n", timeout=60)
    said = out.splitlines()
    assert f"nice {min(os.nice(0) + nice, java.NICE_MAX)}" in said
    if Path("/proc/self/autogroup").exists():
        group = next(line for line in said if line.startswith("group"))
        assert group.split()[2:] == ["nice", str(nice)]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "java: METARAY_JAVA: '' is no Java"),
        ({"METARAY_JAVA": "/nowhere/bin/java"}, "java: METARAY_JAVA: [Errno 2]"),
        ({"METARAY_JAVA": str(java.HOME / "bin" / "java")}, "is no Java"),
        ({"METARAY_JAVA": sys.executable, "METARAY_JAVA_NICE": "-1"}, "the range is 0 to 19"),
        ({"METARAY_JAVA": sys.executable, "METARAY_JAVA_NICE": "20"}, "the range is 0 to 19"),
        ({"METARAY_JAVA": sys.executable, "METARAY_JAVA_NICE": "low"}, "METARAY_JAVA_NICE: 'low'"),
        ({"METARAY_PYTHON": ""}, "METARAY_PYTHON: is not set"),
    ],
)
def test_what_cannot_be_started_is_told(variables: dict[str, str], says: str) -> None:
    process = begin(**variables)
    out, told = process.communicate(timeout=60)
    assert out == ""
    assert says in told
    assert "Traceback" not in told
    assert process.returncode != 0
