"""Operators whose result's size depends on data stay in the graph: one graph, whatever the data, equal to eager.

Compared in float64 to 1e-10 relative; layouts and types of results are eager's. Sizes change from call to call and are
0 and 1, too: what is assumed about one is checked when the graph runs, which begins anew where it is not so.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.differential import significant_strides

import stator
from stator.base import counters

pytestmark = pytest.mark.filterwarnings("error:stator")


def selected(x):
    return x[x > 0].exp().sum() * 2


def selected_by_method(x):
    return x.masked_select(x > 0).sin()


def rows(x):
    chosen = x[x.sum(1) > 0]
    return torch.nn.functional.linear(chosen, x[:4]), torch.softmax(chosen, -1), chosen.t().contiguous()


def inner_columns(x):
    return x[:, x.sum(0) > 0] * 2, x.t()[x.sum(0) > 0]


def places(x):
    found = (x > 0).nonzero()
    return found, found[:, 0] * 2, found.t()


def places_by_where(x):
    first, second = torch.where(x > 0)
    return x[first, second] + first


def counted(x):
    chosen = x[x > 0]
    return chosen.shape[0], chosen.numel() * 2 + 1, chosen / max(len(chosen), 1), chosen.size()


def distinct(x):
    whole = (x * 2).int()
    return *torch.unique(whole, return_inverse=True, return_counts=True), torch.unique(whole, dim=0)


def distinct_neighbours(x):
    return torch.unique_consecutive((x.flatten() > 0), return_counts=True)


def repeated(x):
    return torch.repeat_interleave(x, x.sum(1).abs().int(), dim=0).cos()


def number_read(x):
    count = (x > 0).sum().item()
    return torch.arange(count).double() * 2, x * count, count - 1


def parts(x):
    lengths = (x > 0).sum(1).tolist()
    return [part.sum() for part in torch.split(x[x > 0], lengths)]


def beginning(x):
    count = (x > 0).sum().item()
    return x.flatten()[:count] * 2, x.flatten()[count:].sum(), torch.zeros(count, 2)


def joined(x):
    return torch.cat([x[x > 0], x.flatten(), x[x <= 0]]), torch.stack([x[x > 0], x[x > 0] + 1])


def filled(x):
    y = x.clone()
    y[y > 0] = 3.0
    y[y < -1] = y[y < -1] * 2
    return y


def scattered(x):
    chosen = x[x > 0]
    return torch.zeros_like(x).masked_scatter(x > 0, chosen * 2)


def as_many_as_known(x):
    """The sizes on both sides have to be equal, which is found out when it runs."""
    order = x.flatten().argsort()[:6]
    return x[x > x.flatten()[order[-1]]] + torch.arange(18.0, dtype=torch.float64)


def reshaped(x):
    chosen = x[x.sum(1) > -100]
    return chosen.view(2, -1) + 1, chosen.reshape(-1, 2), chosen.flatten(), chosen[:, None].expand(-1, 3, -1)


def turned_and_copied(x):
    chosen = x[x.sum(1) > 0].t().contiguous()
    return chosen.add_(1), chosen


def by_index(x):
    table = torch.zeros(4, dtype=torch.int64)
    place = (x > 0).sum() % 4
    table[place] = 3
    table[place.item()] += 1
    return table, table + place.item(), table[place:].sum(), x[0, place], x[place][None, 1:], x[..., place, None]


def float_read(x):
    total = x.detach().sum().item()
    return x / (total + 30), total * 2 + 1, x.shape[0], float(total)


def narrowed(x):
    count = (x > 0).sum().item() % 5
    return x.narrow(0, count, 2), x.roll(count, 0), x[count : count + 2], x.expand(count, 6, 4), x.new_ones(count, 3)


def products(x):
    chosen = x[x > 0]
    outer = torch.outer(chosen, chosen)
    return (
        torch.einsum("i,j->ij", chosen, chosen),
        outer.diagonal(),
        chosen.cumsum(0),
        chosen.sort().values,
        outer @ outer,
    )


PROGRAMS = [
    by_index, float_read, narrowed, products,
    selected, selected_by_method, rows, inner_columns, places, places_by_where, counted, distinct, distinct_neighbours,
    repeated, number_read, parts, beginning, joined, filled, scattered, as_many_as_known, reshaped, turned_and_copied,
]  # fmt: skip


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    none = -torch.rand(6, 4, generator=generator, dtype=torch.float64) - 0.1
    one = none.clone()
    one[2] = 0.3
    single = none.clone()
    single[4, 1] = 1e-3
    return [*drawn, none, one, single, -none]


def same(got, expected) -> None:
    leaves = zip(*(torch.utils._pytree.tree_leaves(one) for one in (got, expected)), strict=True)
    for mine, other in leaves:
        assert type(mine) is type(other)
        if isinstance(mine, str):
            assert mine == other
            continue
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=0, equal_nan=True)
        if isinstance(mine, torch.Tensor):
            assert significant_strides(mine) == significant_strides(other)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_for_all_sizes(program, backend: str) -> None:
    counters.clear()
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for x in inputs():
        same(compiled(x.clone()), program(x.clone()))
    assert counters.counts["frames"] == 1 and counters.counts["graphs"] == 1 and not counters.counts["graph_breaks"]


DIFFERENTIABLE = [
    by_index,
    float_read,
    narrowed,
    products,
    selected,
    selected_by_method,
    rows,
    repeated,
    parts,
    joined,
    filled,
    scattered,
    reshaped,
]


def gradients(run, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    results = [one for one in torch.utils._pytree.tree_leaves(run(x * 1)) if isinstance(one, torch.Tensor)]
    total = sum((one * one).sum() for one in results if one.requires_grad)
    return list(torch.autograd.grad(total, [x], allow_unused=True)) if isinstance(total, torch.Tensor) else []


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", DIFFERENTIABLE, ids=lambda program: program.__name__)
def test_gradients(program, backend: str) -> None:
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    counters.clear()
    for x in inputs():
        same(gradients(compiled, x), gradients(program, x))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_graph_ends_ahead_of_sizes_that_the_backend_refuses(dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * 2).sin()
        rows = y[y > 0]
        return rows.exp() + 1, y

    def backend(gm: torch.fx.GraphModule, inputs: object) -> object:
        if any(node.meta.get("data_dependent") for node in gm.graph.nodes):
            raise stator.Unsupported("dynamic-shape", "this backend knows no sizes that depend on data")
        return gm.forward

    compiled = stator.compile(program, backend=backend, dynamic=dynamic)
    counters.clear()
    for x in inputs():
        same(compiled(x), program(x))
    assert counters.counts["graph_breaks"] == 1 and not counters.counts["dynamo.failed_frames"]
    with pytest.raises(stator.Unsupported, match="depends on the data"):
        stator.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)(torch.randn(3))


def one_or_many(x):
    return x[x > 0].squeeze(0) * 2


def test_what_is_assumed_of_a_size_is_checked() -> None:
    """`squeeze` removes a dimension of size 1, and no other."""
    compiled = stator.compile(one_or_many, backend="eager", fullgraph=True)
    counters.clear()
    for x in inputs():
        same(compiled(x), one_or_many(x))
    assert counters.counts["dynamo.failed_graphs"] == 1


def added_in_place_behind(x, total):
    chosen = x[x > 0].squeeze(0)
    total.add_(1)
    return chosen * total


def test_a_failed_check_comes_before_inputs_are_written() -> None:
    compiled = stator.compile(added_in_place_behind, backend="eager", fullgraph=True)
    for x in inputs():
        mine, other = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        same(compiled(x, mine), added_in_place_behind(x, other))
        same(mine, other)


def added_in_place_before(x, total):
    total.add_(1)
    return x[x > 0].squeeze(0) * total


def test_what_could_not_begin_anew_is_not_assumed() -> None:
    compiled = stator.compile(added_in_place_before, backend="eager")
    counters.clear()
    for x in inputs():
        mine, other = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        same(compiled(x, mine), added_in_place_before(x, other))
        same(mine, other)
    assert counters.counts["graph_breaks"]


def branching(x):
    chosen = x[x > 0]
    if chosen.shape[0] > 3:
        return chosen * 2
    return chosen + 1


def asking_what_is_known(x):
    chosen = x[x > 0]
    if chosen.shape[0] < 0 or chosen.dim() != 1 or chosen.numel() > x.numel():
        return x
    return chosen


def raising(x):
    chosen = x[x > 0]
    if chosen.shape[0] > 20:
        raise ValueError("too many")
    return chosen


def test_a_branch_on_a_size_ends_the_graph_there() -> None:
    counters.clear()
    compiled = stator.compile(branching, backend="eager")
    for x in inputs():
        same(compiled(x), branching(x))
    with pytest.raises(stator.Unsupported, match="known when the graph runs"):
        stator.compile(branching, backend="eager", fullgraph=True)(inputs()[0])


def looping(x):
    total = x.sum()
    for at in range((x > 0).sum().item() % 4):
        total = total + x[at, 0]
    return total


def test_a_range_over_a_number_ends_the_graph_there() -> None:
    compiled = stator.compile(looping, backend="eager")
    for x in inputs():
        same(compiled(x), looping(x))
    with pytest.raises(stator.Unsupported, match="a range over a number") as caught:
        stator.compile(looping, backend="eager", fullgraph=True)(inputs()[0])
    assert caught.value.place.line == looping.__code__.co_firstlineno + 2


def test_what_every_size_answers_is_no_branch() -> None:
    compiled = stator.compile(asking_what_is_known, backend="eager", fullgraph=True)
    for x in inputs():
        same(compiled(x), asking_what_is_known(x))


def test_the_option_turns_it_off() -> None:
    compiled = stator.compile(selected, backend="eager", fullgraph=True, options={"unknown_sizes": False})
    with pytest.raises(stator.Unsupported, match=r"aten\.index"):
        compiled(inputs()[0])


def test_a_backend_may_run_the_graph_as_it_is() -> None:
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm

    compiled = stator.compile(rows, backend=backend, fullgraph=True)
    for x in inputs():
        same(compiled(x), rows(x))
    assert len(graphs) == 1


def mostly_fixed(x, weight):
    for _ in range(3):
        x = torch.tanh(x @ weight) + torch.sin(x) * torch.cos(x)
    total = x[x > 0].sum()
    for _ in range(3):
        x = torch.tanh(x @ weight) + torch.sin(x) * torch.cos(x)
    return x * total


def test_zeros_of_either_sign_make_two_numbers() -> None:
    def signs(x: torch.Tensor) -> Any:
        count = (x > 0).sum().item()
        return x * (count * 0.0), x * (count * -0.0)

    x = torch.tensor([1.0, -1.0])
    assert repr(stator.compile(signs, backend="eager", fullgraph=True)(x)) == repr(signs(x))


@pytest.mark.fixed_sizes
def test_what_has_fixed_sizes_is_compiled_once() -> None:
    compiled = stator.compile(mostly_fixed, backend="inductor", fullgraph=True)
    weight = torch.eye(4, dtype=torch.float64)
    counters.clear()
    generator = torch.Generator().manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(12):
            x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
            torch.testing.assert_close(compiled(x, weight), mostly_fixed(x, weight), rtol=1e-9, atol=1e-12)
    assert counters.counts["compiled:whole"] == 1 and counters.counts["graphs"] == 1


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8).double(), torch.nn.Linear(8, 3).double()

    def forward(self, x, target):
        hidden = torch.relu(self.first(x))
        chosen = target >= 0
        return torch.nn.functional.cross_entropy(self.second(hidden[chosen]), target[chosen])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_whole_step_of_training(backend: str) -> None:
    """The backward in the graph goes through what was compiled before the operator and behind it."""
    torch.manual_seed(0)
    models = Masked(), Masked()
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in models]

    def step(model, optimizer, x, target):
        optimizer.zero_grad()
        loss = model(x, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), (target >= 0).sum().item()

    compiled = stator.compile(step, backend=backend, fullgraph=True)
    counters.clear()
    for _ in range(6):
        x, target = torch.randn(20, 4, dtype=torch.float64), torch.randint(-2, 3, (20,))
        same(compiled(models[0], optimizers[0], x, target), step(models[1], optimizers[1], x, target))
        for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert counters.counts["frames"] <= 2  # the first call makes the optimizer's state


def backward_between(x, weight):
    chosen = x[x.sum(1) > 0] * weight
    inner = chosen.sin()
    loss = (inner * chosen).sum()
    return torch.autograd.grad(loss, [inner, chosen, weight])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_by_tensors_of_other_segments(backend: str) -> None:
    compiled = stator.compile(backward_between, backend=backend)
    for x in inputs():
        weights = [torch.ones(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        same(compiled(x, weights[0]), backward_between(x, weights[1]))


def hooked(x, weight):
    y = (x * weight).sin()
    z = (y * y).cos()
    total = x[x > 0].sum()
    y.register_hook(lambda gradient: gradient * 3 + 1)
    return (z * y * total).sum() + y.sum()


def hooked_before(x, weight):
    y = (x * weight).sin()
    y.register_hook(lambda gradient: gradient * 3 + 1)
    return (y * y * x[x > 0].sum()).sum() + y[x > 0].cos().sum()


def with_a_leaf(x, weight):
    leaf = x.detach().clone().requires_grad_()
    loss = (leaf * leaf * x[x > 0].sum()).sum() + leaf[x > 0].sin().sum()
    return torch.autograd.grad(loss, leaf)[0] * weight.sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [hooked, hooked_before, with_a_leaf], ids=lambda program: program.__name__)
def test_history_across_segments(program, backend: str) -> None:
    """A hook sees the whole gradient of its tensor, whatever part of the graph made it."""
    compiled = stator.compile(program, backend=backend)
    for x in inputs():
        weights = [torch.ones(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        for run, weight in zip((compiled, program), weights, strict=True):
            run(x, weight).sum().backward()
        torch.testing.assert_close(weights[0].grad, weights[1].grad, rtol=1e-10, atol=1e-12)


# ---- numbers ----


@pytest.mark.parametrize("extreme", [max, min])
def test_the_largest_and_smallest_of_several(extreme: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        parts = [x[x > limit] for limit in (-3.0, 0.0, 2.0)]
        padded = x.new_zeros(len(parts), extreme(part.shape[0] for part in parts))
        return padded.shape[1] * x + padded.sum()

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for x in inputs():
        same(compiled(x), program(x))


def padded(x: torch.Tensor) -> torch.Tensor:
    parts = (x[x > 0], x[x > 2])
    out = x.new_zeros(2, max(part.shape[0] for part in parts))
    for at, part in enumerate(parts):
        out[at, : part.shape[0]] = part
    return out


def by_segments(x: torch.Tensor) -> torch.Tensor:
    x = x.flatten()[:4]
    ends = torch.cumsum((x > 0).long(), 0)
    out = torch.zeros(5)
    for at in range(3):
        begin, end = ends[at], ends[at + 1]
        out[begin:end] = (x[begin:end] * 2).double()
    out[begin:] = x.sum()
    return out


@pytest.mark.parametrize("program", [padded, by_segments])
def test_parts_of_sizes_that_only_the_run_can_tell_are_written(program: Any) -> None:
    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for x in inputs():
        same(compiled(x), program(x))


# ---- products ----

ROWS, MATRIX = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)), torch.randn(4, 3)
MASK = torch.tensor([True, False, True, True, False, True])
PRODUCTS: dict[str, Any] = {
    "batches": lambda x, found: torch.matmul(x, found.transpose(1, 2)),
    "batches that are broadcast": lambda x, found: x.unsqueeze(1) @ found.mT.unsqueeze(0),
    "one matrix": lambda x, found: found @ MATRIX,
    "one matrix first": lambda x, found: MATRIX.mT.matmul(found.mT),
    "one vector": lambda x, found: found.matmul(MATRIX[:, 0]),
    "a linear layer": lambda x, found: torch.nn.functional.linear(found, MATRIX.mT, MATRIX[0]),
    "a linear layer without bias": lambda x, found: torch.nn.functional.linear(found.unsqueeze(0), MATRIX.mT),
    "inside": lambda x, found: found.mT @ found,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, backend: str) -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return PRODUCTS[name](x, x[:, mask])  # type: ignore[no-any-return]

    compiled = stator.compile(program, backend=backend, fullgraph=backend == "eager")
    for mask in (MASK, ~MASK, torch.ones_like(MASK)):
        torch.testing.assert_close(compiled(ROWS, mask), program(ROWS, mask), rtol=1e-6, atol=1e-6)


def test_a_product_that_does_not_fit_is_the_error_of_eager() -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x[:, mask] @ x

    compiled = stator.compile(program, backend="eager")
    with pytest.raises(RuntimeError) as expected:
        program(ROWS, MASK)
    with pytest.raises(RuntimeError) as actual:
        compiled(ROWS, MASK)
    assert str(actual.value) == str(expected.value)


def test_packing_by_lengths_is_said_to_depend_on_data() -> None:
    def pack(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.nn.utils.rnn.pack_padded_sequence(x + 1, lengths, batch_first=True).data * 2

    x, lengths = torch.randn(3, 5, 4), torch.tensor([5, 3, 2])
    assert torch.equal(stator.compile(pack, backend="eager")(x, lengths), pack(x, lengths))
    with pytest.raises(stator.Unsupported, match=r"_pack_padded_sequence.*depends on the data of a tensor"):
        stator.compile(pack, backend="eager", fullgraph=True)(x, lengths)
