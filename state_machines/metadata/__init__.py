"""What a `metadata` group keeps: the fleet's nodes, a key-value space, the slot map, and what the
controller was told.

One file an entity; importing this package registers them all.
"""

from state_machines.metadata import duty, kv, node, slot_map

__all__ = ["duty", "kv", "node", "slot_map"]
