"""The functionalizing tracer: functional graphs whose replay is bit-equal to eager; places, constants, randomness."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.models import NAMES, build, tensors_of
from torch import fx
from torch._ops import OpOverload

from stator.base.errors import CompileError, Unsupported, UserPlace
from stator.graph.fake.fake_mode import DataDependent
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.ir.schema import op_info
from stator.graph.ir.traced import (
    Fresh,
    InputItself,
    OutputValue,
    SameAs,
    Traced,
    ViewOfConstant,
    ViewOfInput,
    ViewOfOutput,
)
from stator.graph.printer import load_graph, print_graph
from stator.graph.tracing.tracer import trace
from stator.graph.verifier import verify

aten = torch.ops.aten


def keep_all(target: OpOverload) -> bool:
    return True


def traced_and_verified(function: Callable[..., Any], inputs: list[Any], keep: Any = keep_all) -> Traced:
    traced = trace(function, inputs, keep=keep)
    verify(traced.graph)
    for node in traced.graph.graph.nodes:
        if isinstance(node.target, OpOverload):
            assert not op_info(node.target).mutates
    return traced


def targets(traced: Traced) -> list[Any]:
    return [node.target for node in traced.graph.graph.nodes if node.op == "call_function"]


def check_results(function: Callable[..., Any], inputs: list[torch.Tensor]) -> Traced:
    """Fresh outputs and new contents of mutated inputs are bit-equal to eager's, strides included."""
    traced = traced_and_verified(function, inputs)
    after = [tensor.clone(memory_format=torch.preserve_format) for tensor in inputs]
    torch.manual_seed(3)
    with torch.no_grad():
        expected = function(*after)
    torch.manual_seed(3)
    results = traced.graph(*inputs)
    leaves = torch.utils._pytree.tree_leaves(expected)
    for output, leaf in zip(traced.outputs, leaves, strict=True):
        if isinstance(output, Fresh):
            torch.testing.assert_close(results[output.position], leaf, rtol=0, atol=0, check_stride=True)
    for index, position in traced.mutated:
        torch.testing.assert_close(results[position], after[index], rtol=0, atol=0)
    changed = {i for i, (own, new) in enumerate(zip(inputs, after, strict=True)) if not torch.equal(own, new)}
    assert changed <= {index for index, _ in traced.mutated}
    return traced


# -- whole models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_models_replay_bit_equal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # transformers then asks for no values
    case = build(name, size="small")
    inputs = [*case.args, *case.kwargs.values()]

    def function(*args: Any) -> Any:
        if case.kwargs:
            return tensors_of(case.model(**dict(zip(case.kwargs, args, strict=True))))
        return tensors_of(case.model(*args))

    traced = traced_and_verified(function, inputs)
    printed = load_graph(print_graph(traced.graph), traced.constants)
    with torch.no_grad():
        expected = function(*inputs)
        results, again = traced.graph(*inputs), printed(*inputs)
    for output, reference in zip(traced.outputs, expected, strict=True):
        assert isinstance(output, Fresh)
        torch.testing.assert_close(results[output.position], reference, rtol=0, atol=0, check_stride=True)
        assert torch.equal(again[output.position], reference)


# -- mutation -------------------------------------------------------------------------------------------------------


def _index_put(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[torch.tensor([0, 2])] = y[0]
    x[x > 1] = 0.5
    x[1:, ::2] += 1
    return x * 2


def _swap(x: torch.Tensor, y: torch.Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def _running(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, y[0], y[1].exp(), training=True)


def _running_of_channels(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.instance_norm(x[None], y[0, :3], y[1, :3], use_input_stats=True)


def _out_arguments(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    values, indices = torch.empty(3), torch.empty(3, dtype=torch.int64)
    torch.max(x, 1, out=(values, indices))
    torch.mul(x, y, out=y)
    return values + indices


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z.view(-1)[2:9].view(7, 1).expand(7, 2)[:, 0].mul_(3)
    z.t()[1].unsqueeze(0).squeeze().neg_()
    z.split(1, 1)[2].zero_()
    z.unbind(0)[1].fill_(y.sum())
    z.diagonal().add_(1)
    z.as_strided((2, 2), (4, 1), 5).sub_(1)
    return z


def _of_other_dtype(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.view_as_complex(x.clone().view(3, 2, 2))
    z.real.mul_(2)
    z.imag[0] = 7
    words = y.clone().view(torch.int32)
    words[0] = 0
    return torch.view_as_real(z).sum() + words.view(torch.float32)


def _layouts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.t().clone()
    z.copy_(y.t().contiguous())
    z.t_().unsqueeze_(1).squeeze_(1)
    z.add_(1)
    return z.t().reshape(-1)


def _self_assignment(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x + 1
    z.data = y * 2
    z.mul_(2)
    return z


def _foreach(x: torch.Tensor, y: torch.Tensor) -> None:
    torch._foreach_add_([x, y], 1.0)


MUTATIONS = [
    *(_index_put, _swap, _running, _running_of_channels, _out_arguments, _chain, _of_other_dtype, _layouts),
    *(_self_assignment, _foreach),
]


@pytest.mark.parametrize("function", MUTATIONS, ids=lambda function: function.__name__.strip("_"))
def test_mutation_equals_eager(function: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    check_results(function, [torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)])


@pytest.mark.parametrize("name", ["uniform_", "normal_", "bernoulli_", "exponential_", "random_"])
def test_random_in_place_draws_the_same_numbers(name: str) -> None:
    check_results(lambda x: getattr(x.clone(), name)(), [torch.zeros(3, 5)])


def test_random_operators_draw_the_same_numbers_in_program_order() -> None:
    def function(x: torch.Tensor) -> Any:
        first = torch.rand(3, 4)
        torch.rand(2)  # unused, but it advances the generator
        return F.dropout(x, 0.4) + first, torch.rand_like(x), torch.randint(0, 9, (4,)), torch.randperm(5)

    traced = check_results(function, [torch.randn(3, 4)])
    assert targets(traced).count(aten.rand.default) == 2


def test_training_batch_norm_writes_all_its_buffers() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True)).train()
    held = [*model.parameters(), *model.buffers()]
    traced = trace(model, [torch.randn(2, 3, 8, 8)], keep=keep_all, captured=held)
    assert {id(held[index - 1]) for index, _ in traced.mutated} == {id(buffer) for buffer in model.buffers()}


def test_recurrent_layers() -> None:
    torch.manual_seed(0)
    for module in (torch.nn.LSTM(4, 3, 2), torch.nn.GRU(4, 3, bidirectional=True)):
        x = torch.randn(5, 2, 4)
        traced = traced_and_verified(module, [x])
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(module(x))
        for result, reference in zip(traced.graph(x), expected, strict=True):
            torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-6)


# -- outputs --------------------------------------------------------------------------------------------------------


def test_outputs_are_described_by_who_shares_memory() -> None:
    held = torch.ones(5)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x + y
        row = z[0]
        return z, row, row, x, x.view(-1)[3:], (x + y).t(), held, held[1:], None, 4, torch.tensor(2.0)

    traced = traced_and_verified(function, [torch.randn(3, 4), torch.randn(3, 4)])
    kinds = [type(output) for output in traced.outputs]
    assert kinds == [
        Fresh,
        ViewOfOutput,
        SameAs,
        InputItself,
        ViewOfInput,
        Fresh,
        ViewOfConstant,
        ViewOfConstant,
        OutputValue,
        OutputValue,
        Fresh,
    ]
    z, row = traced.outputs[0], traced.outputs[1]
    assert z.position == row.position
    assert traced.outputs[4].geometry.offset == 3
    assert not traced.is_plain


def test_views_of_one_hidden_base_share_one_graph_output() -> None:
    def function(x: torch.Tensor) -> Any:
        hidden = x + 1
        return hidden[0], hidden[1:]

    traced = traced_and_verified(function, [torch.randn(3, 4)])
    assert [output.position for output in traced.outputs] == [0, 0]
    assert [output.geometry.offset for output in traced.outputs] == [0, 4]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.empty(12).copy_(x.view(-1)),
        lambda x: torch.empty(3, 4).copy_(x)[:, 1:],
        lambda x: (lambda y: (y, torch.empty(3, 4).copy_(y)))(x + 1),
        lambda x: x.clone(),
        lambda x: (x + 1, x + 1),
        lambda x: torch.tensor([1.0, 2.0]),
    ],
)
def test_fresh_outputs_have_memory_of_their_own(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 4)
    traced = check_results(function, [x])
    held = [x, *traced.constants.values()]
    results = [*traced.graph(x), *traced.graph(x)]
    storages = [tensor.untyped_storage()._cdata for tensor in (*held, *results)]
    assert len(set(storages)) == len(storages)


# -- what is recorded -----------------------------------------------------------------------------------------------


def test_clean_up_removes_what_has_no_effect() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.sum()  # dead
        y = x.detach().view(3, 4).expand(3, 4)[:].clone()
        return (y.sin() + x.sin()).to(torch.float32).contiguous()

    traced = check_results(function, [torch.randn(3, 4)])
    assert targets(traced) == [aten.sin.default, aten.add.Tensor]


def test_kept_operators_stay_whole_and_others_are_decomposed() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    kept = traced_and_verified(F.linear, [x, weight], keep=lambda op: True)
    composites = (aten.linear.default, aten.matmul.default)
    split = traced_and_verified(F.linear, [x, weight], keep=lambda op: op not in composites)
    assert targets(kept) == [aten.linear.default]
    assert targets(split) == [aten.t.default, aten.mm.default]


def test_a_decomposition_runs_under_the_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    record = op_info(aten.sinc.default).record
    monkeypatch.setattr(
        record, "decompose", lambda x: torch.where(x == 0, 1.0, torch.sin(x * torch.pi) / (x * torch.pi))
    )
    traced = traced_and_verified(torch.sinc, [torch.randn(3)], keep=lambda op: op is not aten.sinc.default)
    assert aten.where.self in targets(traced) and aten.sinc.default not in targets(traced)
    in_place = traced_and_verified(lambda x: x.sinc_(), [torch.randn(3)], keep=lambda op: op is not aten.sinc.default)
    assert aten.where.self in targets(in_place)


def test_a_decomposition_that_returns_its_argument_does_not_alias_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_info(aten.relu.default).record, "decompose", lambda x: x)
    traced = trace(lambda x: (torch.relu(x), x.add_(1)), [torch.ones(3)], keep=lambda op: op is not aten.relu.default)
    results = traced.graph(torch.ones(3))
    assert isinstance(traced.outputs[0], Fresh)
    assert torch.equal(results[traced.outputs[0].position], torch.ones(3))


def test_constants_are_read_by_name_and_known_numbers_are_folded() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.0, 2.0, 3.0])
        y = x * scale
        y[0] = torch.tensor(5.0).item()
        return y

    traced = check_results(function, [torch.randn(2, 3)])
    assert len(traced.constants) == 1
    assert torch.equal(next(iter(traced.constants.values())), torch.tensor([1.0, 2.0, 3.0]))


def test_nodes_remember_their_origin_and_place() -> None:
    source = fx.Graph()
    x = source.placeholder("x")
    y = source.call_function(F.gelu, (x,))
    place = y.meta["place"] = UserPlace("model.py", 12, "forward")
    source.output((y,))
    traced = trace(fx.GraphModule({}, source), [torch.randn(3)], keep=keep_all)
    node = next(node for node in traced.graph.graph.nodes if node.op == "call_function")
    assert (node.meta["place"], node.meta["origin"]) == (place, y)


# -- what is refused ------------------------------------------------------------------------------------------------


def graph_of(function: Callable[..., Any]) -> fx.GraphModule:
    source = fx.Graph()
    x = source.placeholder("x")
    node = source.call_function(function, (x,))
    node.meta["place"] = UserPlace("model.py", 7, "forward")
    source.output((node,))
    return fx.GraphModule({}, source)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x: x if x.sum().item() > 1 else -x, DataDependent),
        (lambda x: x.detach().set_(torch.ones(2)), Unsupported),
        (lambda x: x.resize_(2), Unsupported),
        (lambda x: setattr(x, "data", x + 1), Unsupported),
        (lambda x: torch.rand(2, generator=torch.Generator()), Unsupported),
        (lambda x: x @ x, CompileError),
    ],
)
def test_refusals_name_the_users_line(function: Callable[..., Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r'File "model.py", line 7'):
        trace(graph_of(function), [torch.randn(3, 4)], keep=keep_all)


def test_writing_to_a_tensor_that_is_no_input_is_refused() -> None:
    held = torch.zeros(3)
    with pytest.raises(Unsupported, match="not among its inputs"):
        trace(lambda x: held.add_(x), [torch.ones(3)], keep=keep_all)
    assert torch.equal(held, torch.zeros(3))


def test_an_operator_that_writes_and_has_no_functional_form_is_refused() -> None:
    with torch.library._scoped_library("stator_test", "DEF") as library:
        library.define("bump(Tensor(a!) x, Tensor(b) y) -> Tensor(b)")
        library.impl("bump", lambda x, y: y.view(3), "Meta")
        with pytest.raises(Unsupported, match="functional form"):
            trace(lambda x: torch.ops.stator_test.bump(x, x + 1), [torch.ones(3)], keep=keep_all)


def test_a_user_operator_with_a_fake_implementation_is_recorded() -> None:
    with torch.library._scoped_library("stator_test", "DEF") as library:
        library.define("halve(Tensor x) -> Tensor")
        library.impl("halve", lambda x: x[::2].clone(), "CPU")
        library.impl("halve", lambda x: x.new_empty(x.shape[0] // 2), "Meta")
        check_results(lambda x: torch.ops.stator_test.halve(x) + 1, [torch.randn(6)])


def test_the_mode_leaves_no_trace_behind() -> None:
    trace(lambda x: x + 1, [torch.ones(3)], keep=keep_all)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert (torch.ones(3, requires_grad=True) * 2).requires_grad
    with pytest.raises(CompileError):
        trace(graph_of(lambda x: operator.truediv(x, "a")), [torch.ones(3)], keep=keep_all)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert isinstance(FunctionalTracer(keep_all).graph, fx.Graph)
