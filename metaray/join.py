"""Joining a Ray cluster as a driver: which one, with what secret, and a plain word if it fails.

`ray.init` is patient beyond use: given an address where nothing listens, or a token that the
cluster does not know, it tries for minutes and then ends the process. So the head is asked first
whether it is there, over its own protocol, with a deadline; what it answers tells apart "nobody
listens", "somebody else listens", "the wrong token" and "another version of Ray".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.exceptions import AuthenticationError, RayError

from actors.ray_env import NAMESPACE
from metaray import local
from metaray.local.state import read_state
from metaray.where import ADDRESS_VARIABLE, DEFAULT_DATA, address_of
from state_machines.errors import Invalid, NoQuorum

HEAD_SECONDS: Final = 5.0  #: our own deadline for the head's first answer

_HOST_PORT: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:/\s]+):(\d{1,5})", re.ASCII)
_PORT_MAX: Final = 65_535
_NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)  # as Ray's own connections have it
_aliases: Final[dict[str, str]] = {}  # by other addresses of a cluster, the one that Ray has
_HELP: Final = (
    "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the cluster's token file (of a local "
    "cluster: `token` in its data directory), or name that directory with --data"
)


def join_cluster(address: str | None = None, data: Path | None = None) -> None:
    """Connect this process to Ray, unless it is. A process is of one cluster at a time.

    The address is the one given, or that of the local cluster whose data lies in `data`. Where no
    directory is named, that of `METARAY_ADDRESS` goes before that of the usual one, `.metaray`.
    Raises NoQuorum when there is no cluster to join, Invalid when the address is none, the cluster
    does not know this process's token, or it is another than the process is of; all within seconds.
    """
    if ray.is_initialized():
        _check_joined(address, data)
        return
    address = address_of(address, data)
    home = DEFAULT_DATA if data is None else Path(data)
    try:
        running = local.find(home)
    except Invalid:
        if address is None:
            raise
        running = None  # another cluster is asked for than the one whose file cannot be read
    if running is not None and address is None and not running.address:
        raise NoQuorum(f"the cluster on {home} is being started; ask again once it is")
    if running is not None and address in (None, running.address):
        running.apply_environment()
        address = running.address
    if address is None:
        left = read_state(home.expanduser().resolve())
        if left is not None and any(node.alive for node in left.nodes):
            raise _headless(home, "its process has ended")
        raise NoQuorum(
            f"no cluster runs on {home}: start one with `metaray up --local 3`, name its data "
            f"directory with --data, or give a Ray address (--address, or {ADDRESS_VARIABLE})"
        )
    try:
        ask_head(address)
    except NoQuorum as error:
        if running is None or running.address != address:
            raise
        raise _headless(home, error.detail) from None
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise NoQuorum(f"address: {address} cannot be joined: {in_one_line(error)}") from error


def _check_joined(address: str | None, data: Path | None) -> None:
    """Raise unless the cluster that is named, if any is, is the one that this process is of: what
    is meant for another must not be read and written here."""
    if address is None and data is not None:
        running = local.find(data)
        address = running.address if running is not None else None
    here = ray.get_runtime_context().gcs_address
    if not address or address in (here, "auto") or address.startswith("ray://"):
        return
    if _aliases.get(address) == here:
        return
    ask_head(address)
    if _cluster_at(address) != _cluster_at(here):
        raise Invalid(
            f"address: {address} is another cluster than that of {here}, which this process has "
            "joined; a process is of one, so take one for each"
        )
    _aliases[address] = here


def _headless(home: Path, why: str) -> NoQuorum:
    return NoQuorum(
        f"the head of the cluster on {home} is gone ({why}). Replicas on nodes that live serve on; "
        'how to bring it back: docs/operations.md, "When the head is lost". `metaray up` and '
        "`metaray down` may end what still runs"
    )


def ask_head(address: str, seconds: float = HEAD_SECONDS) -> None:
    """Whether a Ray head answers at `address`, and takes our token.

    Raises Invalid or NoQuorum with what to do instead. `auto` and `ray://` addresses are Ray's own
    to look up.
    """
    if address == "auto" or address.startswith("ray://"):
        return
    parts = _HOST_PORT.fullmatch(address)
    if parts is None or not address.isprintable() or int(parts[2]) > _PORT_MAX:
        raise Invalid(f"address: {address!r} is not HOST:PORT (Ray's default port is 6379)")
    try:
        try:
            answer = _ask(init_grpc_channel(address, options=_NO_PROXY), seconds)
        except AuthenticationError:  # we have no token; is there somebody who would want one?
            answer = _ask(grpc.insecure_channel(address, options=_NO_PROXY), seconds)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            raise Invalid(f"token: {address} does not know this process by one; {_HELP}") from None
        raise NoQuorum(
            f"address: no Ray cluster answers at {address} ({in_one_line(error.details())}); "
            "start one with `metaray up --local 3`, or check the address"
        ) from None
    if answer.ray_version != ray.__version__:
        raise Invalid(
            f"address: {address} runs Ray {answer.ray_version}, this process has "
            f"{ray.__version__}; install the same version on both sides"
        )


def _cluster_at(address: str) -> bytes:
    try:
        with init_grpc_channel(address, options=_NO_PROXY) as channel:
            head = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
            asked = gcs_service_pb2.GetClusterIdRequest()
            said: bytes = head.GetClusterId(asked, timeout=HEAD_SECONDS).cluster_id
    except grpc.RpcError as error:
        raise NoQuorum(
            f"address: {address} does not say which cluster it is ({in_one_line(error.details())})"
        ) from None
    return said


def _ask(channel: Any, seconds: float) -> Any:
    with channel:
        head = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        return head.CheckAlive(gcs_service_pb2.CheckAliveRequest(), timeout=seconds)


def in_one_line(said: object, characters: int = 200) -> str:
    """The first words of somebody else's error, fit for a line of ours."""
    words = " ".join(str(said).split())
    if not words and isinstance(said, BaseException):
        words = type(said).__name__
    return words if len(words) <= characters else f"{words[: characters - 1]}…"
