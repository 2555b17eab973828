"""`stator.memory`: the peak agrees with the lifetimes of storages in an eager call, at every size."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.models import build, import_torchvision
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import stator
from stator import TensorSpec
from stator.prims.onednn import is_half_float
from stator.tools.step_memory import _allocations, _highest


class Measuring(TorchDispatchMode):
    """Follows the storages that operators allocate on real tensors."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.known = {one.untyped_storage()._cdata for one in known}
        self.alive: dict[int, int] = {}
        self.peak = self.now = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf.untyped_storage())
        return result

    def add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known or key in self.alive:
            return
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, key)

    def free(self, key: int) -> None:
        self.now -= self.alive.pop(key)


def measured(model: Callable[..., Any], args: Any, kwargs: Any, backward: bool) -> int:
    module = model if isinstance(model, torch.nn.Module) else torch.nn.Module()
    leaves = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    mode = Measuring([*leaves, *module.parameters(), *module.buffers()])
    with torch.set_grad_enabled(backward), mode:
        result = model(*args, **kwargs)
        if backward:
            outputs = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
            tangents = [torch.ones_like(one) for one in outputs]
            wanted = [one for one in (*module.parameters(), *leaves) if one.requires_grad]
            gradients = torch.autograd.grad(outputs, wanted, tangents, allow_unused=True)
            assert gradients
    return mode.peak


def chain(x):
    return (x * 2 + 1).relu().sum(0)


def freed_early(x):
    wide = torch.cat([x, x, x])
    narrow = wide.sum(0)
    del wide
    return narrow[None].expand(4, -1).exp() @ x.t()


def in_place(x):
    y = x.clone()
    y.add_(1).mul_(x)
    return y[1:]


def depends_on_the_size(x):
    return torch.cat([x] * 4).sum() if x.shape[0] > 8 else x + 1


def several_peaks(x):
    first = (x @ x.t()).softmax(-1).sum()  # as the square of the first size
    second = (x.t() @ x).softmax(-1).sum()  # as the square of the second
    return first + second


def numbers(x):
    return torch.tensor([1.0, 2.0]) + torch.arange(x.shape[0]).sum() + x.mean()


def attention(x):
    return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])


def loss(x):
    return F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.int64))


def kept_terms(x):
    """Reduced losses keep the storage of their terms."""
    truth = x.detach().sigmoid()
    return F.mse_loss(x, truth), F.smooth_l1_loss(x, truth), F.binary_cross_entropy(x.sigmoid(), truth)


def bags(x):
    rows = torch.zeros(x.shape, dtype=torch.int64)
    return F.embedding_bag(rows, x.t(), mode="mean"), F.embedding_bag(rows, x.t(), mode="max")


def columns_of_images(x):
    return F.fold(F.unfold(x[None, None], 2), (x.shape[0], x.shape[1]), 2)


def windows(x):
    return F.conv2d(x[None, None], torch.ones(2, 1, 3, 3), stride=2).relu_()


PROGRAMS = (
    *(chain, freed_early, in_place, depends_on_the_size, several_peaks, numbers, attention, loss, windows),
    *(kept_terms, bags, columns_of_images),
)
SHAPES = ((3, 4), (5, 40), (40, 5), (9, 9), (30, 31), (1, 6), (4, 4))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_functions_agree_with_eager(program: Callable[..., Any]) -> None:
    found = stator.memory(program, TensorSpec(("rows", "columns")))
    for rows, columns in SHAPES:
        if rows < {windows: 3, columns_of_images: 2}.get(program, 0):
            continue
        expected = measured(program, (torch.ones(rows, columns),), {}, False)
        assert found.at(rows=rows, columns=columns).peak == expected, (rows, columns, str(found))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_of_inputs_agree_with_eager(program: Callable[..., Any]) -> None:
    found = stator.memory(program, TensorSpec(("rows", "columns"), requires_grad=True), backward=True)
    for rows, columns in SHAPES[1:4]:
        expected = measured(program, (torch.ones(rows, columns, requires_grad=True),), {}, True)
        assert found.at(rows=rows, columns=columns).peak == expected, (rows, columns, str(found))


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize(
    "name", ("BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration")
)
def test_transformers_agree_with_eager(name: str, backward: bool) -> None:
    case = build(name, size="small")
    spec = TensorSpec(("batch", "seq"), torch.int64)
    names = [key for key in case.kwargs if key != "attention_mask"]
    found = stator.memory(case.model, backward=backward, **dict.fromkeys(names, spec))
    for batch, seq in ((2, 7), (3, 30))[: 1 if backward else 2]:
        kwargs = {key: torch.ones(batch, seq, dtype=torch.int64) for key in names}
        assert found.at(batch=batch, seq=seq).peak == measured(case.model, (), kwargs, backward), str(found)


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("name", ("resnet18", "vit_tiny_patch16_224"))
def test_vision_models_agree_with_eager(name: str, backward: bool) -> None:
    import_torchvision()
    import timm

    model = timm.create_model(name).eval()
    found = stator.memory(model, TensorSpec(("batch", 3, "height", "width")), backward=backward)
    side = 224 if "vit" in name else 40
    expected = measured(model, (torch.ones(2, 3, side, side),), {}, backward)
    assert found.at(batch=2, height=side, width=side).peak == expected


@pytest.mark.parametrize("backward", (False, True), ids=("inference", "training"))
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        *itertools.product(
            (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN), ({}, {"bidirectional": True}, {"num_layers": 2})
        ),
        (torch.nn.LSTM, {"proj_size": 4}),
    ],
    ids=str,
)
def test_recurrent_layers_agree_with_eager(layer: Any, options: dict[str, Any], backward: bool) -> None:
    module = layer(6, 8, batch_first=True, **options)
    found = stator.memory(module, TensorSpec(("batch", "seq", 6)), backward=backward)
    for batch, seq in ((2, 5), (3, 7), (4, 20), (1, 1), (5, 3)):
        assert found.at(batch=batch, seq=seq).peak == measured(module, (torch.randn(batch, seq, 6),), {}, backward)


@pytest.mark.parametrize("backward", (False, True), ids=("inference", "training"))
@pytest.mark.parametrize("cell", (torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell))
def test_recurrent_cells_agree_with_eager(cell: Any, backward: bool) -> None:
    module = cell(8, 6)
    found = stator.memory(module, TensorSpec(("batch", 8)), backward=backward)
    for batch in (2, 5, 40):
        assert found.at(batch=batch).peak == measured(module, (torch.randn(batch, 8),), {}, backward), str(found)


def measured_by_allocator(function: Callable[..., Any], *args: Any) -> int:
    """The peak, memory inside of kernels included."""
    with torch.no_grad(), _allocations() as changes:
        function(*args)
    return _highest(changes)


@pytest.mark.parametrize("masks", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("norm_first", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
def test_fused_layers_agree_with_the_allocator(dtype: torch.dtype, norm_first: bool, masks: Any) -> None:
    if is_half_float(dtype):
        pytest.skip("oneDNN's products take memory of their own on this processor")
    layer = torch.nn.TransformerEncoderLayer(16, 2, 48, batch_first=True, norm_first=norm_first, dtype=dtype).eval()
    layers = torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(16, dtype=dtype), enable_nested_tensor=False)

    def attention(x, mask, padding):
        return layer.self_attn(x, x, x, padding, attn_mask=mask, average_attn_weights=norm_first)

    shapes = [("seq", "seq") if masks[0] else None, ("batch", "seq") if masks[1] else None]
    specs = [None if shape is None else TensorSpec(shape, torch.bool) for shape in shapes]
    for model in (layer, layers.eval(), attention):
        found = stator.memory(model, TensorSpec(("batch", "seq", 16), dtype), *specs)
        for batch, seq in ((3, 5), (1, 7), (8, 1), (2, 64), (1, 200)):
            given = [torch.zeros(seq, seq).bool() if masks[0] else None, torch.zeros(batch, seq).bool()]
            args = torch.ones(batch, seq, 16, dtype=dtype), given[0], given[1] if masks[1] else None
            assert found.at(batch=batch, seq=seq).peak == measured_by_allocator(model, *args), str(found)


def test_the_report_names_layers_that_only_sizes_tell() -> None:
    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tagger = torch.nn.LSTM(6, 8)

        def forward(self, x):
            return self.tagger(x)[0].relu()

    found = stator.memory(Tagger(), TensorSpec(("seq", "batch", 6)))
    assert "counted by at() alone: memory inside of the lstm in tagger, File" in str(found)


def test_parameters_buffers_and_inputs_count_apart() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    found = stator.memory(model, TensorSpec(("batch", 4)))
    assert str(found.inputs) == "16*batch"
    assert found.parameters == 4 * (4 * 8 + 8 + 8 + 8)
    assert found.buffers == 4 * (8 + 8) + 8
    at = found.at(batch=3)
    assert at.total == at.peak + 48 + found.parameters + found.buffers


def test_tied_parameters_count_once() -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight
    assert stator.memory(torch.nn.Sequential(first, second), TensorSpec(("batch", 4))).parameters == 4 * (16 + 4 + 4)


def test_tensors_of_a_function_count_as_from_before() -> None:
    table = torch.ones(10)
    found = stator.memory(lambda x: x + table, TensorSpec(("batch", 10)))
    assert (found.parameters, found.buffers, str(found.peak)) == (0, 40, "40*batch")


def test_the_peak_is_a_maximum_where_no_step_is_always_the_highest() -> None:
    found = stator.memory(several_peaks, TensorSpec(("rows", "columns")))
    assert str(found.peak).startswith("max(")


def test_steps_between_others_do_not_count() -> None:
    """The backward of a deep network exchanges activations for gradients; only its ends can be the highest."""
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))
    found = stator.memory(model, TensorSpec(("batch", 16)), backward=True)
    assert str(found.peak).count(",") <= 2
    for batch in (2, 16, 60, 200):
        assert found.at(batch=batch).peak == measured(model, (torch.ones(batch, 16),), {}, True)


def test_what_is_alive_at_the_peak_is_named() -> None:
    def program(x):
        wide = x.repeat(3, 1)
        return wide.sum()

    alive = stator.memory(program, TensorSpec(("rows", 2))).at(rows=5).alive
    assert [(size, one.operator) for size, one in alive] == [(120, "aten.repeat"), (4, "aten.sum")]
    assert alive[0][1].place.function.endswith("program")
