"""Guards on tensors, modules and torch's state: when they hold, when they fail, and what is said then."""

import threading

import pytest
import torch

from stator.dynamo.guards import global_state, tensor_guards
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.guard_tree import build_guard_tree, describe_failure, without_strong_references
from stator.dynamo.guards.source import FunctionSource, InstanceDictSource, ItemSource, LocalSource
from stator.dynamo.guards.tensor_guards import tensor_guard
from stator.dynamo.host.native_status import native

X = LocalSource("x")


def f(x):
    return x


class Subclass(torch.Tensor):
    pass


@pytest.fixture(params=["direct", "getters"])
def reading(request, monkeypatch):
    """Tensors are read at calibrated offsets, or by their getters as on a torch whose layout is unknown."""
    if request.param == "getters":
        monkeypatch.setattr(tensor_guards, "_install_layout", lambda: False)
    else:
        assert tensor_guards._install_layout()
    return request.param


def holds(guard, value):
    tree = build_guard_tree([guard], f)
    return tree.check((value,), f)


def reason(guard, value):
    failure = build_guard_tree([guard], f).explain((value,), f)
    return describe_failure(without_strong_references([guard]), failure)


def guard_of(tensor, **changes):
    import dataclasses

    return Guard(X, GuardKind.TENSOR, dataclasses.replace(tensor_guard(tensor), **changes))


BASE = torch.zeros(2, 3, 4)
OTHERS = {
    "dtype": BASE.double(),
    "device": BASE.to("meta"),
    "shape": torch.zeros(2, 3, 5),
    "fewer dimensions": torch.zeros(2, 12),
    "stride": torch.zeros(2, 4, 3).transpose(1, 2),
    "requires_grad": torch.zeros(2, 3, 4, requires_grad=True),
    "result that requires_grad": torch.zeros(2, 3, 4, requires_grad=True) * 2,
    "parameter": torch.nn.Parameter(torch.zeros(2, 3, 4), requires_grad=False),
    "subclass": BASE.as_subclass(Subclass),
    "no tensor": [0.0],
    "None": None,
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_tensor_guard_fails_when_this_changes(reading, what):
    guard = guard_of(BASE)
    assert holds(guard, torch.ones(2, 3, 4)), "values do not matter"
    assert not holds(guard, OTHERS[what])


@pytest.mark.parametrize("shape", [(), (0,), (3,), (1, 2, 3, 4, 5), (1, 2, 1, 3, 1, 2), (2,) * 9])
def test_any_number_of_dimensions(reading, shape):
    assert holds(guard_of(torch.zeros(shape)), torch.ones(shape))
    if shape:
        assert not holds(guard_of(torch.zeros(shape)), torch.ones(*shape[:-1], 7))


@pytest.mark.parametrize("dims", [3, 7])
def test_sizes_and_strides_that_are_not_relied_on_may_change(reading, dims):
    shape = (2, 3, *[1] * (dims - 2))
    guard = guard_of(torch.zeros(shape), shape=(None, *shape[1:]), stride=(None,) * dims)
    assert holds(guard, torch.zeros(9, *shape[1:]))
    assert not holds(guard, torch.zeros(2, 9, *shape[2:]))


def test_views_of_storage_and_layout_kinds(reading):
    plain = torch.zeros(2, 2, dtype=torch.complex64)
    guard = guard_of(plain)
    assert holds(guard, torch.zeros(3, 2, dtype=torch.complex64)[1:])
    assert not holds(guard, plain.conj())
    assert not holds(guard_of(plain.conj()), plain) and holds(guard_of(plain.conj()), plain.conj())
    assert not holds(guard_of(torch.zeros(2, 2)), torch._neg_view(torch.zeros(2, 2)))
    if reading == "direct":  # seen through the dispatch keys
        assert not holds(guard_of(torch.zeros(2, 2)), torch.zeros(2, 2).to_sparse())


def test_without_dispatch_keys_ordinary_and_inference_tensors_fit():
    guard = guard_of(BASE, dispatch_keys=None)
    with torch.inference_mode():
        inference = torch.zeros(2, 3, 4)
    assert holds(guard, BASE) and holds(guard, inference)
    assert not holds(guard_of(BASE), inference), "with them they are told apart"
    assert not holds(guard, BASE.to_sparse())


def test_a_view_that_requires_grad_only_through_its_base(reading):
    base = torch.zeros(3)
    view = base[:2]
    guard = guard_of(view)
    assert holds(guard, view) and guard.expected.requires_grad is False
    base.mul_(torch.ones(3, requires_grad=True))
    assert view.requires_grad and not holds(guard, view)


def test_no_code_of_a_subclass_runs(reading):
    class Wide(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_):
            raise AssertionError

        @property
        def shape(self):
            return torch.Size([9])

    tensor = BASE.as_subclass(Wide)
    guard = guard_of(tensor)
    assert guard.expected.shape == (2, 3, 4) and holds(guard, tensor)
    assert not holds(guard, BASE) and not holds(guard_of(tensor, shape=(2, 3, 9)), tensor)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 3, 5), "x: tensor shape [2, 3, 4] became [2, 3, 5], stride [12, 4, 1] became [15, 5, 1]"),
        (BASE.double(), "x: tensor dtype torch.float32 became torch.float64"),
        (torch.zeros(2, 3, 4, requires_grad=True), "x: tensor requires_grad False became True"),
        (None, "x: tensor of type torch.Tensor became builtins.NoneType"),
        (BASE.as_subclass(Subclass), "x: tensor of type torch.Tensor became test_guard_tree.Subclass"),
    ],
)
def test_reasons_for_tensors(value, text):
    assert reason(guard_of(BASE), value) == text


def test_constants_of_torch_are_plain():
    for value in (torch.float32, torch.device("cpu"), torch.Size([2]), torch.strided, torch.channels_last):
        assert holds(Guard(X, GuardKind.EQUALS, value), value)
    assert holds(Guard(X, GuardKind.EQUALS, torch.device("cuda", 1)), torch.device("cuda:1"))
    assert not holds(Guard(X, GuardKind.EQUALS, torch.device("cuda", 1)), torch.device("cuda:0"))
    assert not holds(Guard(X, GuardKind.EQUALS, torch.Size([2])), (2,))
    assert not holds(Guard(X, GuardKind.EQUALS, torch.float32), torch.float64)


def weight_source(name):
    layer = ItemSource(ItemSource(InstanceDictSource(X), "_modules"), "0")
    return ItemSource(ItemSource(InstanceDictSource(layer), "_parameters"), name)


def test_a_module_is_read_without_its_getattr(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    guards = [
        Guard(weight_source("weight"), GuardKind.IS, model[0].weight),
        Guard(weight_source("bias"), GuardKind.TENSOR, tensor_guard(model[0].bias)),
    ]
    tree = build_guard_tree(guards, f)

    def refuse(self, name):
        raise AssertionError(f"__getattr__({name!r})")

    monkeypatch.setattr(torch.nn.Module, "__getattr__", refuse)
    assert tree.check((model,), f)
    monkeypatch.undo()
    model[0].weight = torch.nn.Parameter(torch.zeros(2, 2))
    assert not tree.check((model,), f)


# ---- torch's state ----


@pytest.fixture(params=["probes", "predicates"])
def probing(request, monkeypatch):
    """The state is read by C through libtorch, or compared in Python as on a torch that does not allow that."""
    if request.param == "predicates":
        monkeypatch.setattr(tensor_guards, "install_probes", lambda: False)
    else:
        assert global_state.install_probes()
    return request.param


def state_guard():
    return Guard(FunctionSource(), GuardKind.GLOBAL_STATE, tensor_guards.read_global_state())


CHANGES = {
    "grad mode": torch.no_grad,
    "inference mode": torch.inference_mode,
    "torch function": torch._C.DisableTorchFunctionSubclass,
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_state_guard_fails_inside_and_holds_outside(probing, what):
    tree = build_guard_tree([state_guard()], f)
    assert tree.check((None,), f)
    with CHANGES[what]():
        assert not tree.check((None,), f)
    assert tree.check((None,), f)


@pytest.mark.parametrize("what", CHANGES)
def test_a_state_guard_made_inside_holds_only_inside(probing, what):
    with CHANGES[what]():
        tree = build_guard_tree([state_guard()], f)
        assert tree.check((None,), f)
    assert not tree.check((None,), f)


def test_the_default_dtype_and_determinism_are_part_of_the_state(probing):
    tree = build_guard_tree([state_guard()], f)
    torch.set_default_dtype(torch.float64)
    try:
        assert not tree.check((None,), f)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert not tree.check((None,), f)
    finally:
        torch.use_deterministic_algorithms(False)
    assert tree.check((None,), f)


def test_two_autocast_types_are_told_apart(probing):
    with torch.autocast("cpu", torch.bfloat16):
        tree = build_guard_tree([state_guard()], f)
    with torch.autocast("cpu", torch.float16):
        assert not tree.check((None,), f)
    with torch.autocast("cpu", torch.bfloat16):
        assert tree.check((None,), f)


def test_two_default_devices_are_told_apart(probing):
    with torch.device("meta"):
        tree = build_guard_tree([state_guard()], f)
        assert tree.check((None,), f)
    with torch.device("cpu"):
        assert not tree.check((None,), f)


def test_the_state_of_each_thread_is_its_own(probing):
    with torch.no_grad():
        tree = build_guard_tree([state_guard()], f)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(tree.check((None,), f)))
        thread.start()
        thread.join()
        assert seen == [False] and tree.check((None,), f)


def test_a_state_that_changed_since_the_capture_does_not_hold(probing):
    with torch.no_grad():
        guard = state_guard()
    tree = build_guard_tree([guard], f)
    assert not tree.check((None,), f)
    with torch.no_grad():
        assert tree.check((None,), f)


def test_reasons_for_the_state():
    guard = state_guard()
    with torch.no_grad():
        assert reason(guard, None) == "<function>: torch's state: grad_enabled True became False"


def test_the_experiment_leaves_the_state_as_it_was():
    before = tensor_guards.read_global_state()
    with torch.no_grad():
        assert global_state._probes_tell_the_truth()
    assert tensor_guards.read_global_state() == before


def test_excluded_backends_are_no_part_of_the_state(probing):
    """Excluding one does nothing. Up to torch 2.12 the bit stays when what excluded a key of one backend ends."""
    tree = build_guard_tree([state_guard()], f)
    backend = torch._C.DispatchKeySet.from_raw_repr(8)
    assert backend.raw_repr() < torch._C.DispatchKeySet(torch._C.DispatchKey.Dense).raw_repr()
    with torch._C._ExcludeDispatchKeyGuard(backend):
        assert tree.check((None,), f)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradXLA)):
        pass
    assert tree.check((None,), f)


def test_excluded_autograd_is_part_of_the_state():
    assert global_state.install_probes()
    tree = build_guard_tree([state_guard()], f)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)):
        assert not tree.check((None,), f)
    assert tree.check((None,), f)


def test_probes_that_lie_are_not_trusted(monkeypatch):
    reading = dict(native.read_state() or {})
    monkeypatch.setattr(global_state, "_read", lambda: reading)
    assert not global_state._probes_tell_the_truth()
