"""What a `metadata` group keeps: the fleet's nodes, a key-value space, and the slot map.

One file an entity; importing this package registers them all.
"""

from state_machines.metadata import kv, node, slot_map

__all__ = ["kv", "node", "slot_map"]
