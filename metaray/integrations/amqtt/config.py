"""The plugin's section of the broker's configuration, every setting with its unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from amqtt.errors import PluginInitError

from actors.caller import TIMEOUT_MS_MAX
from state_machines import names
from state_machines.errors import Invalid
from state_machines.limits import PAGE_ROWS_MAX

_MOST: Final = {
    "timeout_s": TIMEOUT_MS_MAX // 1_000,
    "page": PAGE_ROWS_MAX,
    **dict.fromkeys(
        ("session_expiry_s", "heartbeat_s", "outbox_s", "check_s", "rules_s"), names.SECONDS_MAX
    ),
}
"""What is more than 0, and how much at most."""


@dataclass
class Config:
    """The plugin's section of the broker's configuration."""

    name: str
    """The broker's name in the fleet, the same after a restart: it finds its sessions by it."""
    address: str | None = None
    """Ray's address (host:port); None: METARAY_ADDRESS, or the local cluster."""
    listen: str = ""
    """Where clients reach this broker, as it is told to others (host:port)."""
    tenant: str = "default"
    """The namespace of everything the broker keeps."""
    timeout_s: float = 15.0
    """Deadline of one call to metaray. Longer than a failover, shorter than a client's patience."""
    session_expiry_s: int = 7 * 86_400
    """How long a persistent session outlives its connection, if the tenant's settings allow it."""
    will_delay_s: int = 0
    """How long after the loss of its client a will is published."""
    will_delays: dict[str, int] = field(default_factory=dict)
    """The same for client ids that match a pattern (`*`, `?`, `[...]`); the first that matches."""
    heartbeat_s: float = 5.0
    """Between signs of life to metaray, which gives a node up after 30 s without one."""
    outbox_s: float = 0.5
    """Between looks at the outbox: how late a will may be."""
    restart_grace_s: float = 5.0
    """How long clients of a broker that was killed have to come back, once it runs again."""
    check_s: float = 2.0
    """Between looks at who owns the sessions here: how long a client that went elsewhere stays."""
    page: int = 1_000
    """Rows of one page when the broker loads its state."""
    authenticate: bool = False
    """Clients need a user of the tenant, and its password."""
    blacklist: bool = False
    """Clients that the tenant's blacklist bars are not let in, and let go."""
    acl: bool = False
    """The tenant's ACL rules say who may publish and subscribe to what."""
    acl_default: str = "deny"
    """What holds where no rule says anything: "deny" or "allow"."""
    auto_subscribe: bool = False
    """Clients are subscribed to what the tenant's rules say when they connect."""
    rewrite: bool = False
    """Topics stand for what the tenant's rewrite rules say."""
    rules_s: float = 5.0
    """How old users, rules and settings may be that the broker goes by."""
    caller: Any = None
    """A function that returns a `Caller` to use instead of a client for `address`."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, by name."""
        try:
            self._check()
        except Invalid as error:
            raise PluginInitError(error.detail) from None

    def _check(self) -> None:
        """Names and numbers within the limits of what is asked with them. Raises Invalid."""
        names.name(self.name, "name")
        names.tenant(self.tenant)
        names.name(self.listen, "listen", empty=True)
        names.one_of(self.acl_default, "acl_default", ("allow", "deny"))
        for each, most in _MOST.items():
            value = getattr(self, each)
            if not 0 < value <= most:  # so that NaN is refused, too
                raise Invalid(f"{each}: {value}, it must be more than 0 and at most {most}")
        if not 0 <= self.restart_grace_s <= names.SECONDS_MAX:
            raise Invalid(
                f"restart_grace_s: {self.restart_grace_s}, the range is 0 to {names.SECONDS_MAX}"
            )
        names.seconds(self.will_delay_s, "will_delay_s")
        for pattern, delay in self.will_delays.items():
            names.seconds(delay, f"will_delays[{pattern!r}]")
