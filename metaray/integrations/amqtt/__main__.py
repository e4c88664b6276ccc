"""A broker process: amqtt with the plugin, in the foreground.

    python -m metaray.integrations.amqtt --name b1 --port 18831 --address 127.0.0.1:6379

It prints `ready` once it listens and has loaded what it had; clients may connect before. SIGTERM
and SIGINT stop it in order: clients are let go, their sessions closed, the node unregistered.
kill -9 does no harm either: the next process of that name finds the sessions, and closes those that
were open. When another process takes its name it ends by itself, with status 3.

Anyone may connect, unless `--authenticate` asks for users and passwords. Without TLS it is meant
for one machine; a broker for others gets its own configuration, with what amqtt has besides.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import sys
from typing import Annotated, Any, Final

import typer
from amqtt.broker import Broker
from amqtt.errors import BrokerError, PluginInitError

from metaray.client import join_cluster
from metaray.integrations.amqtt.config import Config
from metaray.integrations.amqtt.plugin import MetarayPlugin
from state_machines.errors import MetarayError
from state_machines.names import SECONDS_MAX

START_FAILED: Final = 1
REFUSED: Final = 2  #: an option cannot be
NAME_TAKEN: Final = 3

PLUGIN: Final = "metaray.integrations.amqtt.MetarayPlugin"


def configuration(
    *, host: str, port: int, session_expiry_s: int, **settings: Any
) -> dict[str, Any]:
    """amqtt's configuration of a broker that lets anyone in; `settings` are the plugin's."""
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
        "session_expiry_interval": session_expiry_s,
        "plugins": {
            "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
            PLUGIN: {"session_expiry_s": session_expiry_s, "listen": f"{host}:{port}", **settings},
        },
    }


def log_format(name: str) -> str:
    """Of each line, with the broker's name in front, which may have a `%` in it."""
    return f"{name.replace('%', '%%')} %(levelname)s %(name)s: %(message)s"


async def serve(config: dict[str, Any]) -> int:
    """Run a broker until a signal, or another one of its name, ends it. Returns the exit status."""
    broker = Broker(config)
    plugin = broker.plugins_manager.get_plugin(MetarayPlugin.__name__)
    assert isinstance(plugin, MetarayPlugin)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await broker.start()
    except BrokerError as error:
        await broker.plugins_manager.close()
        sys.stderr.write(f"{error}\n")
        return START_FAILED
    stopped, fenced = asyncio.create_task(stop.wait()), asyncio.create_task(plugin.fenced.wait())
    ready = asyncio.create_task(plugin.ready.wait())
    done, _ = await asyncio.wait((stopped, fenced, ready), return_when=asyncio.FIRST_COMPLETED)
    if ready in done:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.wait((stopped, fenced), return_when=asyncio.FIRST_COMPLETED)
    for task in (stopped, fenced, ready):
        task.cancel()
    await broker.shutdown()
    return NAME_TAKEN if plugin.fenced.is_set() else 0


def main(
    name: Annotated[str, typer.Option(help="Its name in the fleet, the same after a restart")],
    port: Annotated[int, typer.Option(min=0, max=65_535)],
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    address: Annotated[str | None, typer.Option(help="Ray's address; else METARAY_ADDRESS")] = None,
    tenant: Annotated[str, typer.Option()] = "default",
    will_delay: Annotated[
        float,
        typer.Option(
            min=0, max=SECONDS_MAX, help="Seconds after the loss of a client, in whole ones"
        ),
    ] = 0,
    restart_grace: Annotated[
        float, typer.Option(min=0, help="Seconds for clients to come back after a kill")
    ] = 5.0,
    session_expiry: Annotated[int, typer.Option(min=1, help="Seconds")] = 7 * 86_400,
    authenticate: Annotated[
        bool, typer.Option(help="Clients need a user and its password")
    ] = False,
    blacklist: Annotated[bool, typer.Option(help="Keep out whom the blacklist bars")] = False,
    acl: Annotated[bool, typer.Option(help="ACL rules say who may do what")] = False,
    auto_subscribe: Annotated[bool, typer.Option(help="Subscribe clients by rule")] = False,
    rewrite: Annotated[bool, typer.Option(help="Rewrite topics by rule")] = False,
    timeout: Annotated[float, typer.Option(help="Deadline of a call to metaray, seconds")] = 15.0,
    log_level: Annotated[str, typer.Option()] = "WARNING",
) -> None:
    """Run one MQTT broker that keeps its state in metaray."""
    levels = logging.getLevelNamesMapping()
    if log_level.upper() not in levels:
        there = ", ".join(levels)
        raise typer.BadParameter(f"{log_level!r} is none of {there}", param_hint="--log-level")
    logging.basicConfig(level=log_level.upper(), format=log_format(name))
    config = configuration(
        host=host,
        port=port,
        session_expiry_s=session_expiry,
        name=name,
        address=address,
        tenant=tenant,
        will_delay_s=math.ceil(will_delay),
        restart_grace_s=restart_grace,
        timeout_s=timeout,
        authenticate=authenticate,
        blacklist=blacklist,
        acl=acl,
        auto_subscribe=auto_subscribe,
        rewrite=rewrite,
    )
    try:
        Config(**config["plugins"][PLUGIN])  # amqtt asks it again, when we have joined the cluster
    except PluginInitError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(REFUSED) from None
    try:
        join_cluster(
            address
        )  # here, for Ray wants the main thread, and before the loop has signals
    except MetarayError as error:
        sys.stderr.write(f"{error.detail}\n")
        raise typer.Exit(START_FAILED) from None
    raise typer.Exit(asyncio.run(serve(config)))


if __name__ == "__main__":
    typer.run(main)
