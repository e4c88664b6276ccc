from __future__ import annotations

import pytest

from storage.engine import Engine
from storage.memory import MemoryEngine
from tests.storage.suite import EngineContract, Reopen


class TestMemoryEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return MemoryEngine()

    @pytest.fixture
    def small(self) -> Engine:
        return MemoryEngine(limit_bytes=200_000)

    @pytest.fixture
    def reopen(self) -> Reopen:
        def again(engine: Engine) -> Engine:
            engine.close()
            return engine

        return again
