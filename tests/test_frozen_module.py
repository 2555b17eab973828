"""Frozen modules compute what eager computes, also after their parameters and buffers changed."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import FUSED, NARROW, Tolerance, assert_same
from torch import nn

import stator
from stator.base import counters
from stator.inductor.lower import constant_weights, direct_convolution

GRADIENTS = Tolerance(1e-4, 1e-4)


class Net(nn.Module):
    """Layers whose weights are packed, folded, or used as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 24)
        self.first = nn.Linear(24, 128)
        self.norm = nn.LayerNorm(128)
        self.last = nn.Linear(128, 24, bias=False)
        self.register_buffer("shift", torch.randn(24))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return self.last(self.norm(torch.relu(self.first(x)))) + self.shift.double().sin().float()


class Images(nn.Module):
    """Convolutions with batch normalisation, dense and depthwise, with strides and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 5, padding=2, groups=16), nn.BatchNorm2d(16), nn.ReLU())
        self.pointwise = nn.Sequential(nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16, affine=False))
        self.grouped = nn.Conv2d(16, 32, 3, groups=2, dilation=2)
        self.head = nn.Linear(32, 10)
        for norm in self.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.5, 2)
                if norm.affine:
                    nn.init.normal_(norm.weight)
                    nn.init.normal_(norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.pointwise(self.depthwise(x))
        return self.head(nn.functional.max_pool2d(self.grouped(x), 2).mean((2, 3)))


class Counting(nn.Module):
    """Writes to its own buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.first(x) * self.calls


def tokens(batch: int = 16) -> torch.Tensor:
    return torch.randint(0, 40, (batch, 8))


def images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 32, 32)


def agree(frozen: nn.Module, eager: nn.Module, x: torch.Tensor, tolerance: Tolerance = FUSED) -> None:
    with torch.no_grad():
        expected = eager(x)
    assert_same(frozen(x), expected, tolerance)


def compiled_frames() -> int:
    return counters.counts["dynamo.compiled_frames"]


@pytest.mark.parametrize(("make", "inputs"), [(Net, tokens), (Images, images)])
def test_results(make: type[nn.Module], inputs: Callable[[], torch.Tensor]) -> None:
    model = make().eval()
    frozen = stator.freeze(model, fullgraph=True)
    for _ in range(3):
        agree(frozen, model, inputs())
    assert not frozen(inputs()).requires_grad


@pytest.mark.parametrize(("make", "inputs"), [(Net, tokens), (Images, images)])
@pytest.mark.parametrize("dynamic", [None, True])
def test_changing_batches(make: type[nn.Module], inputs: Callable[[int], torch.Tensor], dynamic: bool | None) -> None:
    model = make().eval()
    frozen = stator.freeze(model, dynamic=dynamic)
    for batch in (4, 9, 1, 33, 4):
        agree(frozen, model, inputs(batch))


def test_bfloat16() -> None:
    model = Net().eval().bfloat16()
    model.shift = torch.zeros(24)
    agree(stator.freeze(model), model, tokens(), NARROW)
    convolutions = Images().eval().bfloat16()
    agree(stator.freeze(convolutions), convolutions, images().bfloat16(), Tolerance(5e-2, 1e-1))


def test_channels_last() -> None:
    model = Images().eval().to(memory_format=torch.channels_last)
    agree(stator.freeze(model), model, images().to(memory_format=torch.channels_last))


def test_exact_rounding() -> None:
    model = Images().eval()
    frozen = stator.freeze(model, options={"exact_rounding": True})
    x = images()
    with torch.no_grad():
        assert torch.equal(frozen(x), model(x))


def test_weights_are_packed_once() -> None:
    frozen = stator.freeze(Images().eval())
    frozen(images())
    packed = counters.counts["packed:convolution"]
    assert packed > 0
    frozen(images())
    assert counters.counts["packed:convolution"] == packed


CHANGES: dict[str, Callable[[Net], object]] = {
    "in place": lambda net: net.first.weight.add_(0.5),
    "one element": lambda net: net.last.weight[3, 7].fill_(4.0),
    "buffer": lambda net: net.shift.mul_(-2.0),
    "view": lambda net: net.first.weight.view(-1)[5:900].zero_(),
    "detached": lambda net: net.norm.weight.detach().mul_(3.0),
    "data in place": lambda net: net.first.weight.data.mul_(1.5),
    "data replaced": lambda net: setattr(net.first.weight, "data", torch.randn(128, 24)),
    "parameter replaced": lambda net: setattr(net, "last", nn.Linear(128, 24, bias=False)),
    "load_state_dict": lambda net: net.load_state_dict(Net().state_dict()),
    "load_state_dict by assignment": lambda net: net.load_state_dict(Net().state_dict(), assign=True),
    "cast and back": lambda net: net.double().float().first.weight.add_(1.0),
    "swapped buffer": lambda net: setattr(net, "shift", torch.ones(24)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_noticed(change: Callable[[Net], object]) -> None:
    model = Net().eval()
    frozen = stator.freeze(model)
    x = tokens()
    agree(frozen, model, x)
    for _ in range(2):
        with torch.no_grad():
            before = model(x)
            change(model)
            changed = not torch.equal(before, model(x))
        agree(frozen, model, x)
        model.eval()
        if changed:
            break
    else:
        raise AssertionError("the change did not change a result")


def test_change_in_inference_mode() -> None:
    model = Net().eval()
    frozen = stator.freeze(model)
    agree(frozen, model, tokens())
    with torch.inference_mode():
        model.first.weight.mul_(2.0)
    agree(frozen, model, tokens())


def test_optimizer_step() -> None:
    """A model that is trained between evaluations: each step is noticed, and at last calls run eagerly."""
    model = Net().eval()
    frozen = stator.freeze(model, options={"recompile_limit": 3})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = tokens()
    with pytest.warns(RuntimeWarning, match="recompile_limit"):
        for _ in range(6):
            agree(frozen, model, x)
            model(x).square().mean().backward()
            optimizer.step()
        agree(frozen, model, x)


def test_outdated_constants_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def watched(pack: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made_here(*args: Any) -> torch.Tensor:
            packed = pack(*args)
            made.append(weakref.ref(packed))
            return packed

        return made_here

    monkeypatch.setattr(constant_weights, "packed_kernel", watched(constant_weights.packed_kernel))
    monkeypatch.setattr(direct_convolution, "packed_for", watched(direct_convolution.packed_for))
    model = Images().eval()
    frozen = stator.freeze(model)
    agree(frozen, model, images())
    first = len(made)
    assert any(one() is not None for one in made)
    with torch.no_grad():
        model.grouped.weight.add_(1)
    agree(frozen, model, images())
    gc.collect()
    assert len(made) > first
    assert all(one() is None for one in made[:first])


def test_tensors_made_in_inference_mode_stay_inputs() -> None:
    """Nothing counts writes to them."""
    with torch.inference_mode():
        model = Net().eval()
    frozen = stator.freeze(model)
    x = tokens()
    with torch.inference_mode():
        for _ in range(2):
            assert_same(frozen(x), model(x), FUSED)
            model.last.weight[3, 7] = 9.0


def test_shared_weights() -> None:
    model = Net().eval()
    model.decoder = nn.Linear(24, 40, bias=False)
    model.decoder.weight = model.table.weight
    both = nn.Sequential(model, model.decoder)
    frozen = stator.freeze(both.eval())
    agree(frozen, both, tokens())
    with torch.no_grad():
        model.table.weight.add_(0.1)
    agree(frozen, both, tokens())


def test_graph_that_writes_to_its_buffer() -> None:
    """A buffer that the graph itself changes is no constant, and its changes cause no compilation."""
    model = Counting().eval()
    other = copy.deepcopy(model)
    frozen = stator.freeze(model)
    x = torch.randn(3, 4)
    agree(frozen, other, x)
    before = compiled_frames()
    for _ in range(3):
        agree(frozen, other, x)
    assert compiled_frames() == before
    assert model.calls == 4


def test_returned_parameter_is_the_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return x @ self.weight, self.weight, self.weight[1]

    model = Tied().eval()
    _, weight, row = stator.freeze(model)(torch.randn(2, 4))
    assert weight is model.weight
    assert row.data_ptr() == model.weight[1].data_ptr()


def test_infinite_statistics_are_not_folded() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    model[1].running_var[0] = -1.0
    model[1].running_mean[1] = float("inf")
    model[1].weight.data[2] = float("nan")
    agree(stator.freeze(model), model, images())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_inputs_that_are_not_finite(value: float) -> None:
    model = Images().eval()
    x = images()
    x[0, 1, 5, 5] = value
    agree(stator.freeze(model), model, x)
    plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU()).eval()
    y = torch.randn(32, 64)
    y[3, 4] = value
    agree(stator.freeze(plain), plain, y)


def test_training_mode_is_refused() -> None:
    model = Net()
    with pytest.raises(stator.UsageError, match="training mode"):
        stator.freeze(model)
    model.eval().norm.train()
    with pytest.raises(stator.UsageError, match="norm is in training mode"):
        stator.freeze(model)
    frozen = stator.freeze(model.eval())
    model.train()
    with pytest.raises(stator.UsageError, match="training mode"):
        frozen(tokens())
    agree(frozen.eval(), model.eval(), tokens())


def test_a_part_that_trains_later_computes_as_in_eager() -> None:
    model, x = Images().eval(), images()
    eager, frozen = copy.deepcopy(model), stator.freeze(model)
    agree(frozen, eager, x)
    for each in (model, eager):
        each.stem[1].train()
    agree(frozen, eager, x)
    assert_same(model.stem[1].running_mean, eager.stem[1].running_mean, FUSED)


def test_quantized_layers_are_not_refused() -> None:
    """Quantization puts layers into an evaluated model whose flag says that they train."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5)).eval()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert quantized[0].training
    x = torch.randn(3, 8)
    agree(stator.freeze(quantized), quantized, x)
    quantized[2].train()
    with pytest.raises(stator.UsageError, match="2 is in training mode"):
        stator.freeze(quantized)


def test_exported_programs_are_not_refused() -> None:
    """Their modules cannot leave the mode that they say they are in."""
    x = images()
    exported = torch.export.export(Images().eval(), (x,)).module()
    assert exported.training
    frozen = stator.freeze(exported)
    agree(frozen, exported, x)
    agree(frozen, exported, x + 1)
    inside = nn.Sequential(exported)
    inside.training = False
    agree(stator.freeze(inside), inside, x)


def test_compiling_a_frozen_module_freezes_it_with_new_settings() -> None:
    net, x = Images().eval(), images()
    again = stator.compile(stator.freeze(net), mode="max-autotune", fullgraph=True)
    before = counters.counts["kernels"]
    assert_same(again(x), net(x).detach(), FUSED)
    assert counters.counts["kernels"] > before
    with pytest.raises(stator.UsageError, match="requires grad"):
        again(x.requires_grad_())
    assert stator.compile(stator.freeze(net), backend="eager")(x).requires_grad


def test_inputs_that_require_grad_are_refused() -> None:
    model = Images().eval()
    frozen = stator.freeze(model)
    x = images().requires_grad_()
    with pytest.raises(stator.UsageError, match="requires grad"):
        frozen(x)
    with torch.no_grad():
        assert_same(frozen(x), model(x), FUSED)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(stator.UsageError, match="takes a module, not function"):
        stator.freeze(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(stator.UsageError, match="freezing"):
        stator.freeze(Net().eval(), options={"freezing": False})


def test_gradients_under_the_option_are_eager_s() -> None:
    """Code that computes gradients has no constants."""
    model, x = Net().eval(), tokens()
    compiled = stator.compile(model, options={"freezing": True})
    with torch.no_grad():
        assert_same(compiled(x), model(x), FUSED)
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    assert_same(torch.autograd.grad(compiled(x).sum(), list(model.parameters())), expected, GRADIENTS)
    before = compiled_frames()
    with torch.no_grad():
        model.first.weight.add_(1)
    assert_same(compiled(x).detach(), model(x).detach(), FUSED)
    assert compiled_frames() == before


def test_frozen_module_is_the_module() -> None:
    model = Net().eval()
    frozen = stator.freeze(model)
    assert isinstance(frozen, Net)
    assert list(frozen.state_dict()) == list(model.state_dict())
    assert frozen.first.weight is model.first.weight
    agree(frozen, model, tokens())
    frozen.load_state_dict(Net().state_dict())
    agree(frozen, model, tokens())


def test_copies_are_frozen_and_pickles_are_plain() -> None:
    model = Net().eval()
    frozen = stator.freeze(model)
    agree(frozen, model, tokens())
    for made in (copy.deepcopy(frozen), copy.copy(frozen)):
        agree(made, model, tokens())
        with pytest.raises(stator.UsageError, match="training mode"):
            made.train()(tokens())
        made.eval()
    independent = copy.deepcopy(frozen)
    with torch.no_grad():
        independent.first.weight.add_(1)
    agree(frozen, model, tokens())
    loaded = pickle.loads(pickle.dumps(frozen))
    assert type(loaded) is Net
    x = tokens()
    assert_same(loaded(x), model(x))


def test_threads() -> None:
    model = Images().eval()
    frozen = stator.freeze(model)
    inputs = [images() for _ in range(8)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    found: list[torch.Tensor | None] = [None] * len(inputs)

    def work(at: int) -> None:
        for _ in range(5):
            found[at] = frozen(inputs[at])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(found, expected, FUSED)


@pytest.mark.parametrize(("make", "inputs"), [(Net, tokens), (Counting, lambda: torch.randn(3, 4))])
def test_compiled_function_keeps_no_model_alive(make: type[nn.Module], inputs: Callable[[], torch.Tensor]) -> None:
    @stator.compile(options={"freezing": True})
    def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    model: Any = make().eval()
    with torch.no_grad():
        run(model, inputs())
    held = weakref.ref(model.first.weight)
    del model
    gc.collect()
    assert held() is None
