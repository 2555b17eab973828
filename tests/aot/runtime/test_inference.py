"""Compiling for inference: mutation written back, aliases rebuilt, captured tensors lifted, refusals with a reason."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import fx

import stator
from stator.aot import compile_inference, keep_all, needs_grad, run_eagerly
from stator.base.errors import Unsupported
from stator.base.logs import forget_warnings
from stator.graph.verifier import verify


def checked(graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Sequence[Any]]:
    verify(graph)
    assert len(inputs) == sum(node.op == "placeholder" for node in graph.graph.nodes)
    return run_eagerly(graph, inputs)


def graph_of(function: Callable[..., Any], arity: int) -> fx.GraphModule:
    graph = fx.Graph()
    inputs = tuple(graph.placeholder(f"x{index}") for index in range(arity))
    graph.output(graph.call_function(function, inputs))
    return fx.GraphModule({}, graph)


def compiled_of(function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    with torch.no_grad():
        return compile_inference(graph_of(function, len(inputs)), inputs, checked, keep=keep_all)


def test_a_plain_graph_is_called_directly() -> None:
    inner: list[Any] = []

    def compile_graph(graph: fx.GraphModule, inputs: Any) -> Any:
        inner.append(graph.forward)
        return inner[0]

    gm = graph_of(lambda x: (x + 1, x * 2), 1)
    assert compile_inference(gm, [torch.ones(3)], compile_graph, keep=keep_all) is inner[0]


def test_mutated_inputs_are_written_back_through_their_own_strides() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        x[:, 0] = 1
        y.t().mul_(2)
        return (x + y,)

    run = compiled_of(function, torch.randn(3, 3), torch.randn(3, 3))
    for make in (lambda: torch.randn(3, 3).t(), lambda: torch.randn(6, 3)[::2]):
        x, y = make(), make()
        x_expected, y_expected = x.clone(), y.clone()
        expected = function(x_expected, y_expected)
        pointer = x.data_ptr()
        result = run(x, y)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close((x, y), (x_expected, y_expected), rtol=0, atol=0)
        assert x.data_ptr() == pointer


def test_a_parameter_that_requires_grad_is_written_under_no_grad() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        run = compiled_of(lambda w: (w.mul_(2),), weight)
        result = run(weight)
    assert result[0] is weight
    assert torch.equal(weight.detach(), torch.full((3,), 2.0))


def test_outputs_alias_as_in_eager() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        z = x + 1
        part = z[1:]
        return x, x[1:], x.view(-1), z, part, part, z.t(), z + 0, None, 5

    x = torch.randn(3, 4)
    out = compiled_of(function, x)(x)
    assert out[0] is x
    assert out[1].data_ptr() == x[1:].data_ptr() and out[2].data_ptr() == x.data_ptr()
    assert out[4] is out[5]
    assert out[4].data_ptr() == out[3][1:].data_ptr() and out[6].data_ptr() == out[3].data_ptr()
    assert out[7].data_ptr() != out[3].data_ptr()
    assert out[8:] == (None, 5)
    x.fill_(7)
    assert torch.equal(out[1], torch.full((2, 4), 7.0))
    out[3].zero_()
    assert not out[4].any() and not out[6].any()


def test_views_of_another_dtype_alias_their_input() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    result = compiled_of(lambda x: (x.real, x.view(torch.float32)), x)(x)
    assert result[0].data_ptr() == result[1].data_ptr() == x.data_ptr()
    torch.testing.assert_close(result[0], x.real)
    torch.testing.assert_close(result[1], x.view(torch.float32))


def test_an_alias_follows_the_offset_of_the_tensor_given_now() -> None:
    memory = torch.arange(20.0)
    run = compiled_of(lambda x: (x[1:],), memory[:6])
    other = memory[10:16]
    (result,) = run(other)
    assert torch.equal(result, other[1:]) and result.data_ptr() == other[1:].data_ptr()


def test_modules_and_attributes_of_the_graph_are_lifted_and_stay_live() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)
            self.scale = torch.nn.Parameter(torch.ones(4))

    model = Model().train()
    graph = fx.Graph()
    x = graph.placeholder("x")
    normal = graph.call_module("norm", (x,))
    graph.output((graph.call_function(torch.mul, (normal, graph.get_attr("scale"))),))
    gm = fx.GraphModule(model, graph)
    reference = copy.deepcopy(gm)
    value = torch.randn(5, 4)
    with torch.no_grad():
        run = compile_inference(gm, [value], checked, keep=keep_all)
        for scale in (1.0, 3.0):
            model.scale.fill_(scale)
            reference.scale.fill_(scale)
            torch.testing.assert_close(run(value), reference(value))
    for own, other in zip(gm.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other)
    assert model.norm.num_batches_tracked == 2


def test_python_numbers_among_the_inputs_are_constants() -> None:
    run = compiled_of(lambda x, n: (x * n,), torch.ones(3), 4)
    assert torch.equal(run(torch.ones(3), 4)[0], torch.full((3,), 4.0))


def test_a_nested_result_keeps_its_structure() -> None:
    x = torch.ones(3)
    assert torch.equal(compiled_of(lambda x: {"a": [x + 1, None]}, x)(x)["a"][0], torch.full((3,), 2.0))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_modes_without_grad(guard: Any) -> None:
    linear = torch.nn.Linear(4, 3)
    gm = graph_of(lambda x, w, b: (F.linear(x, w, b).relu_(), x[1:]), 3)
    x = torch.randn(2, 4)
    with guard():
        run = compile_inference(gm, [x, linear.weight, linear.bias], checked, keep=keep_all)
        result, part = run(x, linear.weight, linear.bias)
        expected = F.linear(x, linear.weight, linear.bias).relu()
    torch.testing.assert_close(result, expected)
    assert result.is_inference() == expected.is_inference() and not result.requires_grad
    assert part.data_ptr() == x[1:].data_ptr()


# -- inputs that share memory ---------------------------------------------------------------------------------------


def test_one_tensor_given_twice_and_written_to() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        return (y * 2,)

    x = torch.zeros(3)
    run = compiled_of(function, x, x)
    assert torch.equal(run(x, x)[0], torch.full((3,), 2.0))
    forget_warnings()
    with pytest.warns(RuntimeWarning, match="share memory in another way"):
        assert torch.equal(run(torch.zeros(3), torch.ones(3))[0], torch.full((3,), 2.0))


def test_one_tensor_given_twice_but_only_read_is_two_inputs() -> None:
    x = torch.ones(3)
    run = compiled_of(lambda x, y: (x + y,), x, x)
    assert torch.equal(run(torch.ones(3), torch.full((3,), 5.0))[0], torch.full((3,), 6.0))


def test_inputs_that_come_to_share_memory_run_eagerly_and_say_so() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        return (y * 2,)

    run = compiled_of(function, torch.zeros(3), torch.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(torch.zeros(3), torch.zeros(3))
    memory = torch.zeros(4)
    forget_warnings()
    with pytest.warns(RuntimeWarning, match="running it eagerly"):
        (result,) = run(memory[:3], memory[1:])
    assert torch.equal(result, torch.tensor([2.0, 2.0, 0.0]))


def test_overlapping_inputs_of_which_one_is_written_are_refused() -> None:
    memory = torch.zeros(4)
    with pytest.raises(Unsupported, match="overlapping-inputs"):
        compiled_of(lambda x, y: (x.add_(1), y + 1), memory[:3], memory[1:])


def test_overlapping_inputs_that_are_only_read_compile() -> None:
    memory = torch.arange(4.0)
    result = compiled_of(lambda x, y: (x + y, y[1:]), memory[:3], memory[1:])(memory[:3], memory[1:])
    assert torch.equal(result[0], memory[:3] + memory[1:])
    assert result[1].data_ptr() == memory[2:].data_ptr()


def test_two_inputs_that_exchange_their_contents() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return (x, y)

    x, y = torch.zeros(3), torch.ones(3)
    result = compiled_of(function, x, y)(x, y)
    assert result[0] is x and torch.equal(x, torch.ones(3)) and torch.equal(y, torch.zeros(3))


# -- autograd -------------------------------------------------------------------------------------------------------


def test_needs_grad() -> None:
    plain, trained = torch.ones(3), torch.ones(3, requires_grad=True)
    gm = graph_of(lambda x: (x + 1,), 1)
    assert needs_grad(gm, [trained]) and not needs_grad(gm, [plain])
    with torch.no_grad():
        assert not needs_grad(gm, [trained])
    with torch.inference_mode():
        assert not needs_grad(gm, [trained])

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method("requires_grad_", (x,)),))
    assert needs_grad(fx.GraphModule({}, graph), [plain])

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((graph.call_method("mul", (x, 2)),))
    with torch.no_grad():
        assert needs_grad(fx.GraphModule({}, graph), [trained])
        assert not needs_grad(fx.GraphModule({}, graph), [plain])

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_module("layer", (x,)),))
    assert needs_grad(fx.GraphModule({"layer": torch.nn.Linear(3, 3)}, graph), [plain])


def test_example_inputs_that_are_symbolic_are_refused() -> None:
    class Fixed:
        def is_int(self) -> bool:
            return True

    size = torch.SymInt(Fixed())
    with pytest.raises(Unsupported, match="symbolic"):
        compile_inference(graph_of(lambda x, n: (x,), 2), [torch.ones(3), size], checked, keep=keep_all)


# -- tensors that are not plain -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda x: x.conj(), lambda x: torch.imag(x.conj())], ids=["conj", "neg"])
def test_lazily_changed_inputs_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(Unsupported, match="resolve_"):
        compiled_of(lambda x: (x + 1,), make(torch.randn(3, dtype=torch.complex64)))


@pytest.mark.filterwarnings("error")
def test_as_strided_without_an_offset_follows_the_memory_given_now() -> None:
    memory = torch.arange(20.0)
    run = compiled_of(lambda x: (x.as_strided((2, 2), (1, 2)) + 1,), memory[:6])
    assert torch.equal(run(memory[10:16])[0], torch.tensor([[11.0, 13.0], [12.0, 14.0]]))


def test_as_strided_from_an_offset_reads_the_storage_from_its_beginning_wherever_the_input_begins() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.as_strided((2, 3), (4, 1), 1) * 2, x + 1

    memory = torch.arange(40.0)
    run = compiled_of(function, memory[:20])
    forget_warnings()
    warned: list[int] = []
    for given in (memory[:20], memory[8:28], -memory[:20], memory[20:]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = run(given)
        warned.append(sum("as_strided" in str(one.message) for one in caught))
        for result, expected in zip(results, function(given), strict=True):
            assert torch.equal(result, expected)
    assert warned == [0, 1, 0, 0]  # the second and the fourth call run eagerly, with one warning


def test_a_write_to_an_expanded_input_is_refused() -> None:
    with pytest.raises(Unsupported, match="expanded"):
        compiled_of(lambda x: (x.fill_(1),), torch.zeros(1).expand(3))


def test_autocast_inside_the_graph() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w), x + 1

    x, w = torch.randn(4, 5), torch.randn(3, 5)
    result, expected = compiled_of(function, x, w)(x, w), function(x, w)
    assert result[0].dtype is torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_grad_modes_inside_the_graph() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            y = x * 2
        with torch.inference_mode():
            z = y + 1
        return y, z

    x = torch.ones(3)
    before = torch.is_grad_enabled()
    torch.testing.assert_close(compiled_of(function, x)(x), function(x))
    assert torch.is_grad_enabled() == before


def test_a_graph_of_torchs_own_capture_compiles() -> None:
    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        assert not needs_grad(gm, inputs)
        return compile_inference(gm, inputs, checked, keep=keep_all)

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True)).train()
    reference = copy.deepcopy(model)
    x = torch.randn(2, 3, 6, 6)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), reference(x), rtol=0, atol=0)
    for own, other in zip(model.buffers(), reference.buffers(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("inplace", [False, True])
def test_randomised_leaky_relu_outside_of_training(inplace: bool) -> None:
    x = torch.linspace(-2, 2, 5)
    result = compiled_of(lambda x: (F.rrelu(x * 1, training=False, inplace=inplace),), x)(x)
    torch.testing.assert_close(result[0], F.rrelu(x, training=False))


def test_writes_through_another_storage_on_the_same_bytes_are_seen() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x[1:] + y

    results = []
    for backend in ("inductor", None):
        array = np.arange(5.0, dtype=np.float32)
        x, y = torch.from_numpy(array), torch.from_numpy(array[1:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it runs eagerly
            run = function if backend is None else stator.compile(function, backend=backend)
            results.append((run(x, y), torch.from_numpy(array)))
    torch.testing.assert_close(results[0], results[1])


def test_memory_shared_only_in_a_later_call_is_seen() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = stator.compile(function)
    compiled(torch.ones(4), torch.ones(4))
    array = np.ones(5, dtype=np.float32)
    x, y = torch.from_numpy(array[:4]), torch.from_numpy(array[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = compiled(x, y)
    torch.testing.assert_close(actual, torch.tensor([4.0, 4.0, 4.0, 3.0]))
