"""stator.decompose: functional graphs of either level, equal to the program they come from; errors that say where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import stator
from stator.graph.verifier import verify
from stator.prims.record import TensorMeta, record

LEVELS = ("aten", "prims")


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.batch = torch.nn.BatchNorm1d(8)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.batch(self.norm(x))
        out = torch.nn.functional.silu(self.linear(hidden))
        return {"out": out, "transposed": out.t(), "number": 3}


def targets(graph: fx.GraphModule) -> set[str]:
    return {str(node.target) for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}


def is_of_level(graph: fx.GraphModule, level: str) -> bool:
    found = [record(node.target).level for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return all(one == "prims" or (level == "aten" and one == "aten") for one in found)


@pytest.mark.parametrize("level", LEVELS)
def test_a_module_in_eval_mode_equals_itself(level: str) -> None:
    torch.manual_seed(0)
    network, x = Network().eval(), torch.randn(4, 8)
    graph = stator.decompose(network, [x], to=level)
    ours, eager = graph(x), network(x)
    assert is_of_level(graph, level)
    assert ours["number"] == 3
    for name in ("out", "transposed"):
        torch.testing.assert_close(ours[name], eager[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_module_writes_is_returned_by_name(level: str) -> None:
    torch.manual_seed(0)
    network, x = Network(), torch.randn(4, 8)
    graph = stator.decompose(network, [x], to=level)
    result, written = graph(x)
    assert network.batch.num_batches_tracked == 0
    eager = network(x)
    torch.testing.assert_close(result["out"], eager["out"], rtol=1e-6, atol=1e-6)
    assert set(written) == {"batch_running_mean", "batch_running_var", "batch_num_batches_tracked"}
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(written[f"batch_{name}"], getattr(network.batch, name))


def test_parameters_are_shared() -> None:
    network, x = Network().eval(), torch.randn(4, 8)
    graph = stator.decompose(network, [x], to="prims")
    with torch.no_grad():
        network.linear.weight.mul_(2.0)
    assert dict(graph.named_parameters())["linear_weight"] is network.linear.weight
    torch.testing.assert_close(graph(x)["out"], network(x)["out"], rtol=1e-6, atol=1e-6)


def test_writes_to_inputs_and_through_views_become_values() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x[0].mul_(2.0)
        return x.sum()

    x = torch.randn(3, 4)
    graph = stator.decompose(program, [x], to="aten")
    before = x.clone()
    result, written = graph(x)
    assert torch.equal(x, before)
    torch.testing.assert_close(result, program(x))
    assert torch.equal(written["arg_0"], x)


def test_a_graph_of_torch_calls_and_its_result_decompose_again() -> None:
    x = torch.randn(4, 8)
    traced = fx.symbolic_trace(Network().eval())
    first = stator.decompose(traced, [x], to="aten")
    second = stator.decompose(first, to="prims")  # its placeholders carry their metas
    assert isinstance(next(iter(first.graph.nodes)).meta["val"], TensorMeta)
    assert is_of_level(second, "prims")
    torch.testing.assert_close(second(x)["out"], traced(x)["out"], rtol=1e-6, atol=1e-6)


def test_the_levels_differ_and_graphs_verify() -> None:
    x = torch.randn(4, 8)
    aten, prims = (stator.decompose(lambda x: (torch.nn.functional.gelu(x),), [x], to=level) for level in LEVELS)
    assert targets(aten) == {"aten.gelu.default"}
    assert "aten.erf.default" in targets(prims)
    for graph in (aten, prims):
        verify(graph)


def test_arguments_that_are_no_tensors_are_fixed() -> None:
    graph = stator.decompose(lambda x, factor: x * factor, [torch.ones(2), 3])
    assert torch.equal(graph(torch.ones(2), 5), torch.full((2,), 3.0))


def test_an_operator_outside_the_level_is_named_with_a_way_out() -> None:
    def program(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.fractional_max_pool2d(x, 2, output_size=2, _random_samples=places).exp()

    x, places = torch.randn(1, 3, 8, 8), torch.rand(1, 3, 2)
    with pytest.raises(stator.CompileError, match=r"aten\.fractional_max_pool2d\.default, which is no primitive"):
        stator.decompose(program, [x, places])
    graph = stator.decompose(program, [x, places], keep=["aten.fractional_max_pool2d"])
    torch.testing.assert_close(graph(x, places), program(x, places))


def test_errors_name_the_users_place() -> None:
    captured: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        captured.append(gm)
        return gm.forward

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.fractional_max_pool2d(x, 2, output_size=2)

    x = torch.randn(1, 3, 8, 8)
    stator.compile(program, backend=backend)(x)
    with pytest.raises(stator.CompileError, match=r"test_decompose\.py.*line \d+"):
        stator.decompose(captured[0], [x])


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((torch.sin, [torch.ones(2)]), {"to": "core"}, "unknown level 'core'; known levels: aten, prims"),
        ((torch.sin,), {}, "needs example_inputs"),
        ((3, []), {}, "takes a GraphModule or a callable"),
        ((torch.stack, [[torch.ones(2)]]), {}, "is a list of tensors"),
        ((torch.sin, [torch.ones(2)]), {"keep": ["aten.sinn"]}, "did you mean"),
        ((fx.symbolic_trace(Network().eval()),), {}, r"carries no meta\['val'\]"),
        ((fx.symbolic_trace(Network().eval()), []), {}, "takes 1 inputs"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(stator.UsageError, match=message):
        stator.decompose(*arguments, **named)


def test_layers_that_torch_would_run_fused_are_taken_apart() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(stator.decompose(layer, [x], to="prims")(x), layer(x), rtol=1e-4, atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


def test_what_depends_on_data_is_refused_with_the_line_of_the_program() -> None:
    def branching(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(stator.Unsupported, match=r"test_decompose\.py\", line \d+, in .*branching"):
        stator.decompose(branching, [torch.ones(2)])
