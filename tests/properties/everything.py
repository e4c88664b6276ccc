"""All properties: to import a module is to register what holds in it."""

from tests.properties import (
    changes,
    codecs,
    core_log,
    quorums,
    stored_log,
    stored_replica,
    stored_state,
)
from tests.properties.ask import PROPERTIES, Property

__all__ = [
    "PROPERTIES",
    "Property",
    "changes",
    "codecs",
    "core_log",
    "quorums",
    "stored_log",
    "stored_replica",
    "stored_state",
]
