"""A sample of every property, always the same one: what fails here fails again."""

from __future__ import annotations

import pytest

from tests.properties.everything import PROPERTIES


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_property(name: str) -> None:
    found = PROPERTIES[name]
    assert found.ask(found.sample) >= found.sample * 9 // 10, "too few examples were carried out"
