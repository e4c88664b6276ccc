"""Purging a tenant's rows from `offset` groups: see `state_machines.purge`."""

from __future__ import annotations

from typing import ClassVar

from state_machines.offset.history import HISTORY
from state_machines.op import command
from state_machines.purge import Purge, goes_with_others

goes_with_others(HISTORY)  # with the offset that it belongs to, which knows its numbers


@command("offset.tenant.purge")
class PurgeOffsets(Purge):
    """The controller deletes a tenant: up to `limit` rows of it go from each `offset` group."""

    of_kind: ClassVar[str] = "offset"
    controller_epoch: int
    tenant: str
    limit: int = 1_000
