"""What an `offset` group keeps: how far consumer groups have read.

One file an entity; importing this package registers them all.
"""

from state_machines.offset import offset, tenant_purge

__all__ = ["offset", "tenant_purge"]
