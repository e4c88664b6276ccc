"""The service on the run's shared cluster, as the door's tests have it."""

from __future__ import annotations

from tests.door.conftest import service

__all__ = ["service"]
