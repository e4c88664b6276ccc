"""etcd: heartbeats, elections, syncing, snapshots as it comes.

Raised is only what batches of 1 000 and long runs need: operations in a transaction, bytes in a
request, and the size at which its database takes no more writes.
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Final

from bench.peers import driver
from bench.peers.servers import (
    ASK_SECONDS,
    BATCH_MAX,
    HOST,
    REQUEST_BYTES_MAX,
    Role,
    Server,
    Servers,
    program,
    says,
)

GOPATH: Final = Path("/usr/share/gocode")
DATABASE_BYTES_MAX: Final = 8 << 30


class Etcd(Servers):
    """Three members."""

    name = "etcd"
    packages = ("etcd-server", "etcd-client", "golang-go", "golang-etcd-server-dev")
    programs = ("etcd", "go")
    files = (GOPATH / "src/go.etcd.io/etcd/clientv3",)
    ports = 2

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Of etcd and of what its client is compiled by."""
        return {
            "etcd": says([program("etcd"), "--version"]).removeprefix("etcd Version: "),
            "go": says([program("go"), "version"]).removeprefix("go version go"),
        }

    @classmethod
    def build(cls) -> list[str]:
        """Compiled against Debian's copies of the sources: nothing is fetched."""
        source = driver.SOURCES / "etcdload.go"
        settings = {
            "GO111MODULE": "off",
            "GOPATH": str(GOPATH),
            "GOPROXY": "off",
            "GOCACHE": str(driver.cache() / "go"),
            "CGO_ENABLED": "0",
        }
        built = driver.build(
            source, lambda to: [program("go"), "build", "-o", str(to), str(source)], settings
        )
        return [str(built)]

    def command(self, server: Server) -> list[str]:
        """One member of a cluster whose members are all known from the start."""
        client, peer = (f"http://{HOST}:{port}" for port in server.ports)
        members = ",".join(f"{each.number}=http://{HOST}:{each.ports[1]}" for each in self.servers)
        return [
            program("etcd"),
            f"--name={server.number}",
            f"--data-dir={server.home}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={members}",
            f"--max-txn-ops={BATCH_MAX}",
            f"--max-request-bytes={REQUEST_BYTES_MAX}",
            f"--quota-backend-bytes={DATABASE_BYTES_MAX}",
            "--logger=zap",
            "--log-outputs=stderr",
            "--log-level=warn",
        ]

    def role(self, server: Server) -> Role | None:
        """By its JSON gateway, which every member has."""
        host, port = HOST, server.ports[0]
        connection = http.client.HTTPConnection(host, port, timeout=ASK_SECONDS)
        try:
            connection.request("POST", "/v3/maintenance/status", body="{}")
            told = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None  # it is coming up, or has gone
        finally:
            connection.close()
        leader = told.get("leader", "0")
        if leader == "0":
            return None
        return "leader" if leader == told["header"]["member_id"] else "follower"
