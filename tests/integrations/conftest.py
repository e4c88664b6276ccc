from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.harness import House


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()
