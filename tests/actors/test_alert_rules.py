"""The rules for Prometheus name metrics, tags and duties that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from actors import metrics
from actors.duties import DUTIES, Orders
from actors.duties.duty import Duty

PAGE = Path(__file__).parents[2] / "docs" / "alerts.yml"
RULES = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load(PAGE.read_text())["groups"]
    for rule in group["rules"]
}

TAGS = {
    **{
        f"ray_metaray_{name}": metrics.TAGS for name in (*metrics._GAUGES, *metrics._LEARNER_GAUGES)
    },
    **{f"ray_metaray_duty_{name}": ("duty",) for name in metrics._DUTY_GAUGES},
    **{f"ray_metaray_cache_{name}": metrics.CACHE_TAGS for name in metrics._CACHE_GAUGES},
    **{f"ray_metaray_{name}": ("state",) for name, _ in metrics._COUNTED.values()},
}


@pytest.mark.parametrize("alert", RULES)
def test_a_rule_is_made_of_what_is_shown(alert: str) -> None:
    expression = RULES[alert]
    named = set(re.findall(r"\bray_\w+", expression))
    assert named, "it would never fire"
    assert named <= TAGS.keys()
    asked = {
        tag.strip()
        for tags in re.findall(r"\b(?:by|on) \(([\w, ]+)\)", expression)
        for tag in tags.split(",")
    }
    asked |= set(re.findall(r"[{,](\w+)[=!]", expression))
    assert asked <= {tag for name in named for tag in TAGS[name]}


def test_duties_that_rules_name_are_duties() -> None:
    duties: list[type[Duty]] = [Orders, *DUTIES]
    named = {each for rule in RULES.values() for each in re.findall(r'duty="(\w+)"', rule)}
    assert named
    assert named <= {each.name for each in duties}
