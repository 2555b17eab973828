"""What a capture relies on: a change of anything that was looked at recompiles, a change of anything else does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stator
from stator.base import counters
from stator.dynamo.capture import capture
from stator.dynamo.guards.guard import GuardKind

SCALE = 2.0
LIMITS = {"low": 1, "high": 9}


class Settings:
    def __init__(self):
        self.scale = 3.0
        self.unused = 1
        self.names = ["a"]


def compiled_count(function, *calls):
    """How many graphs the calls needed; each must equal eager."""
    stator.reset()
    compiled = stator.compile(function, backend="eager", fullgraph=True)
    counters.clear()
    for args in calls:
        args = args() if callable(args) else args
        assert torch.equal(compiled(*args), function(*args))
    return counters.counts["graphs"]


def x(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def test_number_that_is_used():
    assert compiled_count(lambda t, n: t * n, (x(2), 2), (x(2), 2), (x(2), 3)) == 2


def test_number_that_is_only_handed_on():
    assert compiled_count(lambda t, n: (t + 1, n)[0], (x(2), 2), (x(2), 3)) == 1


@pytest.mark.fixed_sizes
def test_shape_dtype_and_requires_grad():
    calls = [(x(2),), (x(3),), (x(2).double(),), (x(2).requires_grad_(),), (x(2),)]
    assert compiled_count(lambda t: t + 1, *calls) == 4


def test_attribute_that_is_read_and_one_that_is_not():
    settings = Settings()

    def function(t, settings):
        return t * settings.scale

    def change(name, value):
        def call():
            setattr(settings, name, value)
            return x(2), settings

        return call

    assert compiled_count(function, (x(2), settings), change("unused", 2), change("scale", 4.0)) == 2


def test_global_constant_and_global_dictionary(monkeypatch):
    def function(t):
        return t * SCALE + LIMITS["low"]

    compiled = stator.compile(function, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x(2)), function(x(2)))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert torch.equal(compiled(x(2)), function(x(2)))
    monkeypatch.setitem(LIMITS, "low", 50)
    assert torch.equal(compiled(x(2)), function(x(2)))
    counters.clear()
    monkeypatch.setitem(LIMITS, "high", 50)
    assert torch.equal(compiled(x(2)), function(x(2)))
    assert not counters.counts["graphs"], "an entry that is not looked at must not matter"


def test_closures_made_anew_share_code():
    def make(n):
        def function(t, f):
            return f(t)

        return function, lambda t: t * n

    function, two = make(2)
    _, three = make(3)
    assert compiled_count(function, (x(2), two), (x(2), make(2)[1]), (x(2), three)) == 2


def test_list_length_and_contents():
    def function(t, items):
        return t + sum(items)

    assert compiled_count(function, (x(2), [1, 2]), (x(2), [1, 2]), (x(2), [1, 2, 3]), (x(2), [1, 3])) == 3


def test_same_tensor_twice_is_not_two_tensors():
    def function(a, b):
        a.add_(1)
        return a + b

    compiled = stator.compile(function, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x(2), x(2)), function(x(2), x(2)))
    one, other = x(2), x(2)
    assert torch.equal(compiled(one, one), function(other, other))
    assert torch.equal(compiled(x(2), x(2)), function(x(2), x(2)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("offset", torch.ones(3))

    def forward(self, t):
        out = self.linear(t) + self.offset
        return out if self.training else out * 2


@pytest.fixture
def block():
    torch.manual_seed(0)
    return Block().eval()


def test_guards_grow_linearly_with_depth():
    counts = []
    with torch.no_grad():
        for depth in (4, 8, 16):
            model = nn.Sequential(*[Block() for _ in range(depth)]).eval()
            counts.append(len(capture(nn.Sequential.forward, {"self": model, "input": x(2, 3)}).guards))
    assert counts[2] - counts[1] <= 2 * (counts[1] - counts[0]) + 2


def test_parameters_are_fixed_by_identity_and_marked_static(block):
    with torch.no_grad():
        captured = capture(Block.forward, {"self": block, "t": x(2, 3)}, fullgraph=True)
    static = [entry.example for entry in captured.inputs if entry.is_static]
    assert {id(tensor) for tensor in static} == {id(block.linear.weight), id(block.linear.bias), id(block.offset)}
    fixed = {id(guard.expected) for guard in captured.guards if guard.kind is GuardKind.IS}
    assert fixed >= {id(tensor) for tensor in static}


def test_fullgraph_error_names_place_reason_and_the_calls_that_led_there():
    def inner(t):
        return t * 2 if t.sum() > 0 else t

    def outer(t):
        return inner(t + 1)

    with pytest.raises(stator.base.errors.Unsupported) as caught:
        capture(outer, {"t": x(2)}, fullgraph=True)
    error = caught.value
    assert error.kind == "data-dependent-jump" and error.hint
    assert error.place.filename == __file__ and error.place.function.endswith("inner")
    assert "outer" in str(error)


class Name(str):
    pass


def test_numbers_and_text_of_a_subclass_are_compared_by_plain_value():
    numpy = pytest.importorskip("numpy")

    def function(t, n, name):
        return t * n if name == "a" else t

    calls = [
        (x(2), numpy.float64(3), Name("a")),
        (x(2), numpy.float64(3), Name("a")),
        (x(2), numpy.float64(4), Name("a")),
        (x(2), numpy.float64(4), Name("b")),
        (x(2), 4.0, Name("b")),
    ]
    assert compiled_count(function, *calls) == 2  # for 3 and 4; under the name "b" nothing is left to compile


def test_grad_mode_left_changed_is_changed_for_the_caller_too():
    def function(t):
        torch.set_grad_enabled(False)
        return t + 1

    compiled = stator.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        with torch.enable_grad():
            assert not compiled(x(2).requires_grad_()).requires_grad
            assert not torch.is_grad_enabled()


def test_buffer_that_each_call_replaces_is_compiled_once():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, t):
            self.count = self.count + 1
            return t * self.count

    stator.reset()
    module = Counting()
    compiled = stator.compile(module, backend="eager", fullgraph=True)
    counters.clear()
    results = [compiled(x(2)) for _ in range(3)]
    assert counters.counts["graphs"] == 1
    assert torch.equal(torch.stack(results), torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]))
    assert torch.equal(module.count, torch.tensor(3.0))
