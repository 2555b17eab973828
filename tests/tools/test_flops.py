"""`stator.flops`: expressions agree with torch's own counter at every size, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.models import build, import_torchvision
from torch.utils.flop_counter import FlopCounterMode

import stator
from stator import TensorSpec
from stator.shapes.expr import Symbol

SIZES = ({"batch": 1, "seq": 1}, {"batch": 2, "seq": 7}, {"batch": 1, "seq": 30})


def counted(model: Callable[..., Any], args: Any, kwargs: Any, backward: bool) -> FlopCounterMode:
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
        result = model(*args, **kwargs)
        if backward:
            leaves = [one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
            torch.autograd.backward([one.sum() for one in leaves if one.requires_grad])
    return counter


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, groups=1)
        self.transposed = torch.nn.ConvTranspose2d(8, 4, 3)
        self.head = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))

    def forward(self, x):
        return self.head(self.transposed(self.conv(x)).mean((2, 3)))


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 4, 12).transpose(1, 2).chunk(3, -1)
        return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).flatten(2)


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize(
    "name", ("BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration")
)
def test_transformers_agree_with_torchs_counter(name: str, backward: bool) -> None:
    case = build(name, size="small")
    spec = TensorSpec(("batch", "seq"), torch.int64)
    found = stator.flops(case.model, backward=backward, **dict.fromkeys(case.kwargs, spec))
    assert {symbol.name for symbol in found.total.symbols} == {"batch", "seq"}
    for sizes in SIZES:
        kwargs = {key: torch.ones(sizes["batch"], sizes["seq"], dtype=torch.int64) for key in case.kwargs}
        counter = counted(case.model, (), kwargs, backward)
        assert found.at(**sizes) == counter.get_total_flops(), (sizes, str(found))


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("name", ("resnet18", "vit_tiny_patch16_224"))
def test_vision_models_agree_with_torchs_counter(name: str, backward: bool) -> None:
    import_torchvision()
    import timm

    model = timm.create_model(name).eval()
    found = stator.flops(model, TensorSpec(("batch", 3, "height", "width")), backward=backward)
    side = 224 if "vit" in name else 40
    counter = counted(model, (torch.ones(1, 3, side, side),), {}, backward)
    assert found.at(batch=1, height=side, width=side) == counter.get_total_flops()


def agree(model: Callable[..., Any], shape: tuple[Any, ...], sizes: dict[str, int], backward: bool) -> None:
    found = stator.flops(model, TensorSpec(shape), backward=backward)
    counter = counted(model, (torch.ones([sizes.get(size, size) for size in shape]),), {}, backward)
    values = {Symbol(name): value for name, value in sizes.items()}
    assert found.at(**sizes) == counter.get_total_flops()
    counts = counter.get_flop_counts()
    assert {name: count.evaluate(values) for name, count in found.by_operator.items()} == {
        str(name): count for name, count in counts["Global"].items()
    }
    if not isinstance(model, torch.nn.Module):
        return
    modules = {name: count.evaluate(values) for name, count in found.by_module.items() if name}
    prefix = type(model).__name__ + "."
    assert modules == {
        name.removeprefix(prefix): sum(count.values()) for name, count in counts.items() if name.startswith(prefix)
    }


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("size", (7, 12))
def test_operators_and_modules_agree(size: int, backward: bool) -> None:
    agree(Layers(), ("batch", 3, "side", "side"), {"batch": 2, "side": size}, backward)
    agree(Attention(), ("batch", "seq", 16), {"batch": 3, "seq": size}, backward)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_fused_layers_agree(dtype: torch.dtype) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dtype=dtype)
    attention, spec = layer.self_attn, TensorSpec(("batch", "seq", 16), dtype)
    for model in (layer, torch.nn.TransformerEncoder(layer, 2), lambda x: attention(x, x, x)[0]):
        for training in (True, False):
            layer.train(training)
            if isinstance(model, torch.nn.Module):
                model.train(training)
            found = stator.flops(model, spec)
            for batch, seq in ((1, 1), (3, 5), (2, 64)):
                x = torch.ones(batch, seq, 16, dtype=dtype)
                assert found.at(batch=batch, seq=seq) == counted(model, (x,), {}, False).get_total_flops()
            assert training or "no formula" in str(found)


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_grids_of_positions_agree(backward: bool) -> None:
    matrices = torch.ones(2, 2, 3, requires_grad=True)

    def program(x):
        return F.grid_sample(x, F.affine_grid(matrices, list(x.shape), align_corners=False), align_corners=False)

    agree(program, (2, 3, "height", "width"), {"height": 5, "width": 7}, backward)


def test_functions_are_counted() -> None:
    weight = torch.ones(4, 6)
    agree(lambda x: torch.einsum("bi,ij->bj", x, weight), ("batch", 4), {"batch": 5}, False)


def test_the_expression_is_readable() -> None:
    found = stator.flops(torch.nn.Linear(768, 3072), TensorSpec(("batch", "seq", 768)))
    assert str(found.total) == "4718592*batch*seq"
    assert str(found.sympy()) == "4718592*batch*seq"


def test_branches_on_sizes_count_their_own_operations() -> None:
    def program(x):
        return x @ x if x.shape[0] > 10 else x

    found = stator.flops(program, TensorSpec(("n", "n")))
    assert [found.at(n=n) for n in (0, 1, 5, 11, 20)] == [0, 0, 0, 2 * 11**3, 2 * 20**3]


def test_the_expression_is_that_of_most_sizes() -> None:
    spec = TensorSpec((stator.Dim("n", example=5), "n"))
    found = stator.flops(lambda x: x @ x if x.shape[0] == 5 else x @ x @ x, spec)
    assert str(found.total) == "4*n*n*n"


def test_sizes_at_which_the_program_fails_are_refused() -> None:
    found = stator.flops(lambda x: x.view(-1, 4) @ x.new_ones(4, 2), TensorSpec(("n",)))
    assert found.at(n=8) == 32
    with pytest.raises(stator.ProgramError, match="invalid for input of size"):
        found.at(n=7)


def test_a_size_without_a_value_is_refused() -> None:
    with pytest.raises(stator.UsageError, match="no value for n"):
        stator.flops(torch.relu, TensorSpec(("n",))).at()


def test_attention_without_a_formula_is_named() -> None:
    found = stator.flops(lambda x: F.scaled_dot_product_attention(x, x, x), TensorSpec(("batch", 2, "seq", 8)))
    assert found.total == 0
    assert list(found.uncounted.values()) == [1]


def test_parameters_get_no_gradients() -> None:
    model = torch.nn.Linear(3, 3)
    stator.flops(model, TensorSpec(("batch", 3)), backward=True)
    assert model.weight.grad is None
