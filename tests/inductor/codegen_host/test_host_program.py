"""Printed host programs: right results against eager, memory that never leaks out, safety under threads and errors."""

from __future__ import annotations

import dataclasses
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "program"))

from handmade import Graph, View, layout

from stator.base import logs
from stator.base.errors import VerificationError
from stator.inductor.codegen.host import build_cpu_kernels, execute, load, load_dumped, print_host
from stator.inductor.codegen.host.literals import NotLiteral, literal
from stator.inductor.program import plan, verify_program
from stator.inductor.program.steps import KernelSource
from stator.runtime.host import Binder
from stator.runtime.memory import arena

aten = torch.ops.aten
TRANSPOSED = layout(4, 3, stride=(1, 4))

_library = torch.library.Library("stator_tests", "DEF")
_library.define("same(Tensor x) -> Tensor")
_library.impl("same", lambda x: x, "CPU")
_library.define("watched(Tensor x) -> Tensor")
_watchers: list[Callable[[], None]] = []
_library.impl("watched", lambda x: [watcher() for watcher in _watchers] and x + 1, "CPU")


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def compiled(
    graph: Graph, *outputs: Any, static: tuple[str, ...] = (), **options: Any
) -> Callable[..., tuple[Any, ...]]:
    program = plan(*graph.finish(*outputs), static, **options)
    verify_program(program)
    return load(print_host(program), build_cpu_kernels(list(program.kernels.values())))


def test_kernels_calls_and_views_in_one_program() -> None:
    graph = Graph()
    graph.input("x", 8, 4), graph.input("w", 3, 4), graph.input("b", 8, 4)
    graph.add("b0", "x", "b")
    graph.add("b1", "b0", "b")
    graph.call(("b2",), ((8, 3),), aten.mm.default, "b1", View("w", TRANSPOSED), style="out")
    graph.add("b3", "b2", "b2")
    graph.call(("b4", None), ((8, 3), (8, 3)), aten.sort.default, "b3", -1)
    graph.add("b5", "b4", "b3")
    function = compiled(graph, "b5", View("b5", layout(3, 8, stride=(1, 3))), static=("w",))
    weight = torch.nn.Parameter(torch.randn(3, 4))
    for _ in range(3):
        x, b = torch.randn(8, 4), torch.randn(8, 4)
        result, transposed = function(x, weight, b)
        doubled = ((x + b + b) @ weight.detach().t()) * 2
        torch.testing.assert_close(result, doubled.sort(-1)[0] + doubled)
        assert torch.equal(transposed, result.t()) and not result.requires_grad


@pytest.mark.parametrize("static", [(), ("w",)])
def test_swapping_a_parameters_data_is_seen(static: tuple[str, ...]) -> None:
    graph = Graph()
    graph.input("x", 8, 4), graph.input("w", 3, 4)
    graph.call(("b0",), ((8, 3),), aten.mm.default, "x", View("w", TRANSPOSED), style="out")
    function = compiled(graph, "b0", static=static)
    x, weight = torch.randn(8, 4), torch.nn.Parameter(torch.randn(3, 4))
    for _ in range(3):
        torch.testing.assert_close(function(x, weight)[0], x @ weight.detach().t())
        weight.data = torch.randn(3, 4)


def test_views_start_where_their_base_starts_and_have_offsets() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    top, left = View("x", layout(2, 4)), View("x", layout(4, 2, stride=(4, 1)))
    graph.call(("b0",), ((2, 2),), aten.mm.default, top, left, style="out")
    graph.add("b1", "x", "x")
    lower = View("b1", dataclasses.replace(layout(4, 2, stride=(1, 4)), offset=8))
    graph.call(("b2",), ((2, 2),), aten.mm.default, View("b1", layout(2, 4)), lower, style="out")
    x = torch.randn(10, 4)[3:7]  # an input that does not start its storage
    first, second = compiled(graph, "b0", "b2")(x)
    torch.testing.assert_close(first, x[:2] @ x[:, :2])
    torch.testing.assert_close(second, 4 * x[:2] @ x[2:4].t())


def test_constants_are_bound_and_their_views_made_once() -> None:
    graph = Graph()
    graph.input("x", 8, 4)
    weight = torch.randn(3, 4)
    graph.constant("c", weight)
    graph.call(("b0",), ((8, 3),), aten.mm.default, "x", View("c", TRANSPOSED), style="out")
    function = compiled(graph, "b0", "c")
    x = torch.randn(8, 4)
    result, constant = function(
        x,
    )
    torch.testing.assert_close(result, x @ weight.t())
    constant.zero_()  # the caller's copy
    torch.testing.assert_close(function(x)[0], x @ weight.t())


def test_a_kernel_may_change_an_input() -> None:
    graph = Graph()
    graph.input("x", 8), graph.input("y", 8)
    graph.add("b0", "x", "y", mutates="x")
    function = compiled(graph, "b0")
    x, y = torch.randn(8), torch.randn(8)
    expected = x + y
    (result,) = function(x, y)
    assert result is x
    torch.testing.assert_close(x, expected)


def test_a_call_may_change_a_buffer() -> None:
    graph = Graph()
    graph.input("x", 8)
    graph.add("b0", "x", "x")
    graph.call((), (), aten.mul_.Scalar, "b0", 3.0, style="mutates", mutates=("b0",))
    graph.add("b1", "b0", "x")
    function = compiled(graph, "b1")
    x = torch.randn(8)
    torch.testing.assert_close(function(x)[0], 7 * x)


def test_lists_and_plain_values_go_through_and_tuples_are_unpacked() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    graph.add("b0", "x", "x")
    graph.call(("b1",), ((6, 4),), aten.cat.default, ["x", View("b0", layout(2, 4))], 0)
    graph.call(("b2", "b3"), (layout(4, 2, stride=(4, 1)), layout(4, 2, stride=(4, 1))), aten.split.Tensor, "x", 2, 1)
    graph.call(("b4", None), ((4,), (4,)), aten.max.dim, "x", 1)
    x = torch.randn(4, 4)
    *tensors, number, nothing, text = compiled(graph, "b1", "b2", "b3", "b4", 7, None, "text")(x)
    for got, expected in zip(tensors, (torch.cat([x, 2 * x[:2]]), *x.split(2, 1), x.max(1)[0]), strict=True):
        torch.testing.assert_close(got, expected)
    assert (number, nothing, text) == (7, None, "text")


def test_a_call_that_returns_other_strides_than_promised_is_repaired_and_said() -> None:
    graph = Graph()
    graph.input("x", 4, 3)
    graph.call(("b0",), ((3, 4),), lambda x: x.t(), "x")
    graph.add("b1", "b0", "b0")
    function = compiled(graph, "b1", "b0")
    logs.forget_warnings()
    with pytest.warns(RuntimeWarning, match="b0 was promised"):
        function(torch.randn(4, 3))
    for _ in range(3):
        x = torch.randn(4, 3)
        result, copied = function(x)
        torch.testing.assert_close(result, 2 * x.t())
        assert copied.is_contiguous() and torch.equal(copied, x.t())


def test_a_call_that_returns_another_size_or_dtype_than_promised_is_an_error() -> None:
    for target in (lambda x: x[:2], lambda x: x.double(), lambda x: [x]):
        graph = Graph()
        graph.input("x", 4, 3)
        graph.call(("b0",), ((4, 3),), target, "x")
        with pytest.raises(VerificationError, match="b0 was promised"):
            compiled(graph, "b0")(torch.randn(4, 3))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_result_that_does_not_fit_its_buffer_is_an_error() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    graph.call(("b0",), ((4, 3),), aten.mm.default, "x", "x", style="out")
    graph.add("b1", "b0", "b0")
    with pytest.raises(VerificationError, match=r"b0 was promised as .4, 3."):
        compiled(graph, "b1")(torch.randn(4, 4))


def test_keywords_that_are_the_default_are_left_out() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    graph.call(("b0",), ((4, 4),), aten.addmm.default, "x", "x", "x", beta=1, alpha=2, style="out")
    program = plan(*graph.finish("b0"))
    assert "(x, x, x, alpha=2, out=b0)" in print_host(program).text
    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(graph, "b0")(x)[0], x + 2 * x @ x)


def test_an_operator_that_returns_its_argument_unannounced_does_not_leak_intermediates() -> None:
    """Such results would be overwritten by the next call."""
    graph = Graph()
    graph.input("x", 4)
    graph.add("b0", "x", "x")
    graph.call(("b1",), ((4,),), torch.ops.stator_tests.same.default, "b0")
    function = compiled(graph, "b1")
    logs.forget_warnings()
    with pytest.warns(RuntimeWarning, match="in memory of others"):
        first = function(torch.ones(4))[0]
    function(torch.zeros(4))
    assert torch.equal(first, torch.full((4,), 2.0))


def test_operators_known_to_return_views_need_no_copies() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    graph.add("b0", "x", "x")
    graph.call(("b1",), ((16,),), aten._unsafe_view.default, "b0", [16])
    graph.add("b2", "b1", "b1")
    function = compiled(graph, "b2", "b1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logs.forget_warnings()
        kept = function(torch.ones(4, 4))[1]
        function(torch.zeros(4, 4))
    assert torch.equal(kept, torch.full((16,), 2.0))


def test_programs_run_as_traced_under_autocast_and_grad() -> None:
    graph = Graph()
    graph.input("x", 4, 4), graph.input("w", 4, 4)
    graph.call(("b0",), ((4, 4),), aten.mm.default, "x", "w")
    function = compiled(graph, "b0")
    x, weight = torch.randn(4, 4), torch.nn.Parameter(torch.randn(4, 4))
    with torch.autocast("cpu"):
        (result,) = function(x, weight)
    assert result.dtype == torch.float32 and not result.requires_grad


def test_calls_alternate_between_modes_of_torch() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    graph.add("b0", "x", "x")
    graph.call(("b1",), ((4, 4),), aten.mm.default, "b0", "x", style="out")
    graph.add("b2", "b1", "b1")
    graph.call(("b3",), ((4, 4),), aten.mm.default, "b2", View("x", layout(4, 4, stride=(1, 4))), style="out")
    function = compiled(graph, "b3", "b1", static=("x",))
    x = torch.randn(4, 4)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.inference_mode, torch.no_grad):
        with mode():
            result, _ = function(x)
            torch.testing.assert_close(result, 4 * x @ x @ x.t())
            result.add_(1.0)


def test_inputs_may_be_called_like_words_of_the_text() -> None:
    graph = Graph()
    names = ["rt", "block", "class", "kernel_0", "arena", "torch", "take", "0", "a.b", "a_b"]
    for name in names:
        graph.input(name, 4)
    graph.add("call", *names)
    graph.add("token", "call", "rt")
    values = [torch.randn(4) for _ in names]
    torch.testing.assert_close(compiled(graph, "token")(*values)[0], sum(values) + values[0])


def test_overlapping_calls_from_threads_do_not_share_intermediates() -> None:
    graph = Graph()
    graph.input("x", 4096)
    graph.add("b0", "x", "x")
    graph.call(("b1",), ((4096,),), aten.sin.default, "b0")
    graph.add("b2", "b1", "b0")
    function = compiled(graph, "b2")
    wrong = []

    def work(seed: int) -> None:
        x = torch.randn(4096, generator=torch.Generator().manual_seed(seed))
        expected = (2 * x).sin() + 2 * x
        for _ in range(200):
            if not torch.allclose(function(x)[0], expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_program_called_from_within_itself_keeps_its_intermediates() -> None:
    depth = []
    graph = Graph()
    graph.input("x", 8)
    graph.add("b0", "x", "x")

    def again(value: torch.Tensor) -> torch.Tensor:
        if len(depth) < 3:
            depth.append(1)
            function(torch.full((8,), 100.0))
        return value.clone()

    graph.call(("b1",), ((8,),), again, "b0")
    graph.add("b2", "b1", "b0")
    function = compiled(graph, "b2")
    x = torch.randn(8)
    torch.testing.assert_close(function(x)[0], 4 * x)
    assert len(depth) == 3


def test_an_error_in_a_call_leaves_the_program_usable() -> None:
    fail = [True]

    def picky(value: torch.Tensor) -> torch.Tensor:
        if fail[0]:
            raise ValueError("on purpose")
        return value.clone()

    graph = Graph()
    graph.input("x", 8)
    graph.add("b0", "x", "x")
    graph.call(("b1",), ((8,),), picky, "b0")
    function = compiled(graph, "b1")
    with pytest.raises(ValueError, match="on purpose"):
        function(torch.ones(8))
    fail[0] = False
    assert torch.equal(function(torch.ones(8))[0], torch.full((8,), 2.0))


def test_steady_calls_take_no_new_memory_for_intermediates() -> None:
    graph = Graph()
    graph.input("x", 1 << 20)
    graph.add("b0", "x", "x")
    graph.add("b1", "b0", "x", shifted=True)
    function = compiled(graph, "b1")
    x = torch.zeros(1 << 20)
    function(x)
    before = arena.idle_bytes()
    for _ in range(5):
        function(x)
    assert arena.idle_bytes() == before > 0


def test_the_text_runs_again_by_itself() -> None:
    graph = Graph()
    graph.input("x", 8)
    graph.add("b0", "x", "x")
    program = plan(*graph.finish("b0"))
    text = print_host(program).text
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    assert namespace["KERNELS"] == ["add2_8"]
    source = program.kernels["add2_8"].source
    built = build_cpu_kernels([KernelSource(symbol, symbol, source, "cpp") for symbol in namespace["KERNELS"]])
    x = torch.randn(8)
    torch.testing.assert_close(execute(text, Binder(built, {}, {}))(x)[0], 2 * x)


def test_a_dumped_folder_runs_again_also_when_edited(tmp_path: Path) -> None:
    graph = Graph()
    graph.input("x", 8)
    graph.add("b0", "x", "x")
    graph.add("b1", "b0", "x", "x")
    program = plan(*graph.finish("b1"))
    (tmp_path / "60_code.py").write_text(print_host(program).text)
    kernels = "\n".join(kernel.source for kernel in program.kernels.values())
    (tmp_path / "60_code.cpp").write_text(kernels)
    x = torch.randn(8)
    torch.testing.assert_close(load_dumped(tmp_path)(x)[0], 4 * x)
    (tmp_path / "60_code.cpp").write_text(kernels.replace(" + ", " - "))
    torch.testing.assert_close(load_dumped(tmp_path)(x)[0], -2 * x)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -2.5, float("inf"), -float("inf"), "it's", 1 + 2j, torch.float16, torch.strided),
        *(torch.channels_last, torch.device("cpu"), torch.device("cuda:1"), (1,), (), [1, [2.0, None]], {"a": (1, 2)}),
    ],
)
def test_literals_evaluate_to_themselves(value: Any) -> None:
    names = {"torch": torch, "inf": float("inf"), "nan": float("nan"), "device": torch.device}
    assert eval(literal(value), names) == value


def test_what_has_no_text_is_said_so() -> None:
    assert literal(float("nan")) == "nan"
    with pytest.raises(NotLiteral):
        literal(object())


def test_boxed_inputs_are_gone_after_their_last_use() -> None:
    alive: list[list[bool]] = []
    references: list[Any] = []

    watched = torch.ops.stator_tests.watched.default
    _watchers[:] = [lambda: alive.append([reference() is not None for reference in references])]
    graph = Graph()
    graph.input("x", 8), graph.input("y", 8), graph.input("unread", 8)
    graph.call(("b0",), ((8,),), watched, "x")
    graph.call(("b1",), ((8,),), watched, "b0")
    graph.add("b2", "b1", "y")
    graph.call(("b3",), ((8,),), watched, "b2")
    function = compiled(graph, "b3", boxed=True)
    assert function.boxed
    for _ in range(2):
        inputs = [torch.randn(8) for _ in range(3)]
        expected = inputs[0] + inputs[1] + 3
        references[:] = [weakref.ref(tensor) for tensor in inputs]
        (result,) = function(inputs)
        assert inputs == []
        torch.testing.assert_close(result, expected)
    assert alive[:3] == alive[3:] == [[True, True, False], [False, True, False], [False, False, False]]


def test_large_intermediates_outside_of_the_arena() -> None:
    graph = Graph()
    graph.input("x", 1 << 19), graph.input("small", 64)
    for number in range(6):
        graph.add(f"b{number}", "x", f"b{number - 1}" if number else "x", shifted=number % 3 == 0)
        graph.add(f"s{number}", "small", f"s{number - 1}" if number else "small")
    options: dict[str, Any] = {"arena_share": 1e-3}
    x, small = torch.randn(1 << 19), torch.randn(64)
    expected = compiled(graph, "b5", "s5")(x, small)
    limited = compiled(graph, "b5", "s5", **options)
    results = [limited(x, small) for _ in range(3)]
    for result in results:
        for actual, wanted in zip(result, expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=0, atol=0)
    assert len({tensor.data_ptr() for result in results for tensor in result}) == 6
