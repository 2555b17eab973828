"""A compiled module stays the module: class, attributes, weights, hooks, copies, pickles."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import itertools
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.counting_backend import CountingBackend
from tests.differential import assert_same
from torch import nn
from torch.nn.utils import parametrize

import stator


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(4, 2)
        self.gain = 1.0

    def forward(self, x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        y = self.last(self.drop(self.norm(torch.relu(self.first(x))))) * self.gain
        return y * 2 if twice else y


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias) * 2


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


X = torch.linspace(-1, 1, 15).reshape(5, 3)


def compiled_of(module: nn.Module, **choices: Any) -> Any:
    return stator.compile(module, backend="eager", **choices)


def test_results_and_keywords(net: Net) -> None:
    compiled = compiled_of(net, fullgraph=True)
    assert_same(compiled(X), net(X))
    assert_same(compiled(X, twice=True), net(X, twice=True))


def test_registries_of_modules_know_it(net: Net) -> None:
    compiled = compiled_of(net)
    assert compiled == net and net == compiled and compiled == compiled_of(net) and compiled != Net()
    assert weakref.WeakKeyDictionary({net: 3})[compiled] == 3
    assert len(list(nn.Sequential(net, compiled).modules())) == len(list(nn.Sequential(net, net).modules()))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda module: torch.compile(module, backend="eager"),
        lambda module: torch.compile(nn.Sequential(module), backend="eager"),
        torch.jit.script,
        lambda module: torch.jit.script(nn.Sequential(module)),
        lambda module: torch.jit.trace(module, (X,)),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_compilers_take_it(wrap: Any) -> None:
    module = Scaled()
    compiled = compiled_of(module)
    torch.testing.assert_close(wrap(compiled)(X), module(X))
    assert_same(compiled(X), module(X))


def test_it_is_an_instance_of_its_class_and_looks_like_it(net: Net) -> None:
    compiled = compiled_of(net)
    assert isinstance(compiled, Net) and type(compiled).__name__ == "Net" and repr(compiled) == repr(net)
    assert inspect.signature(compiled) == inspect.signature(net)
    assert inspect.signature(compiled.forward) == inspect.signature(net.forward)
    assert [name for name, _ in compiled.named_modules()] == [name for name, _ in net.named_modules()]


def test_weights_are_shared_both_ways(net: Net) -> None:
    compiled = compiled_of(net)
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), net.parameters(), strict=True))
    before = compiled(X)
    with torch.no_grad():
        net.last.weight.mul_(2)
        net.last.bias.mul_(2)
    assert_same(compiled(X), before * 2)
    compiled.load_state_dict(Net().state_dict())
    assert_same(compiled(X), net(X))


def test_attributes_are_written_through_and_seen(net: Net) -> None:
    compiled = compiled_of(net)
    assert_same(compiled(X), net(X))
    compiled.gain = 3.0
    assert net.gain == 3.0
    assert_same(compiled(X), net(X))
    net.gain = 5.0
    assert compiled.gain == 5.0
    assert_same(compiled(X), net(X))
    compiled.last = nn.Linear(4, 7)
    assert net.last is compiled.last and compiled(X).shape == (5, 7)
    del compiled.gain
    assert not hasattr(net, "gain")
    with pytest.raises(AttributeError, match="gain"):
        compiled(X)


def test_train_and_eval(net: Net) -> None:
    compiled = compiled_of(net)
    assert_same(compiled(X), net(X))
    assert compiled.train() is compiled and net.training and net.norm.training
    expected = copy.deepcopy(net)
    torch.manual_seed(1)
    found = compiled(X)
    torch.manual_seed(1)
    assert_same(found, expected(X))
    assert_same(net.norm.running_mean, expected.norm.running_mean)
    assert net.norm.num_batches_tracked == expected.norm.num_batches_tracked == 1
    compiled.eval()
    assert_same(compiled(X), net(X))


def test_to_another_dtype(net: Net) -> None:
    compiled = compiled_of(net)
    compiled(X)
    assert compiled.to(torch.float64) is compiled
    found = compiled(X.double())
    assert found.dtype == torch.float64
    assert_same(found, net(X.double()))


def test_gradients_flow(net: Net) -> None:
    compiled, expected = compiled_of(net), copy.deepcopy(net)
    compiled(X).sum().backward()
    expected(X).sum().backward()
    for found, wanted in zip(net.parameters(), expected.parameters(), strict=True):
        assert_same(found.grad, wanted.grad)


@pytest.mark.parametrize("when", ["before", "after", "between"])
def test_hooks(net: Net, when: str) -> None:
    compiled = compiled_of(net)
    log: list[str] = []
    if when == "between":
        compiled(X)
    target = net if when == "before" else compiled
    handles = [
        target.register_forward_pre_hook(lambda module, args: log.append("pre")),
        target.first.register_forward_hook(lambda module, args, out: out * 2),
        target.register_forward_hook(lambda module, args, out: log.append("post")),
    ]
    expected = net(X)
    seen, log[:] = list(log), []
    assert_same(compiled(X), expected)
    assert log == seen == ["pre", "post"]
    for handle in handles:
        handle.remove()
    assert_same(compiled(X), net(X))
    assert log == ["pre", "post"]


def test_forward_replaced_on_the_instance(net: Net) -> None:
    compiled = compiled_of(net)
    compiled(X)
    net.forward = lambda x: x + 1  # type: ignore[method-assign]
    assert_same(compiled(X), X + 1)
    del net.forward
    assert_same(compiled(X), net(X))


def test_a_deep_copy_is_independent_and_compiled(net: Net) -> None:
    graphs: list[Any] = []
    compiled = stator.compile(net, backend=lambda gm, inputs: graphs.append(gm) or gm.forward)
    compiled(X)
    twin = copy.deepcopy(compiled)
    assert isinstance(twin, Net) and twin.first.weight is not net.first.weight
    with torch.no_grad():
        twin.last.bias.add_(1)
    assert (twin(X) - compiled(X) - 1).abs().max() < 1e-6
    assert len(graphs) == 2
    shallow = copy.copy(compiled)
    assert shallow.first is net.first
    assert_same(shallow(X), net(X))


def test_pickle_and_torch_save_give_the_plain_module(net: Net) -> None:
    compiled = compiled_of(net)
    compiled(X)
    again = pickle.loads(pickle.dumps(compiled))
    assert type(again) is Net
    assert_same(again(X), net(X))
    buffer = io.BytesIO()
    torch.save(compiled.state_dict(), buffer)
    buffer.seek(0)
    fresh = Net().eval()
    fresh.load_state_dict(torch.load(buffer))
    assert_same(fresh(X), net(X))


def test_a_compiled_submodule_inside_a_compiled_module(net: Net) -> None:
    outer = nn.Sequential(nn.Linear(3, 3), compiled_of(net)).eval()
    result = stator.explain(outer)(X)
    assert (result.graph_count, result.graph_break_count) == (1, 0)
    assert_same(compiled_of(outer)(X), outer(X))
    assert "1.first.weight" in outer.state_dict()


def test_compiling_twice_and_in_place(net: Net) -> None:
    twice = compiled_of(compiled_of(net))
    assert_same(twice(X), net(X))
    assert type(twice).__mro__.count(Net) == 1 and twice.__class__ is Net


def test_module_with_its_own_call() -> None:
    class Own(nn.Linear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) + 100

    own = Own(3, 2)
    assert_same(compiled_of(own)(X), own(X))


def test_submodules_are_reachable_as_before(net: Net) -> None:
    compiled = compiled_of(net)
    compiled.register_buffer("extra", torch.ones(1))
    compiled.add_module("more", nn.ReLU())
    assert "extra" in net.state_dict() and isinstance(net.more, nn.ReLU)
    assert compiled.get_submodule("first") is net.first
    compiled.apply(lambda module: setattr(module, "visited", True))
    assert net.visited and net.first.visited


def test_subclass_registration_does_not_see_made_classes() -> None:
    registered: list[type] = []

    class Registered(nn.Linear):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            registered.append(cls)

    compiled_of(Registered(3, 2))
    assert registered == []


def test_kernels_are_unloaded_with_the_code_that_calls_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mapped() -> int:
        return len({line.split()[-1] for line in open("/proc/self/maps") if f"{tmp_path}/" in line and ".so" in line})

    def compiled_once() -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return (x.sin() * 0.771).sum()

        compiled = stator.compile(f)
        compiled(torch.randn(50, requires_grad=True)).backward()
        assert mapped()

    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    compiled_once()
    gc.collect()
    assert not mapped()


def test_nothing_is_kept_alive() -> None:
    local = Net().eval()
    compiled = compiled_of(local)
    compiled(X)
    reference = weakref.ref(local.first)
    del compiled, local
    gc.collect()
    assert reference() is None


def test_forward_by_name_is_compiled_too(net: Net) -> None:
    backend = CountingBackend()
    compiled = stator.compile(net, backend=backend)
    assert_same(compiled.forward(X), net.forward(X))
    assert_same(compiled.forward(X), net.forward(X))
    assert len(backend.graphs) == 1
    assert type(compiled).forward is Net.forward and net.forward.__func__ is Net.forward  # type: ignore[attr-defined]
    compiled.forward = lambda x: x + (1 if stator.is_compiling() else 10)
    assert torch.equal(compiled.forward(X), X + 1) and torch.equal(net(X), X + 10)
    del compiled.forward
    assert_same(compiled.forward(X), net(X))
    assert "forward" not in vars(net)


def test_forward_by_name_inside_captured_code(net: Net) -> None:
    compiled = compiled_of(net)
    outer = stator.compile(lambda x: compiled.forward(x) + compiled(x), backend="eager", fullgraph=True)
    assert_same(outer(X), net(X) * 2)


class Breaking(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stator.graph_break()
        return x * 2


def test_a_sequential_behind_a_break_is_compiled() -> None:
    """A native function calls the module: only the frame hook sees the call."""
    backend = CountingBackend()
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), Breaking(), torch.nn.Linear(3, 3))

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return next(itertools.starmap(self.layers, [(x,)])) + 1

    model = Outer()
    x = torch.randn(2, 3)
    compiled = stator.compile(model, backend=backend)
    assert_same(compiled(x), model(x))
    assert len(backend.graphs) >= 3  # before the break, behind it, and the outer part
    before = len(backend.graphs)
    assert_same(compiled(x), model(x))
    assert len(backend.graphs) == before


def call_hooks_of(kind: str) -> Any:
    return getattr(nn.modules.module, kind)


IN_THE_WAY = {
    "forward hook": lambda net: net.register_forward_hook(lambda module, inputs, output: output + 1).remove,
    "forward pre-hook": lambda net: net.register_forward_pre_hook(lambda module, inputs: inputs[0] + 1).remove,
    "backward hook": lambda net: net.register_full_backward_hook(lambda module, into, out: None).remove,
    "backward pre-hook": lambda net: net.register_full_backward_pre_hook(lambda module, out: None).remove,
    "forward hook of all modules": lambda net: (
        call_hooks_of("register_module_forward_hook")(lambda module, inputs, output: output + 1).remove
    ),
    "forward of the instance": lambda net: (setattr(net, "forward", lambda x: x * 3), lambda: delattr(net, "forward"))[
        1
    ],
    "_call_impl of the instance": lambda net: (
        setattr(net, "_call_impl", lambda x: x * 5),
        lambda: delattr(net, "_call_impl"),
    )[1],
    "_compiled_call_impl": lambda net: (
        setattr(net, "_compiled_call_impl", lambda x: x * 7),
        lambda: delattr(net, "_compiled_call_impl"),
    )[1],
    "forward of the class": lambda net: replaced(type(net), "forward", lambda self, x: x * 9),
    "__call__ of the class": lambda net: replaced(type(net), "__call__", lambda self, x: x * 11),
    "_call_impl of the class": lambda net: replaced(type(net), "_call_impl", lambda self, x: x * 13),
}


def replaced(cls: type, name: str, value: Any) -> Any:
    own = cls.__dict__.get(name)
    setattr(cls, name, value)
    return (lambda: delattr(cls, name)) if own is None else (lambda: setattr(cls, name, own))


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_a_call_is_entered_at_forward_unless_something_is_in_the_way(what: str) -> None:
    class Own(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.first(x))) + 1

    net = Own().eval()
    compiled = compiled_of(net)
    entry = compiled._stator_call.__func__
    assert entry._function is Own.forward and entry._original is nn.Module.__call__
    for _ in range(4):
        assert_same(compiled(X), net(X))
    hits = sum(version.hits for version in entry._cache.versions)
    assert hits == 3
    remove = IN_THE_WAY[what](net)
    for _ in range(3):
        assert_same(compiled(X), net(X))
    assert sum(version.hits for version in entry._cache.versions) == hits
    remove()
    assert_same(compiled(X), net(X))
    assert sum(version.hits for version in entry._cache.versions) == hits + 1


def test_forwards_that_are_no_plain_functions_are_entered_at_the_call() -> None:
    class Static(nn.Module):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Steps(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            yield x + 1

    class Watched(nn.Module):
        def __getattribute__(self, name: str) -> Any:
            return (lambda x: x - 1) if name == "forward" else super().__getattribute__(name)

    for module in (Static(), Steps(), Watched()):
        compiled = compiled_of(module)
        assert compiled._stator_call.__func__._function is nn.Module.__call__
        for _ in range(2):
            found, expected = compiled(X), module(X)
            assert_same(*((next(found), next(expected)) if isinstance(module, Steps) else (found, expected)))


def test_a_call_that_does_not_fit_forward_raises_as_eager_does(net: Net) -> None:
    compiled = compiled_of(net)
    for arguments in ((), (X, X)):
        with pytest.raises(TypeError) as eager:
            net(*arguments)
        with pytest.raises(TypeError) as found:
            compiled(*arguments)
        assert str(found.value) == str(eager.value)


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).T


def test_libraries_change_the_class_of_a_compiled_module() -> None:
    original, x = nn.Linear(3, 3), torch.randn(2, 3)
    compiled = stator.compile(original, backend="eager")
    assert compiled.__class__ is nn.Linear
    parametrize.register_parametrization(compiled, "weight", Symmetric())
    expected = x @ compiled.weight.T + compiled.bias
    assert torch.equal(compiled.weight, compiled.weight.T) and type(original).__name__ == "ParametrizedLinear"
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(original(x), expected)
    parametrize.remove_parametrizations(compiled, "weight")
    assert type(original) is nn.Linear
    torch.testing.assert_close(compiled(x), expected)


def test_a_module_with_slots() -> None:
    class Slotted(nn.Linear):
        __slots__ = ("note",)

    module = Slotted(3, 3)
    module.note = "mine"
    compiled, x = stator.compile(module, backend="eager"), torch.randn(2, 3)
    assert torch.equal(compiled(x), module(x))
