"""Random numbers of Python and NumPy, clocks, facts of the process in captured code: never those of the capture."""

from __future__ import annotations

import datetime
import os
import random
import secrets
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stator

GENERATOR = random.Random(7)
NUMPY_GENERATOR = np.random.default_rng(7)


class Halved(random.Random):
    def random(self) -> float:
        return super().random() / 2


HALVED = Halved(3)


def one(x: torch.Tensor) -> Any:
    return x + random.random()


def several(x: torch.Tensor) -> Any:
    first, second = random.random(), random.random()
    return x * second - first, first, second * 2 + 1


def unused(x: torch.Tensor) -> Any:
    random.random()
    y = x + 1
    random.random()
    return y * random.random()


def uniform(x: torch.Tensor) -> Any:
    return x + random.uniform(-2, 3), random.uniform(0, 1)


def decided(x: torch.Tensor) -> Any:
    kept = [value for value in (1.0, 2.0, 3.0, 4.0) if random.random() < 0.6]
    return x + sum(kept), kept, random.random()


def whole(x: torch.Tensor) -> Any:
    items = [1, 2, 3, 4, 5]
    random.shuffle(items)
    return x + random.randint(1, 100), items, random.choice(items), random.sample(items, 2), random.gauss(0, 1)


def own_generator(x: torch.Tensor) -> Any:
    return x * GENERATOR.random() + random.random(), GENERATOR.random(), GENERATOR.random()


def made_inside(x: torch.Tensor) -> Any:
    generator = random.Random(5)
    return x + generator.random() + random.random()


def seeded_inside(x: torch.Tensor) -> Any:
    before = random.random()
    random.seed(11)
    return x + before + random.random()


def saved_state(x: torch.Tensor) -> Any:
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return x + first, random.random() - first


def counted_samples(x: torch.Tensor) -> Any:
    return x + len(random.sample(["a", "b"], k=3, counts=[2, 4]))


def overridden(x: torch.Tensor) -> Any:
    return x + HALVED.random(), HALVED.uniform(1, 2)


def in_a_container(x: torch.Tensor) -> Any:
    pair = [random.random(), {"a": random.random()}]
    pair.append(pair[0])
    return x + 1, pair


def of_numpy(x: torch.Tensor) -> Any:
    return x + np.random.rand(), x * np.random.randint(1, 10), NUMPY_GENERATOR.random(), np.random.permutation(4)


def floats_of_numpy(x: torch.Tensor) -> Any:
    first = np.random.uniform(0, 2)
    return x * np.random.rand() + first, np.random.normal(1.0, 0.5), np.random.random(), np.random.uniform(), first


def refused_by_numpy(x: torch.Tensor) -> Any:
    try:
        return x + np.random.normal(0.0, -1.0)
    except ValueError:
        return x - np.random.uniform(-1, 1)


def broken_around(x: torch.Tensor) -> Any:
    first = random.random()
    stator.graph_break()
    return x * random.random() + first


def of_torch(x: torch.Tensor) -> Any:
    return torch.rand(3) + random.random() + torch.rand(3)


PROGRAMS = [
    one,
    several,
    unused,
    uniform,
    decided,
    whole,
    own_generator,
    made_inside,
    seeded_inside,
    saved_state,
    counted_samples,
    overridden,
    in_a_container,
    of_numpy,
    floats_of_numpy,
    refused_by_numpy,
    broken_around,
]


def seed_everything() -> None:
    global NUMPY_GENERATOR
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    GENERATOR.seed(2)
    HALVED.seed(3)
    NUMPY_GENERATOR = np.random.default_rng(7)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value


def sequence(function: Callable[..., Any]) -> list[Any]:
    seed_everything()
    found: list[Any] = []
    for at in range(4):
        result = function(torch.arange(3.0) + at)
        found.append([plain(part) for part in result] if isinstance(result, tuple) else plain(result))
    return [*found, random.getstate(), GENERATOR.getstate(), HALVED.getstate(), np.random.get_state()[1].tolist()]


@pytest.mark.parametrize(
    ("program", "backend"),
    [*((program, backend) for program in PROGRAMS for backend in ("eager", "inductor")), (of_torch, "eager")],
)
def test_numbers_and_states_are_those_of_eager(program: Any, backend: str) -> None:
    wanted = sequence(program)
    got = sequence(stator.compile(program, backend=backend))
    assert got[4:] == wanted[4:]
    for mine, its in zip(got[:4], wanted[:4], strict=True):
        assert flat(mine) == pytest.approx(flat(its), rel=1e-5)


def flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        return flat(list(value.values()))
    return [number for item in value for number in flat(item)] if isinstance(value, (list, tuple)) else [value]


def test_arguments_that_a_method_does_not_take_raise_as_in_eager() -> None:
    @stator.compile(backend="eager")
    def seeded(x: torch.Tensor) -> Any:
        random.seed(1, 2, 3, 4)  # type: ignore[call-arg]
        return x

    with warnings.catch_warnings(), pytest.raises(TypeError, match="positional arguments"):
        warnings.simplefilter("error")
        seeded(torch.zeros(3))


@pytest.mark.parametrize("program", [one, several, unused, uniform, own_generator, in_a_container])
def test_floats_are_drawn_without_a_break_and_without_recompiling(program: Any) -> None:
    wanted = sequence(program)
    compiled = stator.compile(program, backend="eager", fullgraph=True)
    compiled(torch.zeros(3))
    with stator.assert_no_recompile():
        assert flat(sequence(compiled)[:4]) == pytest.approx(flat(wanted[:4]), rel=1e-5)


def test_compiling_draws_nothing() -> None:
    random.seed(4)
    first, second = random.random(), random.random()
    compiled = stator.compile(several, backend="eager")
    random.seed(4)
    assert compiled(torch.zeros(1))[1] == first
    after = random.getstate()
    random.seed(4)
    assert (random.random(), random.random()) == (first, second)
    assert random.getstate() == after


# ---- what changes by itself ----

CHANGING: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x + time.time(),
    lambda x: x + time.perf_counter(),
    lambda x: x + time.monotonic_ns(),
    lambda x: x + time.process_time_ns(),
    lambda x: x + datetime.datetime.now().timestamp(),
    lambda x: x + uuid.uuid4().int % 1000003,
    lambda x: x + int.from_bytes(os.urandom(3), "big"),
    lambda x: x + secrets.randbelow(10**6),
    lambda x: x + random.SystemRandom().random(),
    lambda x: x + np.random.rand(),
    lambda x: x + torch.rand(()).item(),
]


@pytest.mark.parametrize("at", range(len(CHANGING)))
def test_what_changes_by_itself_is_another_one_in_each_call(at: int) -> None:
    compiled = stator.compile(CHANGING[at], backend="eager")
    seen = set()
    for _ in range(4):
        seen.add(compiled(torch.zeros(1, dtype=torch.float64)).item())
        time.sleep(0.002)
    assert len(seen) >= 3


# ---- what something else changes ----

HELD: list[Any] = []


def _environment(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_TEST_NUMBER", str(step))


def _recursion(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.setrecursionlimit(2000 + step)


class _Limit:
    value = 0


HELD_LIMIT = _Limit()

CHANGED: dict[str, tuple[Callable[..., Any], Callable[[int, pytest.MonkeyPatch], None]]] = {
    "environ.get": (lambda x: x + float(os.environ.get("STATOR_TEST_NUMBER", "0")), _environment),
    "environ[]": (lambda x: x + float(os.environ["STATOR_TEST_NUMBER"]), _environment),
    "getenv": (lambda x: x + float(os.getenv("STATOR_TEST_NUMBER", "0")), _environment),
    "in environ": (
        lambda x: x + ("STATOR_TEST_OTHER" in os.environ),
        lambda step, monkeypatch: monkeypatch.setenv("STATOR_TEST_OTHER", "1") if step == 1 else None,
    ),
    "getrecursionlimit": (lambda x: x + sys.getrecursionlimit(), _recursion),
    "getrefcount": (lambda x: x + sys.getrefcount(HELD_LIMIT), lambda step, monkeypatch: HELD.append(HELD_LIMIT)),
    "argv": (
        lambda x: x + len(sys.argv),
        lambda step, monkeypatch: monkeypatch.setattr(sys, "argv", [*sys.argv, "more"]),
    ),
    "modules": (
        lambda x: x + ("stator_no_such_module" in sys.modules),
        lambda step, monkeypatch: monkeypatch.setitem(sys.modules, "stator_no_such_module", sys) if step else None,
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_something_else_changes_is_read_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, change = CHANGED[name]
    compiled, limit = stator.compile(function, backend="eager"), sys.getrecursionlimit()
    try:
        for step in range(4):
            change(step, monkeypatch)
            x = torch.zeros(2)
            assert torch.equal(compiled(x), function(x))
    finally:
        sys.setrecursionlimit(limit)


def test_files_are_read_anew(tmp_path: Any) -> None:
    path = tmp_path / "number"

    def run(x: torch.Tensor) -> torch.Tensor:
        with open(path) as file:
            return x + float(file.read())

    compiled = stator.compile(run, backend="eager")
    for number in (1, 2, 3):
        path.write_text(str(number))
        assert compiled(torch.zeros(1)).item() == number


def test_identities_are_those_of_the_call() -> None:
    def run(x: torch.Tensor, owner: Any) -> Any:
        return x + 1, id(x), id(owner), hash(owner)

    compiled = stator.compile(run, backend="eager")
    kept = [(torch.zeros(1), _Limit()) for _ in range(4)]
    for x, owner in kept:
        assert compiled(x, owner)[1:] == run(x, owner)[1:]


def test_the_thread_is_the_one_that_calls() -> None:
    def run(x: torch.Tensor) -> Any:
        return x + 1, threading.get_ident()

    compiled = stator.compile(run, backend="eager")
    found: list[bool] = []

    def call() -> None:
        found.append(compiled(torch.zeros(1))[1] == threading.get_ident())

    for _ in range(3):
        thread = threading.Thread(target=call)
        thread.start()
        call()
        thread.join()
    assert found == [True] * 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_its_own_number() -> None:
    def run(x: torch.Tensor) -> Any:
        return x + 1, os.getpid()

    compiled = stator.compile(run, backend="eager")
    assert compiled(torch.zeros(1))[1] == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if compiled(torch.zeros(1))[1] == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_numbers_by_which_speech_models_skip_layers_stay_in_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * np.random.uniform(0, 1) + np.random.random()

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    assert sequence(compiled) == sequence(program)


def test_a_generator_under_fullgraph_says_what_to_do() -> None:
    def shuffled(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x[torch.randperm(x.shape[0], generator=generator)]

    compiled = stator.compile(shuffled, fullgraph=True)
    with pytest.raises(stator.Unsupported, match="draw from it outside and pass the numbers in"):
        compiled(torch.randn(4), torch.Generator())
