"""functools.lru_cache in captured code: cached results are used, and told from results made anew."""

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

X = torch.ones(2)
Program = Callable[[torch.Tensor, int], Any]


def compare(make: Callable[[], tuple[Program, Callable[[], Any]]], numbers: list[int]) -> None:
    """Runs a program twice, once compiled: results and the state after each call are equal."""
    found = []
    for compiled in (False, True):
        program, state = make()
        run = stator.compile(program, backend="eager") if compiled else program
        found.append([(repr(run(X, number)), repr(state())) for number in numbers])
    assert found[1] == found[0]


def test_a_list_of_the_cache_is_changed() -> None:
    def make() -> tuple[Program, Callable[[], Any]]:
        @functools.lru_cache
        def cached(number: int) -> list[int]:
            return [number]

        def program(x: torch.Tensor, number: int) -> Any:
            found = cached(number)
            found.append(len(found))
            return x + len(found), list(found)

        return program, lambda: (cached(1), cached(2))

    compare(make, [1, 1, 2, 1])


def test_a_tensor_of_the_cache_is_written_to() -> None:
    def make() -> tuple[Program, Callable[[], Any]]:
        @functools.lru_cache
        def cached(number: int) -> torch.Tensor:
            return torch.full((2,), float(number))

        def program(x: torch.Tensor, number: int) -> Any:
            found = cached(number)
            found[0] += 1
            return x + found

        return program, lambda: cached(1)

    compare(make, [1, 1, 2, 1])


def test_a_cached_result_leaves_as_the_cached_object() -> None:
    @functools.lru_cache
    def cached(number: int) -> list[int]:
        return [number]

    compiled = stator.compile(lambda x, number: (x + 1, cached(number)), backend="eager")
    for _ in range(2):
        assert compiled(X, 3)[1] is cached(3)


def test_two_calls_give_one_object() -> None:
    @functools.lru_cache
    def cached(number: int) -> dict[str, int]:
        return {"number": number}

    compiled = stator.compile(lambda x, number: (x + 1, cached(number) is cached(number)), backend="eager")
    assert compiled(X, 3)[1]


def test_a_method_that_counts_its_calls() -> None:
    class Counts:
        computed = 0

        @functools.lru_cache  # noqa: B019
        def method(self, number: int) -> int:
            self.computed += 1
            return number

    def make() -> tuple[Program, Callable[[], Any]]:
        one = Counts()
        return lambda x, number: x + one.method(number), lambda: one.computed

    compare(make, [1, 1, 2, 1])


def test_containers_that_stay_inside_are_part_of_the_graph() -> None:
    @functools.lru_cache
    def sizes(text: str) -> tuple[list[int], dict[str, torch.Tensor]]:
        return [int(part) for part in text.split()], {"table": torch.arange(2.0)}

    def program(x: torch.Tensor) -> torch.Tensor:
        found, tables = sizes("3 4")
        return x.sum() + sum(found) + tables["table"]

    torch.testing.assert_close(stator.compile(program, backend="eager", fullgraph=True)(X), program(X))


def test_a_cache_that_keeps_nothing() -> None:
    def make() -> tuple[Program, Callable[[], Any]]:
        log: list[int] = []

        @functools.lru_cache(maxsize=0)
        def cached(number: int) -> int:
            log.append(number)
            return number

        return lambda x, number: x + cached(number), lambda: log

    compare(make, [1, 1, 2])


def test_a_cached_function_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    """`logger.warning_once` of transformers: the cache drops repeated messages."""
    logger = logging.getLogger(__name__)

    def make() -> Any:
        @functools.lru_cache(None)
        def warning_once(logger: logging.Logger, text: str) -> None:
            logger.warning(text)

        def program(x: torch.Tensor, number: int) -> torch.Tensor:
            warning_once(logger, "first")
            y = x + 1
            warning_once(logger, f"number {number}")
            warning_once(logger, "first")
            return y

        return program

    said = []
    for program in (stator.compile(make(), backend="eager", fullgraph=True), make()):
        caplog.clear()
        for number in (1, 1, 2, 1, 3, 3):
            torch.testing.assert_close(program(X, number), X + 1)
        said.append([record.getMessage() for record in caplog.records])
    assert said[0] == said[1] == ["first", "number 1", "number 2", "number 3"]


# ---- entries of the cache decide ----

SCALE = [2]


class Holder:
    scale = 2

    @functools.lru_cache  # noqa: B019
    def scaled(self, number: int) -> int:
        return self.scale * number


def _cached_forms() -> dict[str, tuple[Any, Callable[[Any, int], Any]]]:
    """Cached functions, each with a program that calls it."""

    @functools.lru_cache(maxsize=3)
    def bounded(number: int, *, by: int = 1) -> int:
        return SCALE[0] * number * by

    @functools.lru_cache(None)
    def unbounded(number: int) -> int:
        return SCALE[0] * number

    @functools.lru_cache(typed=True)
    def typed(name: str, pair: tuple[int, float]) -> float:
        return SCALE[0] * pair[0] + len(name)

    @functools.lru_cache
    def listed(number: int) -> list[int]:
        return [SCALE[0]] * number

    @functools.lru_cache
    def tensor(number: int) -> torch.Tensor:
        return torch.full((2,), float(SCALE[0] * number))

    @functools.lru_cache(maxsize=1)
    def single(number: int) -> int:
        return SCALE[0] * number

    return {
        "bounded": (bounded, lambda x, number: x + bounded(number, by=2)),
        "unbounded": (unbounded, lambda x, number: x + unbounded(number)),
        "typed": (typed, lambda x, number: x + typed("one", (number, 1.0))),
        "listed": (listed, lambda x, number: (x + sum(listed(number)), listed(number))),
        "tensor": (tensor, lambda x, number: x + tensor(number)),
        "single": (single, lambda x, number: x + single(number) * single(number + 1)),
    }


@pytest.mark.parametrize("name", ["bounded", "unbounded", "typed", "listed", "tensor", "single"])
def test_a_cache_that_was_cleared_and_filled_again(name: str) -> None:
    found = []
    for compiled in (False, True):
        cached, program = _cached_forms()[name]
        run = stator.compile(program, backend="eager") if compiled else program
        log = []
        for scale, clear in ((2, False), (2, False), (5, False), (5, True), (7, False), (7, True), (7, False)):
            SCALE[0] = scale
            if clear:
                cached.cache_clear()
                for number in (4, 5):
                    program(X, number)
            log.append((repr(run(X, 3)), cached.cache_info().misses))
        found.append(log)
    assert found[1] == found[0]


def test_an_entry_for_an_object_is_used() -> None:
    found = []
    for compiled in (False, True):
        one = Holder()
        program = lambda x, one=one: x + one.scaled(3)  # noqa: E731
        run = stator.compile(program, backend="eager") if compiled else program
        log = []
        for scale, clear in ((2, False), (3, False), (4, True), (5, False)):
            if clear:
                Holder.scaled.cache_clear()
            one.scale = scale
            one.scaled(3)
            log.append(repr(run(X)))
        found.append(log)
    assert found[1] == found[0]


def test_an_entry_for_an_object_keeps_what_the_first_call_read() -> None:
    found = []
    for compiled in (False, True):
        Holder.scaled.cache_clear()
        one = Holder()
        program = lambda x, one=one: x + one.scaled(3)  # noqa: E731
        run = stator.compile(program, backend="eager") if compiled else program
        log = []
        for scale in (2, 3, 4):
            one.scale = scale
            log.append(repr(run(X)))
        found.append(log)
    assert found[1] == found[0]


@functools.lru_cache
def noise(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randn(shape[1])


def test_each_size_has_its_entry() -> None:
    found = []
    for compiled in (False, True):
        noise.cache_clear()
        torch.manual_seed(0)
        program = lambda x: x + noise((2, x.shape[1]))  # noqa: E731
        run = stator.compile(program, backend="eager") if compiled else program
        found.append([run(torch.ones(3, size)).tolist() for size in (5, 7, 9, 7, 5, 11)])
    assert found[1] == found[0]


@pytest.mark.fixed_sizes
def test_a_cache_by_sizes_needs_no_version_for_each() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + noise((2, x.shape[1]))

    noise.cache_clear()
    run = stator.compile(program, backend="eager")
    for size in (5, 7, 9):
        run(torch.ones(3, size))
    compiled = counters.counts["frames"]
    for size in (11, 13, 17):
        run(torch.ones(3, size))
    assert counters.counts["frames"] == compiled


def test_a_function_that_is_first_called_behind_a_change_that_it_reads() -> None:
    def make() -> tuple[Program, Callable[[], Any]]:
        scale = [2]

        @functools.lru_cache
        def cached(number: int) -> int:
            return scale[0] * number

        def program(x: torch.Tensor, number: int) -> torch.Tensor:
            scale[0] = 9
            return x + cached(number)

        return program, lambda: (cached.cache_info().misses, scale)

    compare(make, [1, 1, 2, 1])


KINDS: dict[type, str] = {}


@functools.lru_cache
def recipe(axes: str) -> tuple[int, ...]:
    known = frozenset("abc").__contains__
    return tuple(index for index, name in enumerate(axes) if known(name))


def test_under_fullgraph_a_function_behind_a_change_is_followed() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        KINDS[type(x)] = "noted by the first call"
        return x.sum(recipe("bxa"))

    KINDS.clear()
    recipe.cache_clear()
    x = torch.arange(24.0).reshape(2, 3, 4)
    found = stator.compile(program, backend="eager", fullgraph=True)(x)
    assert KINDS and torch.equal(found, program(x))


def test_a_cached_dictionary_that_changes() -> None:
    def make() -> tuple[Program, Callable[[], Any]]:
        @functools.lru_cache
        def cached(number: int) -> dict[int, int]:
            return {}

        def program(x: torch.Tensor, number: int) -> torch.Tensor:
            cached(0)[number] = len(cached(0))
            return x + len(cached(0))

        return program, lambda: cached(0)

    compare(make, [1, 1, 2, 1])


# ---- variables of the frame as a dictionary ----


def written(x: torch.Tensor, number: int) -> Any:
    local = 3
    found = locals()
    found["local"], found["other"] = number, 1
    return x + local, sorted(locals())


def asked_twice(x: torch.Tensor, number: int) -> Any:
    local = number
    first = locals()
    local = local + 1
    second = locals()
    return x + first["local"], first is second, sorted(second), local


def in_a_loop(x: torch.Tensor, number: int) -> Any:
    seen: list[Any] = []
    for turn in range(3):
        x = x + turn
        seen.append(locals())
    return x, [one["turn"] for one in seen], seen[0] is seen[1]


@pytest.mark.parametrize("program", [written, asked_twice, in_a_loop])
def test_locals_of_the_frame(program: Any) -> None:
    compiled = stator.compile(program, backend="eager")
    for number in (1, 2):
        assert repr(compiled(X, number)) == repr(program(X, number)), sys.version


def test_a_wrapper_that_functools_did_not_finish_is_called() -> None:
    cached = functools._lru_cache_wrapper(lambda number: number + 3, 8, False, None)  # type: ignore[attr-defined]
    assert not hasattr(cached, "__wrapped__")
    assert torch.equal(stator.compile(lambda x: x * cached(2), backend="eager")(X), X * 5)


def test_what_a_program_puts_into_wrapped_is_not_what_is_called() -> None:
    @functools.lru_cache
    def cached(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    cached.__wrapped__ = lambda x: x + 100  # type: ignore[method-assign]
    assert torch.equal(stator.compile(lambda x: cached(x) * 2, backend="eager")(X), (X + 1) * 2)
