"""The windows that are to come."""

from __future__ import annotations

import pytest

from jobs.loads import FORECAST, SERIES, forecast
from tests.jobs.conftest import Rows
from tests.jobs.hotspots.made import END, MINUTE, NOW, collect


@pytest.mark.spark
def test_a_forecast_of_a_line_is_exact_and_each_says_how_far_off_it_was(rows: Rows) -> None:
    loads_of: dict[str, list[float | None]] = {
        "line": [10.0 * (n + 21) for n in range(-20, 0)],  # ends with 200
        "broken": [*(10.0 * (n + 21) for n in range(-20, -1)), 100.0],
        "down": [*[0.0] * 17, 60.0, 30.0, 0.0],
        "one": [7.0],
        "unknown": [1.0] * 19 + [None],
    }
    known = [
        {
            "of": "group",
            "name": name,
            "start_ms": END - (len(of) - place) * MINUTE,
            "commands": 1,
            "operations": None,
            "bytes": None,
            "per_s": per_s,
        }
        for name, of in loads_of.items()
        for place, per_s in enumerate(of)
    ]
    made = forecast(rows(SERIES, known), NOW, MINUTE, trend_windows=12, ahead=3)
    found = collect(made, FORECAST, "name", "ahead")
    of_name = {name: [each for each in found if each["name"] == name] for name in loads_of}
    for place, each in enumerate(of_name["line"]):
        assert each["per_s"] == pytest.approx(210 + 10 * place)
        assert (each["ahead"], each["start_ms"]) == (place + 1, END + place * MINUTE)
        assert (each["method"], each["last_per_s"]) == ("trend", 200.0)
        assert each["guess_per_s"] == pytest.approx(200)
        assert each["error"] == pytest.approx(0, abs=1e-9)
    # A line up to 190 would say 200, the mean of the twelve before says 135: the lesser mistake.
    broken = of_name["broken"][0]
    assert (broken["method"], broken["last_per_s"]) == ("mean", 100.0)
    assert broken["guess_per_s"] == pytest.approx(135.0)
    assert broken["error"] == pytest.approx(35 / 135)
    assert broken["per_s"] == pytest.approx((sum(range(90, 200, 10)) + 100) / 12)
    assert min(each["per_s"] for each in of_name["down"]) >= 0.0
    one = of_name["one"][0]
    assert (one["method"], one["per_s"], one["last_per_s"]) == ("mean", 7.0, 7.0)
    assert (one["guess_per_s"], one["error"]) == (None, None)
    unknown = of_name["unknown"][0]
    assert (unknown["per_s"], unknown["last_per_s"], unknown["error"]) == (1.0, None, None)
