"""What holds for every test: no error of compiled code is hidden by running the program's own code after it."""

from collections.abc import Iterator

import pytest

from stator.base import counters

_FAILURES = "dynamo.failures_of_graphs_alone"


@pytest.fixture(autouse=True)
def graphs_do_not_fail_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    counters.counts[_FAILURES] = 0  # not compared with what was before: a test may clear all counts
    yield
    if counters.counts[_FAILURES] and request.node.get_closest_marker("graphs_may_fail_alone") is None:
        pytest.fail("a compiled graph raised an error that eager execution did not raise; see the warning")
