"""What holds for every test: no error of compiled code is hidden by running the program's own code after it."""

from collections.abc import Iterator

import pytest

from stator.base import counters
from stator.dynamo.failed_graphs import Failure

_FAILURES = "dynamo.failures_of_graphs_alone"
# kept here, not in the counters: a test may clear those
_failed: list[str] = []
_was_the_graph_s = Failure.was_the_graph_s


def _noted(failure: Failure) -> None:
    before = counters.counts[_FAILURES]
    _was_the_graph_s(failure)
    if counters.counts[_FAILURES] > before:  # a check of what was assumed is no failure
        _failed.append(f"{failure.name}: {failure.latest}")


Failure.was_the_graph_s = _noted  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def graphs_do_not_fail_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    _failed.clear()
    yield
    if _failed and request.node.get_closest_marker("graphs_may_fail_alone") is None:
        pytest.fail(f"a compiled graph raised an error that eager execution did not raise: {'; '.join(_failed)}")
