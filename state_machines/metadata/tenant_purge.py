"""Purging a tenant's rows from `metadata` groups: see `state_machines.purge`."""

from __future__ import annotations

from typing import ClassVar

from state_machines.op import command
from state_machines.purge import Purge


@command("metadata.tenant.purge")
class PurgeMetadata(Purge):
    """The controller deletes a tenant: up to `limit` rows of it go from each `metadata` group."""

    of_kind: ClassVar[str] = "metadata"
    controller_epoch: int
    tenant: str
    limit: int = 1_000
