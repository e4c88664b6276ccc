"""A property, and how to ask about it: of a few examples that never change, or of very many.

    @holds(long=60_000, configuration=CONFIGURATIONS, present=PRESENT)
    def a_quorum_is_a_majority_of_each_half(configuration, present): ...

    @holds(long=4_000, steps=40)
    class StoredLogInMemory(RuleBasedStateMachine): ...

`PROPERTIES` has them all. `test_properties.py` asks about a sample of each, always the same one,
so that what fails once fails again; `python -m tests.properties` asks about `long` examples that
follow from a seed it names. Both count the examples that were really carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar, cast

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

SAMPLE: Final = 60
PHASES = (Phase.generate, Phase.shrink)  # no database: examples follow from the seed alone

T = TypeVar("T", bound=Callable[..., None] | type[RuleBasedStateMachine])


@dataclass(frozen=True, slots=True)
class Property:
    """One thing that holds. `part` groups the figures of the long run; `long` and `sample` are
    numbers of examples."""

    name: str
    part: str
    long: int
    sample: int
    steps: int
    cases: int  #: what is looked at in one example
    test: Callable[..., None] | type[RuleBasedStateMachine]
    inputs: dict[str, st.SearchStrategy[Any]]

    def ask(self, examples: int, from_seed: int | None = None) -> int:
        """Try so many examples, and return how many it were. Raises at one that fails, made as
        simple as it gets. Without a seed they are always the same."""
        how = settings(
            max_examples=examples,
            derandomize=from_seed is None,
            database=None,
            stateful_step_count=self.steps,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        )
        done = 0

        def count() -> None:
            nonlocal done
            done += 1

        run = self._run(how, count)
        if from_seed is not None:
            run = seed(from_seed)(run)
        run()
        return done

    def _run(self, how: settings, count: Callable[[], None]) -> Callable[[], None]:
        if isinstance(self.test, type):
            machine = self.test

            class Counted(machine):  # type: ignore[misc, valid-type]  # the class is a parameter
                def teardown(self) -> None:
                    super().teardown()
                    count()

            Counted.__name__ = Counted.__qualname__ = machine.__name__
            return get_state_machine_test(Counted, settings=how)
        check = self.test

        @wraps(check)
        def counted(*args: Any, **kwargs: Any) -> None:
            check(*args, **kwargs)
            count()

        return cast(Callable[[], None], how(given(**self.inputs)(counted)))


PROPERTIES: Final[dict[str, Property]] = {}


def holds(
    *,
    long: int,
    sample: int = SAMPLE,
    steps: int = 30,
    cases: int = 1,
    **inputs: st.SearchStrategy[Any],
) -> Callable[[T], T]:
    """Register a function of `inputs`, or a state machine, as a property."""

    def register(test: T) -> T:
        part = test.__module__.rpartition(".")[2]
        assert test.__name__ not in PROPERTIES, f"{test.__name__} is there already"
        PROPERTIES[test.__name__] = Property(
            test.__name__, part, long, sample, steps, cases, test, inputs
        )
        return test

    return register
