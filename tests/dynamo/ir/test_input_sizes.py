"""Sizes of inputs that change between calls: one compilation for many sizes, and what makes another one necessary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import EXACT, FUSED, Counts, assert_same
from torch import fx

import stator

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing
SIZES = (5, 7, 9, 11)


class Graphs:
    """A backend that runs each graph as it is, and keeps it."""

    def __init__(self) -> None:
        self.made: list[fx.GraphModule] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.made.append(graph)
        return graph.forward

    def input_shapes(self) -> list[str]:
        """The input shapes of the latest graph."""
        nodes = self.made[-1].graph.find_nodes(op="placeholder")
        examples = [node.meta["example_value"] for node in nodes]
        return [str(getattr(example, "shape", example)) for example in examples]


def compilations(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], **options: Any) -> Graphs:
    """Call compiled and plain function with each of the arguments, and compare results."""
    graphs = Graphs()
    compiled = stator.compile(function, backend=graphs, fullgraph=True, **options)
    for arguments in calls:
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=0, atol=0)
    return graphs


def of_sizes(*sizes: int, rest: tuple[int, ...] = (4,)) -> list[tuple[Any, ...]]:
    return [(torch.randn(size, *rest),) for size in sizes]


def size_as_operand(x):
    return x * x.shape[0] + x.size(0) + len(x) + x.numel() + x.size()[-2]


def contiguous_views(x):
    return x.reshape(-1), x.view(x.shape[0], 2, -1), x.flatten(), x.t(), x.unsqueeze(1).expand(-1, 3, -1)


def slices(x):
    return x[1:], x[: x.shape[0] // 2], x[-1], x[:, None], x[x.shape[0] - 2]


def first_and_last_rows(x):
    return x[:8].sum(0), x[-8:].softmax(0), torch.cat([x[:6], x[-9:]]), x[:, -2:], x[:10], x[-6:]


def factories(x):
    return torch.arange(x.shape[0]), torch.zeros(x.shape), x.new_ones(x.size(0), 2), torch.ones_like(x)


def returned_numbers(x):
    n = x.shape[0]
    return x + 1, n, n * 2 + 1, n // 2, n % 3, -n, max(n, 3), min(n, 100), n / 2, math.floor(n * 0.5)


def reductions(x):
    return x.sum(), x.mean(0), x.softmax(0), x.cumsum(0), x.sum() / x.shape[0]


def products(x):
    return x @ x.t(), x.t() @ x, torch.einsum("ij,kj->ik", x, x)


def shape_functions(x):
    total = math.prod(x.shape) + x.shape.numel() + sum(x.shape) + max(x.shape) + math.prod((x.shape[0], 2.0), start=3)
    return (
        x * total,
        x.new_zeros(x.shape[:-1] + x.shape[:1]),
        x.new_zeros(sorted(x.shape)[::-1]),
        x.shape == (x * 2).shape,
    )


def rounded_numbers(x):
    n = x.shape[0]
    half, rest = divmod(n, 2)
    return x.new_zeros(int(n * 0.5), half), x.new_zeros(round(n * 0.5), 2), x * n**-0.5, x * math.gcd(n, 6), n & 1, rest


def functions_of_numbers(x):
    n = x.shape[0]
    found = x * math.sqrt(n), math.log(n), max(n, 3.5), math.isqrt(n), n >> 1, x + math.log2(x.numel())
    next_power = 1 << (n - 1).bit_length()
    others = math.hypot(n, 3), math.atan2(1, n), math.fmod(n, 4), math.isclose(n, 70), math.perm(n, 2), pow(n, 3, 7)
    others += n.real, n.imag, (n * 2).numerator, n.denominator
    return *found, *others, x + next_power, n.bit_count(), int.bit_length(n), (n / 2).is_integer()


def lengths_of_ranges(x):
    n = x.shape[0]
    windows = len(range(0, n - 2, 3))
    return x.new_zeros(windows, 2), len(range(n)), len(range(n, 0, -3)), len(range(n, 5)), x * len(range(2, n))


def members(x):
    more = x + 1 if x.shape[0] in (70, 90) else x - 1
    return more, x.shape.count(70), x.shape.index(4), 80 in x.shape, [1, 2].count(x.shape[0])


def maximum_pools(x):
    lines = x.reshape(1, 1, -1)
    return F.max_pool1d(lines, 2), *F.max_pool1d(lines[0], (3,), 2, 1, return_indices=True)


def joined(x):
    return torch.cat([x, x]), torch.stack([x, x + 1]), torch.cat([x, x.new_zeros(2, 4)])


def split(x):
    return x.chunk(2), x.chunk(2, dim=1), x.unsqueeze(0).transpose(0, 1), torch.nn.functional.pad(x, (1, 1))


def attention(x):
    y = x.unsqueeze(0).unsqueeze(0)
    mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
    return torch.nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=mask)


def normalized(x):
    return torch.nn.functional.layer_norm(x, (4,)), torch.nn.functional.gelu(x)


def changes_its_input(x):
    y = x.clone()
    y[0] = 1
    y[1:].add_(2)
    return y


USES = (
    size_as_operand,
    contiguous_views,
    slices,
    first_and_last_rows,
    factories,
    returned_numbers,
    reductions,
    products,
    shape_functions,
    rounded_numbers,
    functions_of_numbers,
    lengths_of_ranges,
    members,
    maximum_pools,
    joined,
    split,
    attention,
    normalized,
    changes_its_input,
)


@pytest.mark.parametrize("function", USES, ids=lambda function: function.__name__)
def test_many_sizes_need_two_compilations(function):
    assert len(compilations(function, of_sizes(*SIZES)).made) == 2


@pytest.mark.parametrize("function", USES, ids=lambda function: function.__name__)
def test_dynamic_true_needs_one_compilation(function):
    assert len(compilations(function, of_sizes(*SIZES), dynamic=True).made) == 1


def test_dynamic_false_compiles_for_each_size():
    graphs = compilations(lambda x: x + 1, of_sizes(*SIZES), dynamic=False)
    assert len(graphs.made) == len(SIZES)


def test_a_smaller_last_batch_is_served_by_the_second_version():
    def loss(rows, labels):
        return (rows.sum(1) - labels).square().mean()

    batches = [(8, 16), (8, 20), (8, 12), (3, 9)]  # (rows, columns): only the columns differ in the second call
    graphs = compilations(loss, [(torch.randn(batch), torch.randn(batch[0])) for batch in batches])
    assert len(graphs.made) == 2


def offsets_of_views(x):
    inner = x[1:, 2:]
    return x + x.storage_offset(), inner.storage_offset(), (x * 2)[1:].storage_offset(), x.t().storage_offset()


def read_before_another_layout(x):
    start = x.storage_offset()
    x.as_strided_((2, 2), (4, 1), 1)
    return x + 1, start


def read_before_other_data(x):
    start = x.storage_offset()
    x.data = torch.ones(9, 4)[2:]
    return x + start, start


@pytest.mark.parametrize(
    ("program", "versions"), [(offsets_of_views, 2), (read_before_another_layout, None), (read_before_other_data, None)]
)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_where_a_tensor_begins_is_a_number_of_each_call(program, versions, backend):
    compiled, counts = stator.compile(program, backend=backend), Counts()
    for start in (0, 3, 300, 5, 2):
        found, expected = (
            function(torch.arange(1400.0).view(350, 4)[start : start + 6]) for function in (compiled, program)
        )
        assert_same(found, expected, EXACT)
    assert versions is None or counts.compilations == versions


def test_only_the_changed_dimension_is_a_symbol():
    graphs = compilations(lambda x: x + 1, of_sizes(*SIZES))
    assert graphs.input_shapes() == ["torch.Size([s0, 4])"]


def test_zero_has_a_version_of_its_own():
    def shape_of(x):
        return x + 1, x.shape[0]

    assert len(compilations(shape_of, of_sizes(5, 7, 1, 0, 9, 1, 0)).made) == 3


@pytest.mark.parametrize("sizes", [(5, 7, 1, 9), (1, 5, 7, 1), (5, 1, 7, 9)])
def test_a_version_for_many_sizes_serves_one(sizes):
    def layers(x):
        rows = F.layer_norm(x, (4,)).softmax(-1) + x.mean(0, keepdim=True)
        return torch.cat([rows, x.new_zeros(1, 4)]).reshape(-1, 2, 2).transpose(0, 1), x.sum(0), x.t() @ x

    assert len(compilations(layers, of_sizes(*sizes)).made) == 2


def test_one_is_apart_where_it_decides_whether_memory_is_shared():
    def write_to_copy(x):
        x = x + 1
        x.transpose(0, 1).reshape(-1).add_(1)  # writes to x only if x is one row
        x.t().contiguous().mul_(2)
        return x

    assert len(compilations(write_to_copy, of_sizes(5, 7, 1, 9, 1)).made) == 3


@pytest.mark.parametrize(
    "sizes", [((2, 5), (3, 7), (1, 9), (4, 1), (1, 1)), ((2, 5), (1, 1), (3, 7)), ((1, 5), (3, 1), (2, 2))]
)
def test_one_is_no_version_where_no_one_sees_that_memory_is_shared(sizes):
    """Heads side by side, and folded into the batch: views where a batch or a sequence has one row."""

    def attention(x):
        parts = x.relu().view(*x.shape[:2], 3, 2, 2)
        q, k = (parts[..., at, :].transpose(1, 2).reshape(3 * x.shape[0], -1, 2) for at in range(2))
        scores = (q @ k.transpose(1, 2)).softmax(-1)
        return (scores @ q).view(-1, 3, x.shape[1], 2).transpose(1, 2).contiguous().view(*x.shape[:2], 6)

    assert len(compilations(attention, [(torch.randn(*size, 12),) for size in sizes]).made) == 2


@pytest.mark.parametrize("sizes", [(5, 7, 1, 9, 1), (5, 1, 7, 9), (1, 5, 1, 7)])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", ["given", "both", "chained", "written", "laid_out", "compared"])
def test_one_is_apart_where_a_copy_would_show(name, sizes, backend):
    """A view of the argument, two results on one memory, also by a copy between them, a write, another layout."""

    def shares(x):
        made = x.sin()
        if name == "given":
            return (x.t().contiguous(),)
        if name == "both":
            return made, made.t().reshape(-1)
        if name == "chained":
            return made, made.t().contiguous().view(-1, 4).t().contiguous()
        if name == "written":
            copy = made.t().contiguous()
            return (made.mul_(2) + copy.sum(),)
        if name == "compared":
            turned = made.t()
            return (made + (turned.contiguous() is turned),)
        return (made.view(-1, 2, 2).transpose(1, 2).reshape(-1, 2) * 2,)

    counts, compiled = Counts(), stator.compile(shares, backend=backend)
    for size in sizes:
        x = torch.randn(size, 4)
        found, expected = compiled(x), shares(x)
        assert_same(found, expected, FUSED)
        first = [results[0].untyped_storage().data_ptr() for results in (found, expected)]
        last = [results[-1].untyped_storage().data_ptr() for results in (found, expected)]
        assert (first[0] == last[0]) is (first[1] == last[1])
        assert (last[0] == x.data_ptr()) is (last[1] == x.data_ptr())
    assert counts.compilations == (2 if sizes[0] == 1 else 3)


def test_one_is_apart_where_it_broadcasts():
    def add(x, y):
        return x + y

    calls = [
        (torch.randn(n, 4), torch.randn(m, 4)) for n, m in ((5, 5), (7, 7), (1, 1), (1, 6), (6, 1), (1, 3), (2, 2))
    ]
    assert len(compilations(add, calls).made) == 4


def test_one_leaves_a_part_empty():
    def differences(x):
        return x[1:] - x[:-1], x[1:].sum(0)

    assert len(compilations(differences, of_sizes(5, 7, 1, 2, 1)).made) == 3


def test_a_question_for_one_element_is_a_fact():
    def branch(x):
        return x + 1 if x.shape[0] > 1 else x - 1

    assert len(compilations(branch, of_sizes(5, 7, 1, 2, 1, 9)).made) == 3


def test_tensors_of_a_later_version_have_symbols_at_once():
    def keep(x, cache):
        return x + 1 if cache is None else torch.cat([cache, x])

    x = torch.randn(1, 4)
    calls = [(x, None), *((x, torch.randn(n, 4)) for n in (1, 2, 3, 9))]
    assert len(compilations(keep, calls).made) == 2


def test_a_branch_on_a_size_has_a_version_for_each_way():
    def branch(x):
        return x + 1 if x.shape[0] > 8 else x - 1

    assert len(compilations(branch, of_sizes(5, 6, 7, 9, 10, 8, 100)).made) == 3


def test_equal_sizes_are_a_fact_only_where_they_have_to_be():
    def apart(x, y):
        return x + 1, y + 1

    def together(x, y):
        return x + y

    calls = [(torch.randn(n), torch.randn(n)) for n in SIZES]
    other = [(torch.randn(3), torch.randn(6))]
    assert len(compilations(apart, [*calls, *other]).made) == 2
    assert len(compilations(together, calls).made) == 2


def test_a_broken_relation_compiles_again():
    def ratio(x, y):
        return x.sum() + y.sum() if x.shape[0] == y.shape[0] else x.sum() - y.sum()

    def pair(n, m):
        return torch.randn(n), torch.randn(m)

    assert len(compilations(ratio, [pair(5, 5), pair(6, 6), pair(7, 7), pair(6, 8), pair(9, 3)]).made) == 3


def test_divisibility_is_a_fact():
    def halves(x):
        return x.view(2, -1) + 1 if x.shape[0] % 2 == 0 else x + 1

    calls = of_sizes(4, 6, 8, 5, 7, 10, rest=())
    assert len(compilations(halves, calls).made) == 3


def test_an_int_argument_on_which_sizes_depend_is_a_symbol():
    def positions(x, n):
        return torch.arange(n) + x.sum(), x.expand(n, 4), x[:, :n]

    calls = [(torch.randn(1, 4), n) for n in (5, 7, 9, 11)]
    graphs = compilations(positions, calls)
    assert len(graphs.made) == 2
    assert "s0" in graphs.input_shapes()


def test_a_tensor_that_appears_later_has_symbols_at_once():
    def with_cache(x, cache):
        return x + 1 if cache is None else torch.cat([cache, x])

    calls = [(torch.randn(5, 4), None), (torch.randn(6, 4), None)]
    calls += [(torch.randn(2, 4), torch.randn(n, 4)) for n in SIZES]
    assert len(compilations(with_cache, calls).made) == 3


@pytest.mark.parametrize(
    "layout",
    [
        lambda n: torch.randn(n, 3).t(),
        lambda n: torch.randn(2, 3, n, n + 1).to(memory_format=torch.channels_last),
        lambda n: torch.randn(n, 2, n + 2).permute(2, 0, 1),
        lambda n: torch.randn(n, 8)[:, 1:5],
        lambda n: torch.randn(n).expand(3, n),
    ],
)
def test_strides_follow_from_sizes(layout):
    def form(x):
        return x + 1, (x * 2).stride(), x.is_contiguous(), x.contiguous().view(-1)

    assert len(compilations(form, [(layout(n),) for n in SIZES]).made) == 2


def test_another_layout_of_equal_sizes_compiles_again():
    def form(x):
        return (x + 1).stride()

    calls = [*of_sizes(*SIZES), *[(torch.randn(4, n).t(),) for n in SIZES]]
    assert len(compilations(form, calls).made) <= 4


def test_a_size_as_the_length_of_a_loop_is_a_constant():
    def loop(x):
        for at in range(x.shape[0]):
            x = x + at
        return x

    assert len(compilations(loop, of_sizes(2, 3, 4)).made) == 3


def test_a_resized_tensor_is_checked_again():
    def facts(x):
        return x + 1 if x.shape[0] > 6 else x - 1

    compiled = stator.compile(facts, backend="eager")
    for size in (5, 7, 8):
        compiled(torch.ones(size))
    x = torch.ones(8)
    for _ in range(4):
        compiled(x)
    x.resize_(4)
    assert compiled(x).tolist() == [0.0] * 4


def test_sizes_live_at_a_break_come_from_the_inputs():
    def broken(x):
        n = x.shape[0] * 2
        y = x + n
        stator.graph_break()
        return y * n

    graphs = Graphs()
    compiled = stator.compile(broken, backend=graphs)
    for (x,) in of_sizes(*SIZES):
        torch.testing.assert_close(compiled(x), broken(x))
    assert len(graphs.made) == 4
    assert not any("scalar_tensor" in str(graph.graph) for graph in graphs.made)


def test_sizes_of_parameters_are_constants():
    layer = torch.nn.Linear(4, 3)

    def call(x):
        return layer(x)

    graphs = compilations(call, of_sizes(*SIZES), dynamic=True)
    assert sorted(graphs.input_shapes()) == ["torch.Size([3, 4])", "torch.Size([3])", "torch.Size([s0, s1])"]


def test_gradients_of_many_sizes():
    def loss(x):
        return (x * x.shape[0]).pow(2).sum()

    graphs = Graphs()
    compiled = stator.compile(loss, backend=graphs)
    for size in SIZES:
        x, y = (torch.ones(size, 4, requires_grad=True) for _ in range(2))
        compiled(x).backward()
        loss(y).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert len(graphs.made) == 2


def test_a_backend_that_refuses_symbols_gets_graphs_without():
    seen = []

    def backend(graph, inputs):
        shapes = [node.meta["example_value"].shape for node in graph.graph.find_nodes(op="placeholder")]
        if any(type(size) is torch.SymInt for shape in shapes for size in shape):
            raise stator.Unsupported("dynamic-shape", "sizes have to be numbers")
        seen.append(shapes)
        return graph.forward

    compiled = stator.compile(lambda x: x + 1, backend=backend, fullgraph=True)
    for (x,) in of_sizes(*SIZES):
        torch.testing.assert_close(compiled(x), x + 1)
    assert len(seen) == len(SIZES)


def test_facts_of_the_backend_become_guards():
    built = []

    def backend(graph, inputs):
        (node,) = graph.graph.find_nodes(op="placeholder")
        size = node.meta["example_value"].shape[0]
        multiple = type(size) is torch.SymInt and bool(size % 4 == 0)
        built.append(multiple)
        return graph.forward

    compiled = stator.compile(lambda x: x + 1, backend=backend)
    for (x,) in of_sizes(5, 8, 12, 7, 16, 9):
        compiled(x)
    assert built == [False, True, False]


def test_a_range_of_one_size_is_checked():
    def few(x):
        return x.sum() if x.shape[0] > 2 else x.prod()

    assert len(compilations(few, [(torch.randn(n),) for n in (1, 2, 3, 4, 2, 9)]).made) == 3


def test_strides_that_do_not_follow_from_sizes_are_symbols_of_their_own():
    def form(x):
        return x * 2, x.stride(0), x[:, 1:].contiguous(), x.is_contiguous()

    graphs = compilations(form, [(torch.randn(4, n)[:, :3],) for n in (5, 7, 9, 12)])
    assert len(graphs.made) == 2
    assert graphs.input_shapes() == ["torch.Size([4, 3])", "s0"]


@pytest.mark.parametrize(
    "layout",
    [
        torch.randn,
        lambda n, m: torch.randn(m, n).t(),
        lambda n, m: torch.randn(n, m, 3)[..., 0],
        lambda n, m: torch.randn(3, n, 1, m),
        lambda n, m: torch.randn(2, 3, n, m).to(memory_format=torch.channels_last),
    ],
)
def test_strides_that_follow_from_sizes_are_no_symbols(layout):
    def doubled(x):
        return x * 2

    graphs = compilations(doubled, [(layout(*size),) for size in ((5, 6), (7, 9), (3, 4))])
    assert len(graphs.made) == 2
    (input,) = graphs.made[-1].graph.find_nodes(op="placeholder")
    symbols = [number.node.value.symbols for number in input.meta["example_value"].stride() if type(number) is not int]
    sizes = [size.node.value.symbols for size in input.meta["example_value"].shape if type(size) is not int]
    assert frozenset().union(*symbols) <= frozenset().union(*sizes)


def test_one_column_needs_no_version():
    def doubled(x):
        return x * 2

    assert len(compilations(doubled, [(torch.randn(*size),) for size in ((5, 6), (4, 7), (3, 1), (1, 1))]).made) == 2


def test_a_padded_tensor_of_any_size():
    def total(x):
        return x.sum(0), x.t() @ x

    assert len(compilations(total, [(torch.randn(n, n + 3)[:, 1 : n - 1],) for n in (5, 7, 9, 12)]).made) == 2


def test_sizes_that_are_compared_as_tuples_stay_symbols():
    def compared(x, y):
        same = x.shape == y.shape and x.shape == (y.shape[0], 4) and x.size() != (1, y.shape[0], 4)
        return x + y if same else x

    calls = [(torch.randn(size, 4), torch.randn(size, 4)) for size in SIZES]
    assert len(compilations(compared, calls).made) == 2


def test_symbols_of_a_version_are_symbols_of_those_that_follow():
    """A step of generation: the cache grows, then another prompt comes, then its cache grows."""

    def step(x, past=None):
        return x + 1 if past is None else torch.cat([past, x])

    calls = [(torch.randn(6, 4),), (torch.randn(1, 4), torch.randn(6, 4)), (torch.randn(1, 4), torch.randn(7, 4))]
    calls += [(torch.randn(9, 4),), *((torch.randn(1, 4), torch.randn(length, 4)) for length in (9, 10, 11))]
    assert len(compilations(step, calls).made) == 3


def test_text_of_sizes_is_made_by_each_call():
    def function(x):
        n = x.shape[0]
        return x + 1, f"{n} rows, {n / 2:.3f} pairs, {n * 2!r:>4}"

    graphs = Graphs()
    compiled = stator.compile(function, backend=graphs, fullgraph=True)
    for size in SIZES:
        x = torch.randn(size, 4)
        assert compiled(x)[1] == function(x)[1]
    assert len(graphs.made) == 2


def test_text_that_is_used_needs_the_size():
    def function(x):
        return x + 1 if f"{x.shape[0]}" == "7" else x - 1

    assert len(compilations(function, of_sizes(*SIZES)).made) == len(SIZES)


def test_a_function_of_a_size_that_the_graph_changes_is_computed_ahead():
    def function(x):
        root = math.sqrt(x.shape[0])
        x.t_()
        return x + 1, root

    graphs = Graphs()
    compiled = stator.compile(function, backend=graphs, fullgraph=True)
    for size in SIZES:
        x = torch.randn(size, 4)
        mine, other = compiled(x.clone()), function(x.clone())
        assert mine[1] == other[1] and torch.equal(mine[0], other[0])
    assert len(graphs.made) == 2


def test_a_mask_for_one_row_and_head_relies_on_no_number_of_rows():
    def attend(x, mask):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    calls = [(torch.randn(n, 2, 3, 8), torch.randn(n, 1, 3, 3)) for n in (5, 1, 7, 2)]
    assert len(compilations(attend, calls).made) == 2


@pytest.mark.parametrize(
    "read",
    [
        lambda rows, x: F.grid_sample(rows, x[:, None, :, :2], align_corners=False),
        lambda rows, x: rows.gather(2, torch.zeros(x.shape[0], 1, 2, 2, dtype=torch.long)),
        lambda rows, x: torch.index_select(rows, 1, torch.tensor([1, 0])),
    ],
)
def test_samples_of_one_row_need_no_version(read):
    def function(x):
        rows = x.flatten(2).transpose(1, 2).reshape(x.shape[0], x.shape[2], 2, 2)
        return read(rows, x) * 2

    calls = [(torch.randn(n, 4, 3),) for n in (5, 7, 1, 2)]
    assert len(compilations(function, calls).made) == 2


def nearest_codes(x, codebook):
    rows = F.normalize(x.permute(0, 2, 1).reshape(x.shape[0] * x.shape[2], x.shape[1]))
    distances = rows.pow(2).sum(1, keepdim=True) - 2 * rows @ codebook.t()
    return distances.argmin(1).view(x.shape[0], -1)


def weighted_samples(x, codebook):
    by_heads = x.view(x.shape[0], 2, 2, -1)
    weights = by_heads.transpose(1, 2).reshape(x.shape[0] * 2, 1, 2, x.shape[2])
    samples = torch.ones(x.shape[0] * 2, 3, 2, x.shape[2])
    return (samples * weights).sum(-1)


def pieces_of_rows(x, codebook):
    rows = x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], x.shape[1]).split(2, -1)
    return [one.reshape(x.shape[0], x.shape[2], -1, 1).flatten(2) @ codebook[:2] for one in rows]


def scores_of_packed_heads(x, codebook):
    packed = torch.cat([x, x], 1).view(x.shape[0], 2, 2, 2, -1).permute(2, 0, 3, 4, 1)
    queries, keys = packed.reshape(2, x.shape[0] * 2, x.shape[2], 2).unbind(0)
    return (queries * 0.5) @ keys.transpose(-2, -1)


def normalized_rows(x, codebook):
    rows = x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], x.shape[1])
    return (
        F.layer_norm(rows, (4,)),
        rows.softmax(0),
        F.log_softmax(rows, -1),
        rows.mean(1, keepdim=True).clone() @ rows[:1],
    )


def chosen_keys_of_heads(x, codebook):
    keys = x.view(x.shape[0], 2, 2, -1).transpose(1, 3).reshape(x.shape[0] * x.shape[2], 2, 2)
    chosen = keys[:, torch.tensor([1, 0, 1])]
    return keys @ chosen.transpose(1, 2) + keys[:, :1].mean(-1, keepdim=True) @ codebook[:1, :3]


@pytest.mark.parametrize(
    "program",
    [
        nearest_codes,
        weighted_samples,
        pieces_of_rows,
        scores_of_packed_heads,
        normalized_rows,
        chosen_keys_of_heads,
    ],
)
def test_rows_whose_layout_does_not_show_need_no_version_for_one(program):
    calls = [(torch.randn(n, 4, n + 1), torch.randn(4, 4)) for n in (5, 7, 1, 2)]
    assert len(compilations(program, calls).made) == 2


def weights_before_samples(x):
    weights = x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], x.shape[1])
    return weights * x.transpose(1, 2).flatten(0, 1).contiguous()


def pieces_that_leave(x):
    rows = x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], x.shape[1])
    return rows.split(2, -1)[1].reshape(x.shape[0], x.shape[2], 2)


def sums_of_rows(x):
    rows = x.transpose(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1], 1)
    return rows.pow(2).sum(-1, keepdim=True)


def chosen_rows(x):
    return x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], x.shape[1])[1:]


@pytest.mark.parametrize("program", [weights_before_samples, pieces_that_leave, sums_of_rows, chosen_rows])
def test_rows_whose_layout_shows_are_laid_out_as_in_eager(program):
    compiled = stator.compile(program)
    for rows in (3, 5, 1, 2):
        x = torch.randn(rows, 4, 6)
        found, expected = compiled(x), program(x)
        assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.parametrize("needs_weights", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_padding_need_no_version_for_one_row_or_one_key(causal, needs_weights):
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def attend(x, padding):
        mask = torch.full((x.shape[1], x.shape[1]), -1e9).triu(1) if causal else None
        padding = torch.where(padding, -1e9, 0.0)
        return layer(x, x, x, padding, needs_weights, mask)[0] * 2

    calls = []
    for rows, length in ((2, 5), (3, 7), (1, 1), (4, 1), (1, 9)):
        padding = torch.arange(length) >= torch.randint(1, length + 1, (rows, 1))
        calls.append((torch.randn(rows, length, 8, requires_grad=True), padding))
    assert len(compilations(attend, calls).made) == 2


def test_a_sum_laid_out_as_a_view_of_one_row_has_a_version():
    def add(x, asks):
        rows = x.view(x.shape[0], 1, 1, 4).expand(-1, 2, -1, -1).reshape(x.shape[0] * 2, 1, 4)
        total = (rows + rows.new_ones(2, 1).expand(2, 4)).view(x.shape[0], 2, 2, 4)
        return total.stride() if asks else total

    for asks in (False, True):
        compiled = stator.compile(add)
        for rows in (3, 5, 1, 2):
            x = torch.randn(rows, 4)
            found, expected = compiled(x, asks), add(x, asks)
            assert found == expected if asks else found.stride() == expected.stride()


def test_one_row_written_at_indices_is_not_apart():
    def write(x, values):
        x = x.clone()
        x[:, torch.tensor([0, 2])] = values
        return x

    calls = [(torch.randn(n, 5), torch.randn(n, 1)) for n in (5, 1, 7, 2)]
    assert len(compilations(write, calls).made) == 2


class Cache:
    def __init__(self, length, states=None):
        self.length, self.states = length, states


def test_an_int_that_is_a_size_changes_with_sizes():
    def begin(x, cache):
        return torch.zeros(x.shape[0], cache.length) + x

    calls = [(torch.randn(n, 1), Cache(length)) for n, length in ((5, 16), (7, 16), (7, 32), (9, 40))]
    assert len(compilations(begin, calls).made) == 2


def test_sizes_of_an_instance_are_constants_while_sizes_of_its_inputs_change():
    class Layer(torch.nn.Module):
        length = 16

        def forward(self, x):
            return torch.zeros(x.shape[0], self.length) + x

    layer, graphs = Layer(), Graphs()
    compiled = stator.compile(layer, backend=graphs, fullgraph=True)
    for n in (5, 7, 9):
        compiled(torch.randn(n, 1))
    assert len(graphs.made) == 2
    assert "16" in graphs.made[1].print_readable(print_output=False)


def test_a_size_that_a_new_tensor_has_to_have_is_a_symbol_with_it():
    def masked(x, mask, cache):
        return x * mask if cache is None else x * mask + cache

    calls = [(torch.randn(1, 1), torch.ones(4, 16), None)]
    calls += [(torch.randn(1, 1), torch.ones(2, n), torch.randn(2, n)) for n in (16, 32, 40)]
    assert len(compilations(masked, calls).made) == 2


def keep_the_last_rows(kept: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    kept.copy_(x[:, :, -4:])
    return kept.view(kept.shape[0], -1) * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_batch_of_one_writes_a_slice_as_larger_batches_do(backend: str) -> None:
    """The slice's strides differ from those of the tensor that it is written to, which matters from two on."""
    compiled, counts = stator.compile(keep_the_last_rows, dynamic=True, backend=backend), Counts()
    for batch, rows in ((1, 7), (2, 9), (3, 5), (1, 6)):
        x, kept, expected = torch.randn(batch, 3, rows, 2), torch.zeros(batch, 3, 4, 2), torch.zeros(batch, 3, 4, 2)
        assert torch.equal(compiled(kept, x), keep_the_last_rows(expected, x))
        assert torch.equal(kept, expected)
    assert counts.compilations == 1


def test_sizes_that_floats_may_not_hold_have_versions_of_their_own() -> None:
    def half(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x[:2] * 2, int(x.shape[0] * 0.5)

    calls = [(torch.ones(1).expand(size),) for size in (5, 7, 2**40, 2**54 + 2, 2**54 + 6, 2**60 + 2)]
    found = compilations(half, calls)
    assert len(found.made) == 5


def test_leading_sizes_of_globals_and_closures_are_constants_until_they_change() -> None:
    table, symbolic = torch.randn(16, 4), []

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        given = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        sizes = [size for one in given if isinstance(one, torch.Tensor) for size in one.shape]
        symbolic.append(sum(isinstance(size, torch.SymInt) for size in sizes))
        return graph.forward

    compiled = stator.compile(lambda x: x @ table.t(), backend=backend)
    for rows in (5, 9):
        compiled(torch.randn(rows, 4))
    assert symbolic == [0, 1]
