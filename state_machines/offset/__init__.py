"""What an `offset` group keeps: how far consumer groups have read, and how far they had.

    rows        an offset a partition, a group of them; the fields that others read
    offset      the commit, and reading back what was committed
    get         the offset of one partition
    group       generations, lists and deletion of consumer groups
    activity    when groups were heard of last, and the expiry of silent ones
    history     where a group stood a while ago
    reset       what an operator does: delete, reset, rewind
    repairs     how rows that an audit found wrong are put right
    restore     rows of a backup come back
    tenant_purge  all rows of a tenant go

Importing this package registers them all.
"""

from state_machines.offset import (
    activity,
    get,
    group,
    history,
    offset,
    repairs,
    reset,
    restore,
    rows,
    tenant_purge,
)

__all__ = [
    "activity",
    "get",
    "group",
    "history",
    "offset",
    "repairs",
    "reset",
    "restore",
    "rows",
    "tenant_purge",
]
