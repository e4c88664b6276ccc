"""The demo's clients on two brokers of this process: everything that the demo asks, in a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from metaray.demo.mqtt import Fleet
from tests.integrations.harness import House

DELAY_S = 3


@contextmanager
def time_passes(house: House) -> Iterator[None]:
    """The service's clock goes with ours, ten times a second, and its timers fire."""
    stop = threading.Event()

    def go() -> None:
        while not stop.wait(0.1):
            house.later(0.1)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_the_demos_clients_find_what_they_had(house: House) -> None:
    brokers = [house.start(name, will_delay_s=DELAY_S, page=1_000) for name in ("b1", "b2")]
    with time_passes(house), Fleet(brokers, will_delay_s=DELAY_S, deadline_s=20) as fleet:
        fleet.connect()
        dropped = fleet.drop(12)
        fleet.before_restart("b1")
        house.stop("b1")
        house.start("b1", brokers[0].port, will_delay_s=DELAY_S, page=1_000)
        fleet.after_restart("b1")
        fleet.await_wills()
        report = fleet.report()
    assert report.ok, [check for check in report.checks if not check.ok]
    assert (report.clients, report.subscriptions, report.retained) == (60, 120, 60)
    assert (report.dropped, report.wills_once, len(set(dropped))) == (12, 12, 12)
    assert (report.resumed, report.delivered) == (24, 24)
    assert len(report.will_seconds) == 12


def test_a_check_that_fails_is_told(house: House) -> None:
    """Nothing moves the service's clock, so no will ever comes."""
    brokers = [house.start("b1", will_delay_s=DELAY_S)]
    with Fleet(brokers, clients=3, will_delay_s=0.0, deadline_s=0.5) as fleet:
        fleet.connect()
        fleet.drop(2)
        fleet.await_wills()
        report = fleet.report()
    assert not report.ok
    assert {check.name for check in report.checks if not check.ok} == {
        "wills of dropped clients are published",
        "each will once, over all brokers",
    }
    assert "missing 2: ['metaray-demo-000', 'metaray-demo-001']" in report.checks[3].detail
