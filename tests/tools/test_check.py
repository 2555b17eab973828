"""`stator.check`: verdicts and constraints agree with eager at every size; errors are at the program's own lines."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.models import build, import_torchvision

import stator
from stator import Dim, TensorSpec
from stator.shapes.expr import Symbol

TRIED = range(2, 14)


def cat(x, y):
    return torch.cat([x, y], 1)  # here


def add(x, y):
    return x + y


def matmul(x, y):
    return x @ y


def batched(x, y):
    return torch.bmm(x.unsqueeze(0), y.unsqueeze(0))


def multiple_of_four(x, y):
    return x.view(4, -1) * 2


def heads(x, y):
    rows, columns = x.shape
    return x.view(rows, 3, columns // 3).transpose(0, 1)


def asserted(x, y):
    assert x.shape[0] <= 7, "too long"
    return x.sum() + y.sum()


def one_branch_needs_more(x, y):
    if x.shape[0] > 5:
        return x + y[: x.shape[0]].sum(0)
    return x.t() @ x


def no_branch_matters(x, y):
    return x * 2 if x.shape[0] > 5 else x.sum(0)


def contradicts_itself_on_one_side(x, y):
    if x.shape[0] > y.shape[0]:
        return x[:, 0] + y[:, 0]
    return x.sum() + y.sum()


def window(x, y):
    return x.unfold(0, 4, 1) + y.sum()


def embedded(x, y):
    return F.embedding(torch.zeros(5, dtype=torch.int64), x) @ y


def pooled(x, y):
    return F.max_pool2d(x[None], 5)


def diagonal(x, y):
    return x.diagonal() + y.diagonal()


def chunked(x, y):
    first, second = x.chunk(2, 0)
    return first + second


def reflected(x, y):
    return F.pad(x[None], (2, 2), mode="reflect")


def index_added(x, y):
    return x.index_add(0, torch.tensor([0, 1]), y)


def kth(x, y):
    return x.kthvalue(4, 0)[0]


def patches(x, y):
    rows, columns = x.shape
    return x.reshape(rows // 4, 4, columns // 3, 3).sum((0, 2))


def narrow(x, y):
    return x.narrow(0, 3, 4) + y[:1, :1]


def written(x, y):
    x.copy_(y)
    return x


PROGRAMS = (
    *(cat, add, matmul, batched, multiple_of_four, heads, asserted, one_branch_needs_more, no_branch_matters),
    *(contradicts_itself_on_one_side, window, embedded, pooled, diagonal, chunked, narrow, written),
    *(reflected, index_added, kth, patches),
)
SHAPES = (("rows", "columns"), ("height", "width"))


def passes(program: Callable[..., Any], sizes: dict[str, int]) -> bool:
    try:
        program(*(torch.ones([sizes[name] for name in shape]) for shape in SHAPES))
    except (RuntimeError, AssertionError, ValueError, IndexError):
        return False
    return True


def allowed(result: stator.CheckResult, sizes: dict[str, int]) -> bool:
    values = {Symbol(name): value for name, value in sizes.items()}
    return all(
        constraint.condition.holds(values)
        for constraint in result.constraints
        if all(answer.holds(values) for answer in constraint.when)
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_constraints_hold_for_the_sizes_at_which_eager_passes(program: Callable[..., Any]) -> None:
    result = stator.check(program, *map(TensorSpec, SHAPES))
    assert result.ok, str(result)
    names = [name for shape in SHAPES for name in shape]
    wrong = []
    for values in itertools.product((2, 3, 4, 6, 8, 12), repeat=4):
        sizes = dict(zip(names, values, strict=True))
        if allowed(result, sizes) != passes(program, sizes):
            wrong.append(sizes)
    assert not wrong, f"{result}\n{len(wrong)} sizes, such as {wrong[:5]}"


def texts(result: stator.CheckResult) -> list[str]:
    return [constraint.text for constraint in result.constraints]


def test_constraints_read_as_a_person_writes_them() -> None:
    def program(x):
        assert x.shape[0] <= 512
        return x.view(x.shape[0], 8, x.shape[1] // 8)

    assert texts(stator.check(program, TensorSpec(("seq", "width")))) == ["seq <= 512", "width % 8 == 0"]


def test_a_constraint_names_the_line_and_the_error_without_it() -> None:
    (constraint,) = stator.check(cat, *map(TensorSpec, SHAPES)).constraints
    assert "# here" in linecache.getline(constraint.place.filename, constraint.place.line)
    assert constraint.otherwise == "cat: (rows, columns), (height, width): rows != height"


def test_a_constraint_of_one_branch_names_the_branch() -> None:
    assert texts(stator.check(one_branch_needs_more, *map(TensorSpec, SHAPES))) == ["columns == width where rows >= 6"]


class Attention(torch.nn.Module):
    def __init__(self, heads: int, width: int = 64, out: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(64, 3 * width)
        self.out = torch.nn.Linear(out, 64)

    def forward(self, x):
        q, k, v = (
            part.view(*part.shape[:2], self.heads, -1).transpose(1, 2)  # here
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))  # there


class Wrong(torch.nn.Module):
    """Modules of which one does not fit."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)  # here
        return x


def index_out_of_range(x):
    return x[:, 70]  # here


def wrong_view(x):
    return x.view(x.shape[0], 5, 7)  # here


def wrong_broadcast(x):
    return x + torch.ones(3, 64)[:, :63]  # here


def wrong_cat(x):
    return torch.cat([x, x[:, 1:]], 0)  # here


def wrong_einsum(x):
    return torch.einsum("bc,cd->bd", x, torch.ones(63, 2))  # here


def wrong_stack(x):
    return torch.stack([x, x.t()[:5]])  # here


def wrong_permute(x):
    return x.permute(0, 2, 1)  # here


def raising(x):
    if x.shape[1] != 63:
        raise ValueError("only 63 wide")  # here
    return x


def wrong_loss(x):
    return F.mse_loss(x, torch.zeros(2, 63))  # here


def wrong_batched(x):
    return torch.baddbmm(x.unsqueeze(1), x.unsqueeze(1), torch.ones(1, 63, 64).expand(x.shape[0], 63, 64))  # here


ROW = ("batch", 64)
FAILING = {
    "linear": (
        Wrong(torch.nn.Linear(64, 32), torch.nn.Linear(64, 32)),
        ROW,
        "linear: (batch, 32) x (32, 64): 32 != 64",
    ),
    "conv": (
        Wrong(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(3, 8, 3)),
        ("batch", 3, "height", "width"),
        "8 channels, and a weight for 3",
    ),
    "norm": (Wrong(torch.nn.LayerNorm(63)), ROW, "64 != 63"),
    "batch norm": (Wrong(torch.nn.BatchNorm1d(63)), ROW, "64"),
    "view": (wrong_view, ROW, "view: (batch, 64) to (batch, 5, 7)"),
    "broadcast": (wrong_broadcast, ROW, "64 != 63"),
    "cat": (wrong_cat, ROW, "64 != 63"),
    "index": (index_out_of_range, ROW, "70"),
    "einsum": (wrong_einsum, ROW, "64"),
    "stack": (wrong_stack, ROW, ""),
    "permute": (wrong_permute, ROW, "permute"),
    "loss": (wrong_loss, ROW, "64 != 63"),
    "baddbmm": (wrong_batched, ROW, "64 != 63"),
    "raised by the program": (raising, ROW, "ValueError: only 63 wide"),
    "heads": (Attention(5), ("batch", "seq", 64), "view: (batch, seq, 64) to (batch, seq, 5, -1)"),
    "lstm": (Wrong(torch.nn.LSTM(63, 8)), ("seq", "batch", 64), "63"),
}


@pytest.mark.parametrize("family", FAILING)
def test_an_error_is_at_the_programs_line(family: str) -> None:
    program, shape, part = FAILING[family]
    result = stator.check(program, TensorSpec(shape))
    assert result.ok is False, str(result)
    assert "# here" in linecache.getline(result.error.place.filename, result.error.place.line), str(result)
    assert part in str(result.error)


def test_the_last_projection_of_attention_is_the_error() -> None:
    result = stator.check(Attention(4, out=60), TensorSpec(("batch", "seq", 64)))
    assert result.error.operation == "linear: (batch, seq, 64) x (64, 60): 64 != 60"
    assert "# there" in linecache.getline(result.error.place.filename, result.error.place.line)
    assert result.error.module == "out"


def test_attention_passes_for_all_sizes() -> None:
    result = stator.check(Attention(4), TensorSpec(("batch", "seq", 64)))
    assert (result.ok, result.constraints, result.complete) == (True, (), True)
    assert str(result.outputs) == "(batch, seq, 64) float32"


def test_a_failed_check_raises_its_report() -> None:
    with pytest.raises(stator.ShapeError, match="32 != 64"):
        stator.check(FAILING["linear"][0], TensorSpec(ROW)).raise_if_failed()


def test_named_ints_are_symbols() -> None:
    def program(x, count):
        return x.view(count, -1)

    result = stator.check(program, TensorSpec(("batch",)), Dim("count"))
    assert texts(result) == ["batch % count == 0"]


def test_ranges_settle_questions() -> None:
    result = stator.check(asserted, TensorSpec((Dim("rows", high=6), 3)), TensorSpec((2, 2)))
    assert (result.ok, result.constraints) == (True, ())


def test_examples_name_their_dimensions() -> None:
    result = stator.check(matmul, torch.ones(3, 5), torch.ones(5, 4), dims={"x": ("a", "b"), 1: {0: "c"}})
    assert texts(result) == ["b == c"]


def test_programs_that_read_numbers_from_data_are_not_judged() -> None:
    result = stator.check(lambda x: x if x.sum().numpy() > 0 else -x, TensorSpec(("batch",)))
    assert (result.ok, result.error) == (None, None)
    assert "not known" in str(result)


def test_both_ways_behind_a_truth_of_data_are_checked() -> None:
    def program(x, y):
        if x.sum() > 0:
            return x + y
        return x

    result = stator.check(program, TensorSpec(("a",)), TensorSpec(("b",)))
    assert texts(result) == ["a == b where data_1 == 1"]
    assert "data_1 is a truth that depends on data: File" in str(result)


def test_errors_for_some_data_are_assumptions_about_data() -> None:
    def program(x):
        if x.sum() > 0:
            raise ValueError("positive")
        return x

    result = stator.check(program, TensorSpec(("a",)))
    assert (result.ok, texts(result)) == (True, [])
    (assumption,) = result.assumptions
    assert assumption.text == "data_1 != 1"
    assert assumption.otherwise.startswith("ValueError: positive")


def test_operators_that_need_numbers_are_checked_for_one() -> None:
    result = stator.check(lambda x: [x[row] for row in range(int(x.shape[0]))], TensorSpec((Dim("a", example=5), 2)))
    assert texts(result) == ["a == 5"]
    assert "not tried" in str(result) and not result.complete


def test_sizes_that_depend_on_data_are_followed() -> None:
    result = stator.check(lambda x: x[x > 0] * 2, TensorSpec(("batch", 3)))
    assert result.ok, str(result)


def test_a_size_of_an_unknown_kind_fails_where_it_is_wrong() -> None:
    result = stator.check(lambda x: x[x > 0].view(-1, 1) @ torch.ones(2, 2), TensorSpec(("batch", 3)))
    assert result.ok is False
    assert "1 != 2" in str(result)


def test_sizes_that_become_one_ask_for_nothing() -> None:
    gate = torch.nn.Conv2d(4, 4, 1)

    def gated(x):
        x = F.max_pool2d(x, 3, 2, 1)
        return x * gate(x.mean((2, 3), keepdim=True)).sigmoid()

    assert stator.check(gated, TensorSpec((2, 4, "height", "width"))).constraints == ()


def test_modules_are_left_as_they_were() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = None
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x):
            self.seen = x
            self.total = self.total + x.sum()
            return x

    module = Counting()
    before = module.total
    stator.check(module, TensorSpec(("batch",)))
    assert module.seen is None and module.total is before


@pytest.mark.parametrize("bad", (("1a",), (Dim("a", low=5, example=6), Dim("a", low=7))))
def test_unfit_names_are_refused(bad: tuple[Any, ...]) -> None:
    with pytest.raises(stator.UsageError):
        stator.check(add, TensorSpec(bad), TensorSpec(("b",)))


def ids(*names: str) -> TensorSpec:
    return TensorSpec(names, torch.int64)


TRANSFORMERS = {
    "BertForMaskedLM": ["seq <= 512"],
    "GPT2LMHeadModel": [],
    "LlamaForCausalLM": [],
    "T5ForConditionalGeneration": [],
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_pass(name: str) -> None:
    case = build(name, size="small")
    specs = {key: ids("batch", "seq") for key in case.kwargs}
    result = stator.check(case.model, **specs)
    assert result.ok, str(result)
    assert result.complete
    limit = getattr(case.model.config, "max_position_embeddings", None)
    assert texts(result) == ([f"seq <= {limit}"] if TRANSFORMERS[name] else []), str(result)


@pytest.mark.parametrize(
    ("name", "expected"), (("resnet18", []), ("vit_tiny_patch16_224", ["height == 224", "width == 224"]))
)
def test_vision_models_pass(name: str, expected: list[str]) -> None:
    import_torchvision()
    import timm

    result = stator.check(timm.create_model(name).eval(), TensorSpec(("batch", 3, "height", "width")))
    assert result.ok, str(result)
    assert texts(result) == expected
    assert str(result.outputs) == "(batch, 1000) float32"


class ChannelsLastBlocks(torch.nn.Module):
    """Linear layers over the channels of an image, between convolutions that halve it."""

    def __init__(self) -> None:
        super().__init__()
        self.halve = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 2, stride=2) for _ in range(3))
        self.wide = torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for halve in self.halve:
            x = halve(x)
            x = x + (self.wide(x.permute(0, 2, 3, 1)) @ self.wide.weight).permute(0, 3, 1, 2)
        return x


def test_a_linear_layer_asks_for_no_layout() -> None:
    result = stator.check(ChannelsLastBlocks(), TensorSpec(("batch", 4, "height", "width")))
    assert result.ok and result.complete, str(result)
    assert sorted(texts(result)) == ["height >= 8", "width >= 8"], str(result)


@pytest.mark.parametrize("layer", (torch.nn.GRU, torch.nn.RNN, torch.nn.LSTM))
def test_recurrent_layers_hold_for_all_lengths(layer: Any) -> None:
    found = stator.check(layer(8, 6, 2), stator.TensorSpec(("seq", "batch", 8)))
    assert (found.ok, found.constraints, found.complete) == (True, (), True), str(found)


def test_stages_in_a_row_ask_for_one_bound() -> None:
    stages = [torch.nn.Conv2d(3, 3, 2, 2) for _ in range(4)]

    def program(x: torch.Tensor) -> torch.Tensor:
        for stage in stages:
            x = stage(x)
            x = x + x.mean((2, 3), keepdim=True)
        return x

    result = stator.check(program, TensorSpec(("batch", 3, "height", 64)))
    assert [constraint.text for constraint in result.constraints] == ["height >= 16"]


def test_a_way_that_symbols_cannot_take_is_not_known() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        scales = {1: 2.0}
        return x * scales[x.shape[2] // 4 - 1] if x.shape[2] < 12 else x  # a size is no key

    (constraint,) = stator.check(program, TensorSpec(("batch", 2, "rows", 4))).constraints
    assert constraint.otherwise is not None and constraint.otherwise.startswith("not known: ")


def causal_attention(x: torch.Tensor) -> torch.Tensor:
    x = x[:, :, 1:]
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=x.shape[2] > 1)


def test_a_truth_of_sizes_is_an_argument_of_an_operator() -> None:
    result = stator.check(causal_attention, TensorSpec(("batch", 2, "rows", 4)))
    assert (result.ok, result.complete, result.runs) == (True, True, 2), str(result)


def test_the_side_of_a_truth_that_fails_is_a_constraint() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool1d(x, 4, ceil_mode=x.shape[1] > 8)[:, :, 2]

    result = stator.check(program, TensorSpec(("batch", "rows", 10)))
    assert (result.ok, result.complete, texts(result)) == (True, True, ["rows >= 9"]), str(result)
