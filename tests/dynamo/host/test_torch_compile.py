"""stator and torch.compile in one process, inside and around each other."""

import pytest
import torch
from driving import driven

import stator
from stator.base.config import Options
from stator.dynamo.cache.entry import CompiledFrame, make_hook_callback
from stator.dynamo.host.hook import STATOR_FOLDER, call_with_hook, code_marks
from stator.dynamo.host.native_status import native

pytestmark = pytest.mark.slow  # torch.compile takes some seconds to import


def plain(x):
    return torch.relu(x) + 1


def breaking(x):
    y = plain(x)
    torch._C._log_api_usage_once("a call that no compiler looks into")
    return y * 2


X = torch.randn(4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def forget():
    yield
    torch.compiler.reset()
    stator.reset()
    assert native.hook_users() == 0
    left = torch._C._dynamo.eval_frame.set_eval_frame(None)
    assert left is None, "torch.compile compiles whatever runs from now on"


@pytest.mark.parametrize("function", [plain, breaking])
def test_side_by_side(function):
    ours, theirs = stator.compile(function, backend="eager"), torch.compile(function, backend="eager")
    for _ in range(2):
        for compiled in (ours, theirs):
            assert torch.equal(compiled(X), function(X))


@pytest.mark.parametrize("function", [plain, breaking])
def test_theirs_inside_ours(function):
    theirs = torch.compile(function, backend="eager")

    def outer(x):
        return theirs(x) + 1

    ours = stator.compile(outer, backend="eager")
    for _ in range(2):
        assert torch.equal(ours(X), function(X) + 1)


def test_what_torch_compile_gave_runs_as_it_is():
    theirs = torch.compile(plain, backend="eager")
    for function in (theirs, lambda x: theirs(x)):
        with pytest.raises(stator.Unsupported, match="belongs to torch's own compiler"):
            stator.compile(function, backend="eager", fullgraph=True)(X)
        assert torch.equal(stator.compile(function, backend="eager")(X), plain(X))


@pytest.mark.parametrize("function", [plain, breaking])
def test_ours_inside_theirs(function, monkeypatch):
    ours = stator.compile(function, backend="eager")
    traced = []

    def backend(graph, inputs):
        traced.append(graph)
        return graph

    def outer(x):
        return ours(x) + 1

    theirs = torch.compile(outer, backend=backend)
    for _ in range(2):
        assert torch.equal(theirs(X), function(X) + 1)
    # torch.compile may follow the original function, which a compiled one looks like, but no code of stator
    nodes = [node for graph in traced for node in graph.graph.nodes if node.op == "call_function"]
    assert nodes and all(node.stack_trace for node in nodes)
    assert not [node for node in nodes if STATOR_FOLDER in node.stack_trace]


def test_a_compiled_module_inside_theirs_is_one_graph_with_its_hooks():
    """Also as a part of another module, with gradients."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    seen = []
    module.register_forward_hook(lambda *_: seen.append(1))
    ours = stator.compile(module, backend="eager")
    x = torch.randn(2, 3, requires_grad=True)
    for outer in (lambda x: ours(x) + 1, ours, torch.nn.Sequential(ours, torch.nn.ReLU())):
        torch._dynamo.reset()
        theirs = torch.compile(outer, backend="eager", fullgraph=True)
        torch.testing.assert_close(theirs(x), outer(x), rtol=0, atol=0)
        (found,) = torch.autograd.grad(theirs(x).sum(), x)
        (expected,) = torch.autograd.grad(outer(x).sum(), x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert len(seen) == 12


def test_the_hook_leaves_what_torch_compile_generated_alone():
    theirs = torch.compile(breaking, backend="eager")
    theirs(X)
    names = []

    def skip(function, bound):
        names.append(function.__name__)
        return CompiledFrame([], None)

    assert torch.equal(call_with_hook(make_hook_callback(driven(skip), Options()), theirs, X), breaking(X))
    assert not [name for name in names if "resume" in name], names
    assert code_marks
