"""Graphs of tensors that are made of other tensors: results, gradients, writes and aliasing equal eager's, and compiled
code sees the inner tensors only."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import BY_BACKEND, FUSED, assert_same, check, corpus
from tests.wrapper_tensors import Labelled, Overriding, Quantized, nested, pair, values
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import stator
from stator import pipeline

BACKENDS = ("eager", "aot_eager", "inductor")
programs, program = corpus()


@program(lambda: pair(4, 4))
def elementwise(x):
    return (x.sin() + x * 2).relu()


@program(lambda: pair(4, 4, grad=True))
def trained(x):
    return (x.sin() + x * 2).relu(), x.sum()


@program(lambda: pair(4, 4, grad=True), lambda: values(3, 4, grad=True))
def mixed(x, weight):
    return F.linear(x, weight).relu()


@program(lambda: values(4, 4, grad=True), lambda: pair(3, 4, grad=True), lambda: values(3, grad=True))
def wrapped_weight(x, weight, bias):
    return F.gelu(F.linear(x, weight, bias))


@program(lambda: pair(4, 4), lambda: values(4))
def written(x, y):
    x.add_(y)
    x[0] = 3
    return x.cos()


@program(lambda: pair(4, 4))
def written_and_returned(x):
    x.mul_(2)
    return x, x


@program(lambda: pair(4, 4))
def written_through_view(x):
    x.view(-1).add_(1)
    return x + 1


@program(lambda: pair(4, 4))
def views(x):
    return x.view(-1), x.t(), x[1:]


@program(lambda: pair(4, 4, grad=True))
def views_with_gradients(x):
    return x.view(-1), x.t()


@program(lambda: pair(4, 4, grad=True))
def view_of_result(x):
    y = x + 1
    return y, y.view(-1)


@program(lambda: pair(4, 4, grad=True))
def split_results(x):
    y, z = (x * x).chunk(2)
    return y.exp() * z


@program(lambda: pair(4, 4, grad=True))
def without_gradients_inside(x):
    with torch.no_grad():
        y = x * 3
    return x * y, y


@program(lambda: TwoTensor(pair(4, 4), pair(4, 4, seed=1)).requires_grad_())
def twice_wrapped(x):
    return x.sin().sum(0), x.view(16)


@program(lambda: pair(4, 4), lambda: values(4, 4))
def inner_tensors(x, y):
    z = x * y
    return x.a + 1, z.a - z.b, z.get_elem_a()


@program(lambda: Labelled(values(3), 2), lambda: values(3))
def context_of_class(x, y):
    return x * y, x.labelled(1)


@program(lambda: values(2, 4, grad=True), lambda: Quantized.of(values(3, 4)))
def quantized_weight(x, weight):
    return F.linear(x, weight).tanh()


@program(lambda: values(2, 4, grad=True), lambda: Quantized.of(values(3, 4), Overriding), lambda: values(3))
def own_torch_functions(x, weight, bias):
    return F.linear(x, weight, bias).tanh(), F.softmax(weight, 0), F.linear(x, weight), weight + 1


@program(lambda: values(2, 4, grad=True), lambda: Quantized.of(values(3, 4)).requires_grad_())
def plain_gradient_of_wrapper(x, weight):
    return F.linear(x, weight).relu()


@program(lambda: values(2, 4, grad=True), lambda: pair(3, 4, grad=True))
def under_autocast(x, weight):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, weight)


@program(lambda: values(2, 4, grad=True), lambda: pair(3, 4, grad=True))
def in_checkpoint(x, weight):
    return torch.utils.checkpoint.checkpoint(lambda x: F.linear(x, weight).relu(), x, use_reentrant=False)


@program(lambda: pair(4, grad=True), lambda: pair(4), lambda: values(4))
def lists_and_written_results(x, out, plain):
    y = x * 2
    y.add_(1)
    torch.add(out, 1, out=out)
    torch._foreach_mul_([out], 2.0)
    plain.copy_(out.a)
    return torch.cat([x, y]), y.unbind(0)[1], out * plain, torch.zeros_like(x)


@program(lambda: pair(4, 4), lambda: values(4, 4))
def beside_sizes_that_depend_on_data(x, y):
    return torch.nonzero(y), x[0] * 2, (x * y).sum()


@program(lambda: pair(2, 4))
def python_functions_of_torch(x):
    return F.relu(x), F.softmax(x, dim=-1), F.normalize(x), torch.stack([x, x])


@program(lambda: (values(4) * 2).requires_grad_(), lambda: pair(4))
def two_tensors(x, y):
    return x * y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", programs)
def test_as_in_eager(program: Any, backend: str) -> None:
    check(program, backend=backend, fullgraph=True, gradients=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("backend", BACKENDS)
def test_without_grad_mode(backend: str, mode: Any) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x @ y, x.view(-1)

    with mode():
        made = [pair(4, 4, grad=mode is torch.no_grad), values(4, 4)]
        found, expected = stator.compile(program, backend=backend, fullgraph=True)(*made), program(*made)
        assert_same(found, expected, BY_BACKEND[backend])


def test_graphs_hold_operators_on_inner_tensors() -> None:
    seen = []

    def observe(graph: Any, compiled: Any) -> Any:
        seen.append([node.meta["val"].shape for node in graph.graph.nodes if node.op == "placeholder"])
        return compiled

    backend = lambda gm, inputs: pipeline.inductor_backend(gm, inputs, observe=observe)  # noqa: E731
    f = stator.compile(lambda x, y: x @ y, backend=backend)
    f(pair(3, 2), values(2, 4))
    assert seen == [[(3, 2), (3, 2), (2, 4)]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_train(backend: str) -> None:
    def losses(compiled: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        for layer in (model[0], model[2]):
            layer.weight = nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach() * 2))
        run = stator.compile(model, backend=backend, fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(3):
            loss = run(values(5, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found += [loss.a.item(), loss.b.item()]
        return found, model[0].weight.a, model[0].weight.grad.b

    stator.reset()
    for found, expected in zip(losses(True), losses(False), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_optimizer_step(backend: str) -> None:
    def trained(compiled: bool) -> Any:
        params = [nn.Parameter(pair(4)), nn.Parameter(values(4))]
        optimizer = torch.optim.AdamW(params, lr=0.1)
        step = stator.compile(optimizer.step, backend=backend) if compiled else optimizer.step
        for _ in range(3):
            for param in params:
                param.grad = param.detach() * 2
            step()
        return [params[0].a, params[0].b, params[1].detach()]

    stator.reset()
    torch.testing.assert_close(trained(True), trained(False))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_is_differentiated_again(backend: str) -> None:
    def second(function: Any) -> Any:
        x = pair(4, grad=True)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad((first * first).sum(), x)[0]

    function = lambda x: x.sin() * x  # noqa: E731
    found, expected = second(stator.compile(function, backend=backend, fullgraph=True)), second(function)
    torch.testing.assert_close((found.a, found.b), (expected.a, expected.b))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_share_no_memory(backend: str) -> None:
    """Autograd adds to them in place: to those of two inputs, and not to the gradient that the program gave."""

    def function(x: TwoTensor, y: TwoTensor) -> TwoTensor:
        return x + y

    compiled = stator.compile(function, backend=backend, fullgraph=True)
    seen = []
    for called in (function, compiled):
        x, y, given = pair(3, grad=True), pair(3, seed=1, grad=True), pair(3, seed=2)
        for _ in range(3):
            called(x, y).backward(given)
            called(x, y).sum().backward()
        seen.append((x.grad, y.grad, given))
    assert_same(seen[1], seen[0], BY_BACKEND[backend])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizers_write_to_parameters(kind: Any, backend: str) -> None:
    def trained(way: Any) -> Any:
        parameters = [nn.Parameter(pair(3, 4)), nn.Parameter(pair(4, seed=1))]
        step = way(kind(parameters, lr=0.1, weight_decay=0.1).step)
        for at in range(3):
            for parameter in parameters:
                parameter.grad = pair(*parameter.shape, seed=at)
            step()
        return [one.detach() for one in parameters]

    compiled = trained(lambda step: stator.compile(step, backend=backend, fullgraph=True))
    assert_same(compiled, trained(lambda step: step), FUSED)  # a captured step counts in tensors


def test_write_to_what_autograd_follows_runs_eagerly() -> None:
    def program(x: TwoTensor, y: torch.Tensor) -> Any:
        x.mul_(y)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, make=lambda: (pair(4), values(4, grad=True)), backend="inductor", gradients=True)


def _nested_linear(x: Any, weight: Any) -> Any:
    return F.linear(x.sin(), weight).relu()


def _nested_parts(x: Any, scale: Any) -> Any:
    y = F.layer_norm(x.detach(), (4,), scale[0].detach())
    return x * scale[0], x.detach().offsets(), y.values(), y.to_padded_tensor(0.0), y.mean(1)


def _nested_sizes(x: Any, scale: Any) -> Any:
    y = x.sin() * x.shape[-1]
    batch, length, width = y.shape
    one, other = x.reshape(batch, length, 2, width // 2), y.view(*x.shape[:-1], 2, 2) * scale[0, 0]
    return one, other * 2 if one.size(1) == x.size()[1] and length > 1 else other


def _nested_views(x: Any, scale: Any) -> Any:
    y = x.unflatten(-1, (2, 2))
    return y.transpose(1, 2), x.reshape(x.size(0), -1, 2, 2) * 2, x * scale[0]


def _nested_padded(x: Any, scale: Any) -> Any:
    """Padding, and the softmax over lengths, which pads on its way."""
    return (x * scale[0]).to_padded_tensor(2.0), x.sin().to_padded_tensor(-1.0, (x.size(0), 5, 4)).cos(), x.softmax(1)


def _nested_unbind(x: Any, weight: Any) -> Any:
    parts = [part.sin() for part in (x * 2).unbind()]
    return parts, torch.stack([F.linear(part, weight).mean(0) for part in x.unbind()])


def _nested_attention(x: Any, weight: Any) -> Any:
    rows, keys = (one.unflatten(-1, (2, 2)).transpose(1, 2) for one in (x, x @ (weight.t() @ weight) * 0.1))
    attended = F.scaled_dot_product_attention(rows, keys, keys * 2, scale=0.7).transpose(1, 2).flatten(-2)
    return attended, F.linear(attended, weight)


NESTED = [
    _nested_linear,
    _nested_unbind,
    _nested_parts,
    _nested_views,
    _nested_sizes,
    _nested_padded,
    _nested_attention,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", NESTED)
def test_nested_tensors(function: Any, backend: str) -> None:
    def outcome(function: Any, lengths: tuple[int, ...]) -> Any:
        x, weight = nested(*lengths, grad=True), values(3, 4, grad=True)
        made = pytree.tree_leaves(function(x, weight))
        flat = [(one.values(), one.offsets(), type(one)) if one.is_nested else one for one in made]
        roots = [one.values() if one.is_nested else one for one in made if one.requires_grad]
        gradients = torch.autograd.grad([one.sum() for one in roots], [x, weight], allow_unused=True)
        return flat, [one.values() if one is not None and one.is_nested else one for one in gradients]

    stator.reset()
    compiled = stator.compile(function, backend=backend, fullgraph=True)
    for lengths in ((2, 3, 1), (2, 3, 1), (4, 2)):
        assert_same(outcome(compiled, lengths), outcome(function, lengths), BY_BACKEND[backend])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [((3, 2, 5), (4, 1, 6)), ((3, 0, 2), (2, 3, 1)), ((3, 2), (4, 0))])
def test_attention_between_nested_tensors(lengths: Any, backend: str) -> None:
    """Queries of other lengths than keys and values, some of them empty."""

    def attention(query: Any, key: Any, value: Any) -> Any:
        return F.scaled_dot_product_attention(*[one.transpose(1, 2) for one in (query, key, value)]).transpose(1, 2)

    def outcome(function: Any) -> Any:
        offsets = [torch.tensor([0, *itertools.accumulate(one)]) for one in lengths]
        numbers = [values(sum(lengths[at]), 2, width, seed=at) for at, width in ((0, 4), (1, 4), (1, 3))]
        query, key = (torch.nested.nested_tensor_from_jagged(*one) for one in zip(numbers, offsets, strict=False))
        value = torch.nested.nested_tensor_from_jagged(numbers[2], key.offsets())
        made = function(*[one.requires_grad_() for one in (query, key, value)]).values()
        return made, [one.values() for one in torch.autograd.grad(made.cos().sum(), (query, key, value))]

    stator.reset()
    reads_lengths = torch.__version__ < "2.12"  # torch's own Python code, from tensors, which ends the graph
    compiled = stator.compile(attention, backend=backend, fullgraph=not reads_lengths)
    assert_same(outcome(compiled), outcome(attention), BY_BACKEND[backend])


@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_tensors_of_equal_lengths(backend: str) -> None:
    """Lengths are equal only if two nested tensors share them; results keep them."""

    def outcome(function: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        try:
            return (function(x, y) + x).values()
        except RuntimeError as error:
            return str(error)[:40]

    function = lambda x, y: x * y + x  # noqa: E731
    stator.reset()
    compiled = stator.compile(function, backend=backend)
    x, y = nested(2, 3, 1), nested(2, 3, 1)
    for other in (x * 3, y, x * 2, x):
        assert_same(outcome(compiled, x, other), outcome(function, x, other), BY_BACKEND[backend])


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_of_nested_tensors(backend: str) -> None:
    compiled = stator.compile(lambda x: (x.shape[1], x.size(), x * 2), backend=backend, fullgraph=True)
    for x in (nested(2, 3), nested(4, 1, 2)):
        length, shape, doubled = compiled(x)
        assert length == x.shape[1] == doubled.shape[1]
        assert type(shape) is torch.Size and shape == x.shape
        assert_same(doubled.values(), (x * 2).values())


@pytest.mark.parametrize("shared_first", [False, True])
def test_comparison_of_nested_sizes(shared_first: bool) -> None:
    compiled = stator.compile(lambda x, y: x * 2 if x.shape == y.shape else x * 3, backend="eager", fullgraph=True)
    x = nested(2, 3)
    others = (x.sin(), nested(2, 3), x, nested(2, 3))
    for other in others if shared_first else reversed(others):
        factor = 2 if x.shape == other.shape else 3
        assert_same(compiled(x, other).values(), x.values() * factor)


def test_length_that_torch_cannot_compare_breaks() -> None:
    compiled = stator.compile(lambda x: x * 2 if x.shape[1] > 4 else x, backend="eager")
    with pytest.raises(ValueError, match="indeterminate"):
        compiled(nested(2, 3))


def test_numbers_beside_the_values_of_a_gradient() -> None:
    """The gradient of a nested tensor has the tensor's own lengths."""
    x = nested(2, 3, 1, grad=True)
    stator.compile(lambda x: x * x, backend="aot_eager", fullgraph=True)(x).values().sum().backward()
    assert x.grad.offsets().tolist() == [0, 2, 5, 6]
    assert x.grad.shape == x.shape


def test_gradient_of_another_class_is_refused_in_words() -> None:
    f = stator.compile(lambda x: x * 2, backend="aot_eager", fullgraph=True)
    y = f(pair(4, grad=True))
    with pytest.raises(RuntimeError, match="expects a gradient of class TwoTensor"):
        y.backward(torch.ones(4))


def test_wrapper_gradient_of_a_plain_result_is_refused_in_words() -> None:
    f = stator.compile(lambda x, y: (x * y, x * 2), backend="aot_eager", fullgraph=True)
    x = values(4, grad=True)
    wrapped, plain = f(x, pair(4))
    with pytest.raises(RuntimeError, match="expects a gradient that is a plain tensor"):
        (wrapped + plain).sum().backward()


def test_a_view_of_an_input_takes_part_in_gradients() -> None:
    def run(function: Any) -> Any:
        x = pair(4, grad=True)
        base = x * 1
        view = function(base)
        view.mul_(3)
        (base * 2).sum().backward()
        return x.grad.a

    function = lambda base: base.view(2, 2)  # noqa: E731
    assert run(stator.compile(function, backend="inductor", fullgraph=True)).equal(run(function))
