"""Backends by name, by function, with options, from other packages; and as a backend of torch.compile."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

import stator
from stator import backends, ecosystem
from stator.base import logs


@pytest.fixture
def registered() -> Iterator[list[str]]:
    """Names that the test registers; forgotten afterwards."""
    before = set(backends._registered)
    yield []
    for name in set(backends._registered) - before:
        backends._registered.remove(name)


def installed_backend(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
    return lambda *inputs: [output + 1 for output in gm(*inputs)]


def test_built_in_backends_are_listed() -> None:
    assert {"eager", "aot_eager", "inductor"} <= set(stator.list_backends())


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_built_in_backends_agree_with_plain_python(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 5)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.T, -1).sum(0)

    with torch.no_grad():
        assert torch.allclose(stator.compile(f, backend=name, fullgraph=True)(x), f(x), rtol=1e-6)


def test_registering_by_call_by_decorator_and_by_name(registered: list[str]) -> None:
    @stator.register_backend
    def mine(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        return gm.forward

    stator.register_backend(mine, name="other")

    @stator.register_backend(name="third")
    def unnamed(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        return gm.forward

    assert {"mine", "other", "third"} <= set(stator.list_backends())
    assert stator.compile(lambda x: x + 1, backend="third")(torch.ones(1)).tolist() == [2]
    with pytest.raises(stator.UsageError, match="exists already"):
        stator.register_backend(mine)
    with pytest.raises(stator.UsageError, match="exists already"):
        stator.register_backend(mine, name="eager")


def test_other_backends_get_mode_and_options_as_keywords() -> None:
    seen: dict[str, Any] = {}

    def backend(gm: fx.GraphModule, example_inputs: list[torch.Tensor], **keywords: Any) -> Any:
        seen.update(keywords)
        return gm.forward

    stator.compile(lambda x: x + 1, backend=backend, mode="fast", options={"level": 3})(torch.ones(1))
    assert seen == {"mode": "fast", "options": {"level": 3}}


def test_backend_sees_a_graph_and_real_examples_and_may_return_a_list() -> None:
    def backend(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        assert isinstance(gm, fx.GraphModule)
        assert [type(example) for example in example_inputs] == [torch.Tensor, torch.Tensor]
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        assert len(placeholders) == 2
        assert all(node.meta["example_value"].shape == (3,) for node in placeholders)
        return lambda *inputs: list(gm(*inputs))

    a, b = torch.randn(3), torch.randn(3)
    compiled = stator.compile(lambda a, b: {"sum": a + b, "pair": (a - b, 7)}, backend=backend, fullgraph=True)
    found = compiled(a, b)
    assert torch.equal(found["sum"], a + b) and torch.equal(found["pair"][0], a - b) and found["pair"][1] == 7


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("returned", ["stacked", "one", "none"])
def test_a_backend_that_does_not_return_all_results_is_told(returned: str) -> None:
    """A tensor in the place of a tuple would be taken apart along its first dimension."""

    def backend(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        give = {"stacked": torch.stack, "one": lambda results: results[:1], "none": lambda results: None}[returned]
        return lambda *inputs: give(gm(*inputs))

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x + 1

    logs.forget_warnings()
    x = torch.arange(4.0).reshape(2, 2)
    with pytest.warns(RuntimeWarning, match="a tuple or list of all results"):
        doubled, increased = stator.compile(f, backend=backend)(x)
    assert torch.equal(doubled, x * 2) and torch.equal(increased, x + 1)


def test_what_a_backend_gets_is_a_plain_graph_module() -> None:
    seen: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        seen.append(gm)
        for node in gm.graph.nodes:
            if node.target is torch.sin:
                node.target = torch.cos
        gm.recompile()
        return gm.forward  # the code of the changed graph, whatever becomes of the module

    compiled = stator.compile(lambda x: torch.sin(x) + 1, backend=backend)
    x = torch.randn(3)
    assert torch.equal(compiled(x), torch.cos(x) + 1)
    assert not isinstance(seen[0], _LazyGraphModule) and "torch.cos" in seen[0].code


def test_backends_that_other_packages_install(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("elsewhere", f"{__name__}:installed_backend", "torch_dynamo_backends")
    monkeypatch.setattr(backends, "entry_points", lambda group: [point] if group == point.group else [])
    assert "elsewhere" in stator.list_backends()
    monkeypatch.setattr(EntryPoint, "load", lambda self: installed_backend)
    assert stator.compile(lambda x: x * 2, backend="elsewhere")(torch.ones(1)).tolist() == [3]


# ---- the other way round: torch.compile(backend="stator") ----


def traced(function: Any) -> fx.GraphModule:
    return fx.symbolic_trace(function)


def test_backends_that_torch_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `torch._dynamo.register_backend`, which fills this module; stator does not import it."""
    seen: list[Any] = []
    registry = types.SimpleNamespace(_COMPILER_FNS={"of_torch": lambda gm, inputs: seen.append(gm) or gm.forward})
    monkeypatch.setitem(sys.modules, "torch._dynamo.backends.registry", registry)
    x = torch.randn(3)
    assert torch.equal(stator.compile(lambda x: x + 1, backend="of_torch")(x), x + 1) and len(seen) == 1


def test_torch_compile_backend_with_attributes_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ecosystem, "resolve_backend", lambda *_: (backends.run_eagerly, None))
    graph = fx.Graph()
    size, x = graph.placeholder("s0"), graph.placeholder("x")
    weight = graph.get_attr("weight")
    graph.output((graph.call_function(torch.mul, (graph.call_function(torch.mul, (x, size)), weight)),))
    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(torch.tensor([3.0]))
    gm = fx.GraphModule(root, graph)
    compiled = ecosystem.torch_compile_backend(gm, [2, torch.ones(1)])
    assert compiled(2, torch.tensor([5.0]))[0].tolist() == [30]
    assert any(node.op == "get_attr" for node in gm.graph.nodes), "the caller's graph was changed"
    with pytest.raises(stator.CompileError, match="input 0 was 2 when this was compiled and is 3"):
        compiled(3, torch.ones(1))


def test_torch_compile_backend_runs_called_submodules_eagerly() -> None:
    logs.forget_warnings()
    gm = traced(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with pytest.warns(RuntimeWarning, match="calls the module '0' as a whole"):
        compiled = ecosystem.torch_compile_backend(gm, [torch.ones(1, 2)])
    torch.testing.assert_close(compiled(torch.ones(1, 2)), gm(torch.ones(1, 2)))


class Halves(torch.Tensor):
    """A tensor made of two others, without own memory."""

    @staticmethod
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self.first, self.second = first, second

    def __tensor_flatten__(self) -> Any:
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, *_: Any) -> Any:
        return Halves(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def run(name: str) -> torch.Tensor:
            return func(*[getattr(one, name) if isinstance(one, Halves) else one for one in args], **(kwargs or {}))

        return Halves(run("first"), run("second"))


def test_torch_compile_backend_runs_graphs_of_tensors_made_of_others_eagerly() -> None:
    logs.forget_warnings()
    gm = traced(lambda x: (x.sin() + 1,))
    given = Halves(torch.zeros(2), torch.ones(2))
    with pytest.warns(RuntimeWarning, match="is given a Halves"):
        compiled = ecosystem.torch_compile_backend(gm, [given])
    (result,) = compiled(given)
    assert result.first.tolist() == [1, 1]
    torch.testing.assert_close(result.second, torch.ones(2).sin() + 1)


@pytest.mark.slow
def test_torch_compile_runs_on_us() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    compiled = torch.compile(model, backend=ecosystem.torch_compile_backend)
    with torch.no_grad():
        for batch in (3, 5):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_torch_compile_backend_resizes_storages_where_the_program_does(needs_grad: bool) -> None:
    """The resizing operator declares no write, and its place between readers of the memory matters."""
    pytest.importorskip("torch._inductor.lowering")  # it defines the operator
    resize = torch.ops.inductor.resize_storage_bytes_.default

    def emptied(x: torch.Tensor) -> Any:
        result = x.sin()
        resize(x, 0)
        return (result + 1,)

    def filled(x: torch.Tensor) -> Any:
        resize(x, 8)
        with torch.no_grad():
            x.copy_(torch.ones(2))
        return (x * 3,)

    given = torch.zeros(2, requires_grad=needs_grad)
    compiled = torch.compile(emptied, backend=ecosystem.torch_compile_backend)
    assert compiled(given)[0].tolist() == [1, 1]
    assert given.untyped_storage().nbytes() == 0
    compiled = torch.compile(filled, backend=ecosystem.torch_compile_backend)
    assert compiled(given)[0].tolist() == [3, 3]
    assert given.tolist() == [1, 1]
