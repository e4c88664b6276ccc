"""How often the controller does its duties, and how patiently: settings that hold at once.

`cluster.yaml` says what a cluster starts with (`metadata.controller`, under the same names); what
is set in `metadata.config` for the cluster is in force over that from when the controller has read
it.
"""

from __future__ import annotations

from typing import Final

from state_machines.settings import HOUR_MS, MINUTE_MS, SECOND_MS, setting

INTERVAL_MS_MIN: Final = 10
INTERVAL_MS_MAX: Final = 10 * MINUTE_MS


def _interval(name: str, default: int, description: str) -> None:
    setting(name, "ms", INTERVAL_MS_MIN, INTERVAL_MS_MAX, default, description=description)


_interval("order_check_ms", SECOND_MS, "How often the controller reads what operators told it.")
_interval("heartbeat_check_ms", SECOND_MS, "How often the controller looks for silent brokers.")
_interval("failover_check_ms", SECOND_MS, "How often it looks for segments without a leader.")
_interval("storage_check_ms", 5 * SECOND_MS, "How often it removes deleted shards and segments.")
_interval("timer_check_ms", SECOND_MS, "How often it looks for due wills and expired sessions.")
_interval("lease_check_ms", SECOND_MS, "How often it looks for leases that have run out.")
_interval("offset_check_ms", 10 * SECOND_MS, "How often it looks for silent consumer groups.")
_interval("connector_check_ms", SECOND_MS, "How often it gives connectors to brokers.")
_interval("session_check_ms", 5 * SECOND_MS, "How often it looks for sessions of silent brokers.")
_interval("share_check_ms", 5 * SECOND_MS, "How often it looks after shared subscriptions.")
_interval("quota_check_ms", 5 * SECOND_MS, "How often it tells the groups what tenants may have.")
_interval("tenant_check_ms", 5 * SECOND_MS, "How often it goes on with deletions of tenants.")
_interval("schedule_check_ms", 5 * SECOND_MS, "How often it submits reports that are due.")
_interval("advice_check_ms", 5 * SECOND_MS, "How often it looks after advice (`advice_mode`).")
_interval("repair_check_ms", 2 * SECOND_MS, "How often it looks for seats that lost their disk.")
setting(
    "lease_grace_ms",
    "ms",
    0,
    HOUR_MS,
    10 * SECOND_MS,
    description="What a lease is given that ran out while its group, or the controller, was away.",
)
