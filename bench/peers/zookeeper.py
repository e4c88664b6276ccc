"""ZooKeeper: syncing, snapshots and heap as it comes; ticks and limits as in its sample file.

Raised is only what batches of 1 000 need (`jute.maxbuffer`, of servers and clients). Its admin
server is off, because its port is the same for all servers of a machine.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from bench.peers import driver
from bench.peers.servers import (
    ASK_SECONDS,
    HOST,
    REQUEST_BYTES_MAX,
    Role,
    Server,
    Servers,
    program,
    says,
)

JARS: Final = Path("/usr/share/java")
LIBRARY: Final = JARS / "zookeeper.jar"  #: names what it needs itself, but for where it logs to
LOGGER: Final = JARS / "slf4j-simple.jar"
RECORDS: Final = JARS / "zookeeper-jute.jar"
SERVER_HEAP: Final = "1000m"
CLIENT_HEAP: Final = "512m"
SETTINGS: Final = (
    "tickTime=2000",
    "initLimit=10",
    "syncLimit=5",
    "maxClientCnxns=60",
    "admin.enableServer=false",
)


def java(heap: str, *classes: Path) -> list[str]:
    """A virtual machine with ZooKeeper's library; it logs warnings to standard error."""
    return [
        program("java"),
        f"-Xmx{heap}",
        f"-Djute.maxbuffer={REQUEST_BYTES_MAX}",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        ":".join(str(path) for path in (*classes, LIBRARY, LOGGER)),
    ]


class ZooKeeper(Servers):
    """Three servers of an ensemble."""

    name = "zookeeper"
    packages = ("zookeeper", "default-jdk", "libslf4j-java")
    programs = ("java", "javac")
    files = (LIBRARY, RECORDS, LOGGER)
    ports = 3

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Of ZooKeeper, by the name that its file has beside the plain one, and of Java."""
        named = sorted(JARS.glob("zookeeper-[0-9]*.jar"))
        return {
            "zookeeper": named[-1].stem.removeprefix("zookeeper-") if named else "unknown",
            "java": says([program("java"), "-version"]).partition('"')[2].partition('"')[0],
        }

    @classmethod
    def build(cls) -> list[str]:
        """Compiled against the same library that the servers run."""
        source = driver.SOURCES / "ZkLoad.java"
        path = f"{LIBRARY}:{RECORDS}"
        classes = driver.build(
            source,
            lambda to: [
                *(program("javac"), "-nowarn", "-implicit:none", "-proc:none"),
                *("-cp", path, "-d", str(to), str(source)),
            ],
        )
        return [*java(CLIENT_HEAP, classes), "ZkLoad"]

    def command(self, server: Server) -> list[str]:
        """One server; the configuration and its own number are files."""
        members = [
            f"server.{each.number}={HOST}:{each.ports[1]}:{each.ports[2]}" for each in self.servers
        ]
        where = [f"dataDir={server.home}", f"clientPortAddress={HOST}"]
        settings = server.home / "zoo.cfg"
        settings.write_text(
            "\n".join([*SETTINGS, *where, f"clientPort={server.ports[0]}", *members, ""])
        )
        (server.home / "myid").write_text(f"{server.number}\n")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [*java(SERVER_HEAP), main, str(settings)]

    def role(self, server: Server) -> Role | None:
        """By its command of four letters that tells what a server does."""
        try:
            with socket.create_connection((HOST, server.ports[0]), ASK_SECONDS) as asked:
                asked.sendall(b"srvr")
                told = b"".join(iter(lambda: asked.recv(4_096), b""))
        except OSError:
            return None  # it is coming up, or has gone
        if b"Mode: leader" in told:
            return "leader"
        return "follower" if b"Mode: follower" in told else None
