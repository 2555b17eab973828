"""What frames that are left together cost to compile: not more with each call between them, nor with each place that
calls a function which breaks without a graph; and what is given up where they would be compiled again and again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base import config, counters


@pytest.fixture(autouse=True)
def anew(keep_empty_graphs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As users get it: code without a graph is not replaced."""
    monkeypatch.setattr(config, "keep_empty_graphs", False)
    stator.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*recompile_limit")
        yield


def functions(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"stator": stator, "torch": torch}
    exec(compile(source, "<functions>", "exec"), namespace)
    return namespace


def chain(innermost: str, depth: int) -> Callable[..., torch.Tensor]:
    """Functions f0 ... f{depth}, each of which calls the one before."""
    calls = [f"def f{i + 1}(x, n):\n    y = f{i}(x, n)\n    return y\n" for i in range(depth)]
    return functions(innermost + "".join(calls))[f"f{depth}"]


def captures(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> int:
    """How many frames are captured for calls that give what eager gives."""
    counters.clear()
    compiled = stator.compile(function, backend="eager")
    for arguments in calls:
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=0, atol=0)
    return counters.counts["captured_frames"]


X = torch.randn(4, generator=torch.Generator().manual_seed(5))


def test_nothing_behind_the_break_is_looked_at_once() -> None:
    """The frames run as they are, and so do those that they call."""
    innermost = "def f0(x, n):\n    x = x + 1\n    stator.graph_break()\n    return x\n"
    assert captures(chain(innermost, 10), [(X, 0)] * 3) == captures(chain(innermost, 1), [(X, 0)] * 3)


def test_a_limit_is_one_for_frames_that_go_on_together() -> None:
    """What changes is of the innermost; the frames around would be compiled again for the same reason."""
    innermost = (
        "def f0(x, n):\n"
        "    seen = []\n"
        "    for i in range(20):\n"
        "        x = x * len(seen)\n"
        "        if x.sum() > 1e9:\n"
        "            break\n"
        "        seen.append(str(i))\n"
        "        x = x + (3 if seen[-1] == '7' else 1)\n"
        "    return x\n"
    )
    few, many = (captures(chain(innermost, depth), [(X, 0)]) for depth in (1, 9))
    # each of the eight frames between finds out that it is left, and returns
    print("LIM", few, many)
    assert many <= few + 2 * 8


def test_where_nothing_is_compiled_the_frames_of_a_traceback_are_the_program_s() -> None:
    def raises() -> None:
        try:
            1 / 0  # noqa: B018
        finally:
            pass

    def lines() -> list[tuple[int, int]]:
        try:
            raises()
        except ZeroDivisionError as error:
            traceback = error.__traceback__
        found = []
        while traceback:
            found.append((traceback.tb_frame.f_code.co_firstlineno, traceback.tb_frame.f_lineno))
            traceback = traceback.tb_next
        return found[1:]

    assert stator.compile(lines, backend="eager")() == lines()


def test_those_inside_stay_compiled_where_only_the_frame_around_changes() -> None:
    source = (
        "def inner(x):\n"
        "    x = x + 1\n"
        "    stator.graph_break()\n"
        "    return x * 2\n"
        "def outer(x, word):\n"
        "    y = inner(x)\n"
        "    return y - len(word) if word != 'none' else y\n"
    )
    outer = functions(source)["outer"]
    runs: list[int] = []

    def backend(gm: Any, example_inputs: Any) -> Callable[..., Any]:
        multiplies = any(node.op == "call_function" and "mul" in str(node.target) for node in gm.graph.nodes)

        def run(*inputs: Any) -> Any:
            runs.append(multiplies)
            return gm.forward(*inputs)

        return run

    compiled = stator.compile(outer, backend=backend)
    for length in range(14):
        word = "a" * length
        runs.clear()
        assert torch.equal(compiled(X, word), outer(X, word))
    assert any(runs)  # the part of inner behind the break


def test_breaks_without_graphs_are_not_looked_at_for_each_place() -> None:
    """Five breaks, forty places: first they go on together with the caller, then in a frame of their own."""
    breaks = "".join(f"    stator.graph_break()\n    n{i} = n * {i + 2}\n" for i in range(5))
    inner = f"def inner(n):\n{breaks}    return n0 + n4\n"
    places = "".join("    x = x + 1\n    n = inner(n) % 7\n    x = x * 2\n" for _ in range(40))
    outer = functions(f"{inner}def outer(x, n):\n{places}    return x + n\n")["outer"]
    assert captures(outer, [(X.double(), 1)] * 2) < 40 * 4


def test_the_innermost_reaches_its_limit_once() -> None:
    """Words are never told apart from their values: each turn of the loop is another version."""
    innermost = (
        "def f0(x, n):\n"
        "    word = 'a'\n"
        "    for i in range(30):\n"
        "        x = x + 1\n"
        "        if x.sum() > 1e9:\n"
        "            break\n"
        "        word = word + 'a'\n"
        "        x = x + (3 if word == 'aaaa' else 1)\n"
        "    return x\n"
    )
    few, many = (captures(chain(innermost, depth), [(X, 0)]) for depth in (1, 9))
    print("LIM", few, many)
    assert many <= few + 2 * 8


def test_functions_behind_one_decorator_do_not_share_a_limit() -> None:
    """The wrapper is one code, reached where nothing around it is compiled."""
    source = (
        "def around(function):\n"
        "    def wrapper(*args, **options):\n"
        "        return function(*args, **options)\n"
        "    return wrapper\n"
        + "".join(f"@around\n@around\ndef f{at}(x):\n    return x * {at} + 1\n" for at in range(12))
        + "@stator.disable(recursive=False)\n"
        "def each(x):\n"
        f"    for function in ({', '.join(f'f{at}' for at in range(12))}):\n"
        "        x = function(x)\n"
        "    return x\n"
        "def program(x):\n"
        "    return each(x * 2) + 1\n"
    )
    program = functions(source)["program"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert captures(program, [(X,)]) == captures(program, [(X,)] * 3)


def test_functions_that_are_made_anew_share_a_limit() -> None:
    """Else a function that closes over another one, made in each call, would be compiled for ever."""
    source = (
        "def made():\n"
        "    def inner(x, word):\n"
        "        return x + len(word)\n"
        "    def outer(x, word):\n"
        "        return inner(x * 2, word)\n"
        "    return outer\n"
        "@stator.disable(recursive=False)\n"
        "def each(x):\n"
        "    for at in range(30):\n"
        "        x = made()(x, 'a' * at) / 2\n"
        "    return x\n"
        "def program(x):\n"
        "    return each(x * 2) + 1\n"
    )
    assert captures(functions(source)["program"], [(X,)]) < 25


def test_what_is_behind_a_function_that_meets_the_limit_stays_compiled() -> None:
    """The function inside relies on something that is another in each call; the one around does not."""
    source = """
def f(x, mode):
    x = x + 1
    stator.graph_break()
    return x * len(mode)

def program(x, mode):
    x = x.sin()
    y = f(x, mode)
    return y.cos() + x
"""
    program = functions(source)["program"]
    ran: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        names = " ".join(node.name for node in gm.graph.nodes)

        def run(*args: Any) -> Any:
            ran.append(names)
            return gm.forward(*args)

        return run

    compiled = stator.compile(program, backend=backend)
    for turn in range(20):
        mode = "m" * turn
        ran.clear()
        assert torch.equal(compiled(X, mode), program(X, mode))
    assert any("sin" in names for names in ran) and any("cos" in names for names in ran)
    assert not any("mul" in names for names in ran)
