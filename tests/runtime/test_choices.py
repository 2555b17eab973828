"""Choices by timing: the quickest wins, is kept on disk, and a disturbed timing decides nothing."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from stator.runtime import choices
from stator.runtime.precompiled_header import headers_digest


@pytest.fixture(autouse=True)
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_known", {})


class Clock:
    """Time that only runs move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for clock in ("perf_counter", "thread_time"):
            monkeypatch.setattr(time, clock, lambda: self.now)

    def run(self, *seconds: float) -> Callable[[], None]:
        """A run that takes these times, the last of them from then on."""
        remaining = list(seconds)

        def take() -> None:
            self.now += remaining.pop(0) if len(remaining) > 1 else remaining[0]

        return take


def choose(runs: choices.Alternatives, name: str, rule: str = "rule") -> str:
    return choices.quickest_on_cpu("test", (name, time.time_ns()), lambda: runs, rule)


def test_quickest_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert choose({"a": [clock.run(2e-4)], "b": [clock.run(1e-4)], "c": [clock.run(5e-4)]}, "quickest") == "b"


def test_simplest_wins_where_the_difference_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert choose({"a": [clock.run(1.01e-3)], "b": [clock.run(1e-3)]}, "close") == "a"


def test_far_slower_alternatives_are_timed_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with data of their own are not made for them."""
    clock, made = Clock(monkeypatch), []

    def runs(name: str, seconds: float) -> Iterator[Callable[[], None]]:
        for _ in range(3):
            made.append(name)
            yield clock.run(seconds)

    assert choose({"a": runs("a", 3e-4), "b": runs("b", 1e-4)}, "far slower") == "b"
    assert made == ["a", "b", "b", "b"]


def test_a_slow_run_rules_out_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert choose({"a": [clock.run(1e-3, 5e-3, 1e-3)], "b": [clock.run(1.3e-3)]}, "burst") == "a"


def test_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    facts = ("kept", time.time_ns())
    runs = {"a": [clock.run(2e-3)], "b": [clock.run(1e-3)]}
    assert choices.quickest_on_cpu("test", facts, lambda: runs, "rule") == "b"
    choices._known.clear()
    assert choices.quickest_on_cpu("test", facts, lambda: pytest.fail("timed again"), "rule") == "b"


@pytest.mark.parametrize(
    "times", [(1e-3, 1e-3, 9e-3, 4e-3, 6e-3, 8e-3), (1e-3, 30e-3)], ids=["no two times agree", "too few rounds"]
)
def test_disturbed_timing_is_not_kept(times: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    facts = ("disturbed", time.time_ns())
    runs = {"a": [clock.run(*times)], "b": [clock.run(*times)]}
    assert choices.quickest_on_cpu("test", facts, lambda: runs, "rule") == "rule"
    assert choices.quickest_on_cpu("test", facts, lambda: pytest.fail("timed again"), "rule") == "rule"
    choices._known.clear()
    runs = {"a": [clock.run(2e-3)], "b": [clock.run(1e-3)]}
    assert choices.quickest_on_cpu("test", facts, lambda: runs, "rule") == "b"


def test_few_processes_time_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timed = Clock(monkeypatch), 0
    facts = ("always disturbed", time.time_ns())

    def alternatives() -> choices.Alternatives:
        nonlocal timed
        timed += 1
        return {name: [clock.run(1e-3, 30e-3)] for name in "ab"}

    for rule in ("one", "two", "three", "four", "five"):
        assert choices.quickest_on_cpu("test", facts, alternatives, rule) == rule
        assert choices.known_choice("test", facts) == rule
        choices._known.clear()
        assert choices.known_choice("test", facts) is None
    assert timed == choices._MOST_DISTURBED


def test_slow_processors_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert choose({"a": [clock.run(6e-3)], "b": [clock.run(4e-3)]}, "slow") == "b"


def test_threads_time_once() -> None:
    """Timings at once would disturb each other, and two threads could choose differently."""
    facts = ("threads", time.time_ns())
    timed: list[int] = []

    def alternatives() -> choices.Alternatives:
        timed.append(threading.get_ident())
        time.sleep(0.05)
        return {"a": [lambda: time.sleep(0.001)]}

    ask = functools.partial(choices.quickest_on_cpu, "test", facts, alternatives, "a")
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(timed) == 1


def test_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    choose({"a": [clock.run(1e-3)], "b": [clock.run(1e-3)]}, "budget")
    assert clock.now < 0.02


def test_kept_choices_depend_on_the_headers_of_kernels() -> None:
    """Kernels of ours are alternatives, too: other versions of them may be quicker."""
    assert headers_digest() in choices.processor()


def test_alternatives_to_compile_are_timed_by_the_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one follows the rule all along."""
    clock, facts = Clock(monkeypatch), ("compiled", time.time_ns())
    monkeypatch.setattr(choices, "_seconds_waited", 0.0)
    for _ in range(2):
        wrong = functools.partial(pytest.fail, "timed")
        assert choices.choose_in_next_process("test", facts, wrong, "rule", 0.9) == ("rule", True)
    choices._known.clear()
    choices._untimed.clear()
    runs = {"a": [clock.run(2e-3)], "b": [clock.run(1e-3)]}
    assert choices.choose_in_next_process("test", facts, lambda: runs, "rule", 0.9) == ("b", False)
