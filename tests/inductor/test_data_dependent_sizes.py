"""Programs with sizes that depend on data are one program of kernels and library calls: results and gradients equal
eager's for any data, among it data that chooses no row or one, with one compilation for counts that change from call to
call. In float64, to 1e-9.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import Counts

import stator

ROWS = 12


def selected(x: Any, w: Any) -> Any:
    chosen = (x @ w)[x.sum(1) > 0]
    return (chosen * 2 + 1).sin(), chosen.sum(0)


def routed(x: Any, w: Any) -> Any:
    """A mixture of experts."""
    y = x @ w
    out = torch.zeros_like(y)
    for expert in range(3):
        (rows,) = torch.where(x[:, :3].argmax(1) == expert)
        out.index_add_(0, rows, F.gelu(y[rows] @ w.t()) * (expert + 1))
    return out


def packed(x: Any, w: Any) -> Any:
    mask = x[:, 0] > 0
    rows = x[mask] @ w
    return (x @ w).masked_scatter(mask[:, None], rows.tanh() + 1)


def counted(x: Any, w: Any) -> Any:
    count = int((x[:, 0] > 0).sum())
    return (x @ w)[:count].cos() * count, x.new_ones(count, 2).cumsum(0)


def repeated(x: Any, w: Any) -> Any:
    return torch.repeat_interleave(x @ w, (x[:, 0] > 0).long() * 2, 0).tanh()


def distinct(x: Any, w: Any) -> Any:
    values, inverse, counts = torch.unique((x[:, 0] > 0).long(), return_inverse=True, return_counts=True)
    return (values * w.sum() / counts)[inverse][:, None] * x


def refilled(x: Any, w: Any) -> Any:
    """Whole rows, and elements for a mask that is False everywhere."""
    mask, columns = x[:, 0] > 0, (x @ w).t()
    rows = (x @ w)[mask]
    few = rows.flatten()[: rows.numel() // 2].sin()
    return columns.masked_scatter(mask[None], rows.t()), columns.clone().masked_scatter(columns < -50, few)


def divided(x: Any, w: Any) -> Any:
    first = int((x[:, 0] > 0).sum())
    lengths = torch.tensor([first, ROWS - first]).tolist()
    above, below = torch.split(x @ w, lengths)
    return above.sin().sum() + below.cos().sum(), below * 2


def viewed(x: Any, w: Any) -> Any:
    chosen = (x @ w)[x[:, 0] > 0]
    return chosen, chosen.t(), chosen.view(-1)[:, None] + 1


def indexed(x: Any, w: Any) -> Any:
    places = (x > 0.5).nonzero()
    return x[places[:, 0], places[:, 1]] * w.sum(), places * 2


def masked(x: Any, w: Any) -> Any:
    return torch.masked_select(x @ w, x[:, :1] > 0).exp()


def rolled(x: Any, w: Any) -> Any:
    chosen = (x @ w)[x[:, 0] > 0]
    first = chosen[:, 0]
    half = first.roll(first.shape[0] // 2)
    return chosen.roll(1, 0), chosen.roll(2), chosen.roll((1, -1), (0, 1)).sum(0), half, first.roll(1)[:1] * 2


def remainders(x: Any, w: Any) -> Any:
    """Positions divided by a size that may be zero."""
    chosen = (x @ w)[x[:, 0] > 0]
    flat = chosen.t().reshape(-1)
    longer = F.pad(flat.sin(), (1, 5)), torch.cat([chosen.roll(1, 0), w])
    return chosen.repeat(2, 3) + 1, chosen.repeat(3, 1).t().sum(1), *longer


def parts(x: Any, w: Any) -> Any:
    chosen = (x @ w)[x[:, 0] > 0]
    windows = chosen.t().reshape(4, -1).unfold(0, 2, 1)
    return tuple([part.sin() for part in (*chosen.chunk(2, 1), *chosen.t().chunk(2), windows)])


def overwritten(x: Any, w: Any) -> Any:
    chosen = (x @ w)[x[:, 0] > 0]
    count, base = chosen.shape[0], (x @ w).repeat(3, 1)
    every = base.slice_scatter(chosen * 2, 0, 1, 1 + 3 * count, 3)
    return base.slice_scatter(chosen, 0, 2, 2 + count), every * 2


def assumed(x: Any, w: Any) -> Any:
    """Right only where as many rows are chosen as are not: other calls begin anew."""
    mask = x[:, 0] > 0
    return (x @ w)[mask] * x[~mask].sum(1, keepdim=True)


def pooled(x: Any, w: Any) -> Any:
    """The number of groups is read from the data."""
    group = (x[:, 0] > 0).long() * 2
    groups = int(group.max()) + 1
    total = x.new_zeros(groups, 4).index_add(0, group, x @ w)
    return total / torch.bincount(group, minlength=groups).clamp(min=1)[:, None]


def rests(x: Any, w: Any) -> Any:
    """Sizes that are zero for large numbers: what is left behind a count, and remainders."""
    columns, count = (x @ w).t(), int((x[:, 0] > 0).sum())
    rest, middle = columns[:, count:], columns[:, count // 2 : count]
    return rest * 2, rest.t().sin() + 1, middle.exp(), middle.t() * w.sum(), w[:3, :1] + x.new_zeros(3, count % 4)


def padded(x: Any, w: Any) -> Any:
    """The operator reads the amounts from tensors."""
    columns, count = (x @ w).t(), (x[:, 0] > 0).sum()
    replicated = F.pad(columns[None], (count % 3, count % 2), mode="replicate")
    return F.pad(columns, (count, count // 2)).cos(), replicated * 2, columns.narrow(1, count // 2, 3).sin()


def resized(x: Any, w: Any) -> Any:
    """Sizes in tensors, at times those of the image."""
    image, size = (x @ w)[None, None], (x[:, 0] > 0).sum() + 1
    linear = F.interpolate(image, size=(size, 4), mode="bilinear"), F.interpolate(image[0], size=(size,), mode="linear")
    nearest = F.interpolate(image, size=(size + 2, size * 4), mode="nearest")
    return *linear, nearest.sin(), F.interpolate(image, size=(size, size), mode="bicubic")


def best(x: Any, w: Any) -> Any:
    count = (x[:, 0] > 0).sum().item()
    values, places = (x @ w).topk(count, 0)
    return values * 2, x.new_zeros(ROWS, 4).scatter(0, places, values.sin())


def classes(x: Any, w: Any) -> Any:
    """As many classes as the data tells."""
    kinds = F.one_hot((x[:, 0] > 0).long() + (x[:, 1] > 0).long() * 3).to(x.dtype)
    return kinds.t() @ x / kinds.sum(0)[:, None].clamp(min=1), x @ w * kinds.shape[1]


def cut(x: Any, w: Any) -> Any:
    """The bounds of parts are a tensor."""
    count = (x[:, 0] > 0).sum()
    first, second, third = torch.tensor_split(x @ w, torch.stack([count // 2, count]))
    rows, rest = (x @ w).t().tensor_split(count[None], 1)
    return first * 2, second.sum(0), third.sin(), rows.exp(), rest.sum(0)


PROGRAMS = (
    *(selected, routed, packed, counted, repeated, distinct, divided, viewed, indexed, masked, assumed, pooled),
    *(rolled, remainders, parts, overwritten, rests, padded, refilled, resized, best, classes, cut),
)  # fmt: skip
by_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
CHOSEN = (5, 3, 0, 7, 1, 6, ROWS, 2)


def given(chosen: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(chosen)
    x = torch.rand(rows, 4, dtype=torch.float64, generator=generator) + 0.1
    x[chosen:] *= -1
    w = torch.randn(4, 4, dtype=torch.float64, generator=generator)
    return x[torch.randperm(rows, generator=generator)], w


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except RuntimeError:  # shapes that do not fit
        return RuntimeError


def gradients(function: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> Any:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    found = outcome(function, x, w)
    if found is RuntimeError:
        return found
    results = [one for one in (found if isinstance(found, tuple) else (found,)) if one.requires_grad]
    total = sum((one * (at + 1)).square().sum() for at, one in enumerate(results))
    return [*[one.detach() for one in results], *torch.autograd.grad(total, (x, w), allow_unused=True)]


def same(found: Any, expected: Any) -> None:
    if expected is RuntimeError:
        assert found is RuntimeError
    else:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    stator.reset()
    yield
    stator.reset()


@by_program
def test_results_for_any_data(program: Callable[..., Any]) -> None:
    compiled, counts = stator.compile(program, options={"verify": True}), Counts()
    for chosen in CHOSEN:
        x, w = given(chosen)
        same(outcome(compiled, x, w), outcome(program, x, w))
    assert counts.compilations == 1 and counts["compiled:whole"] == 1


@by_program
def test_gradients_for_any_data(program: Callable[..., Any]) -> None:
    compiled, counts = stator.compile(program, options={"verify": True}), Counts()
    for chosen in CHOSEN:
        x, w = given(chosen)
        same(gradients(compiled, x, w), gradients(program, x, w))
    assert counts.compilations == 1 and counts["compiled:forward"] == 1
    assert not counts["aot_backward:fixed_sizes"]


@pytest.mark.parametrize("program", (selected, routed, packed, repeated, viewed), ids=lambda one: one.__name__)
def test_beside_sizes_of_inputs_that_change(program: Callable[..., Any]) -> None:
    compiled, counts = stator.compile(program, dynamic=True), Counts()
    for chosen, rows in ((5, 9), (3, 7), (0, 8), (1, 11), (6, 6)):
        x, w = given(chosen, rows)
        same(compiled(x, w), program(x, w))
        same(gradients(compiled, x, w), gradients(program, x, w))
    assert counts.compilations <= 2


def classified(x: Any, w: Any) -> Any:
    scores = (x @ w)[x[:, 0] > 0]
    return F.cross_entropy(scores, scores.argmin(1)), F.cross_entropy(scores, scores.argmin(1), w[0]), scores.amax(1)


@pytest.mark.parametrize("program", (packed, classified), ids=lambda one: one.__name__)
def test_no_row_needs_no_second_run(program: Callable[..., Any]) -> None:
    compiled, counts = stator.compile(program), Counts()
    for chosen in (5, 0, 0, 3, 1):
        x, w = given(chosen)
        same(compiled(x, w), program(x, w))
        same(gradients(compiled, x, w), gradients(program, x, w))
    assert not counts["dynamo.failed_graphs"]


def branching(x: Any, w: Any) -> Any:
    chosen = (x @ w)[x[:, 0] > 0]
    if chosen.shape[0] > 3:
        return chosen.sin()
    if 2 * chosen.shape[0] == x[0, 1:].argmax().item():
        return chosen + 1
    return chosen.cos()


def test_a_branch_on_a_number_parts_two_programs() -> None:
    compiled, counts = stator.compile(branching), Counts()
    for chosen in CHOSEN:
        x, w = given(chosen)
        same(compiled(x, w), branching(x, w))
    assert counts["graph_breaks"]


def test_too_few_elements_to_scatter_are_an_error() -> None:
    def program(x: Any, w: Any) -> Any:
        mask = x[:, 0] > 0
        return x[:, 0].masked_scatter(mask, x[mask][1:, 0])

    compiled = stator.compile(program)
    for chosen in (5, 1, 0, 3):
        x, w = given(chosen)
        same(outcome(compiled, x, w), outcome(program, x, w))


INTO_CHOSEN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "index": lambda y, i, v: y[i] * 2,
    "sum": lambda y, i, v: (y.t()[:, i] + 1).sum(1),
    "index_select": lambda y, i, v: y.index_select(0, i),
    "embedding": lambda y, i, v: F.embedding(i, y).exp(),
    "gather": lambda y, i, v: y.gather(0, i[:, None].expand(-1, 4)),
    "take_along_dim": lambda y, i, v: torch.take_along_dim(y, i[:, None], 0),
    "scatter": lambda y, i, v: y.scatter(0, i[:, None].expand(-1, 4), v),
    "scatter_add": lambda y, i, v: y.scatter_add(0, i[:, None].expand(-1, 4), v),
    "index_put": lambda y, i, v: y.index_put((i,), v, accumulate=True),
    "index_add": lambda y, i, v: y.index_add(0, i, v),
    "index_copy": lambda y, i, v: y.index_copy(0, i, v),
    "put": lambda y, i, v: y.put(i, v[:, 0]),
    "bag": lambda y, i, v: F.embedding_bag(i[:, None], y, mode="sum"),
}


def _result_or_error(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (IndexError, RuntimeError) as error:
        return type(error)


def index_few_rows(data_dependent: bool) -> None:
    for name, operation in INTO_CHOSEN.items():

        def program(x: Any, i: Any, v: Any, operation: Any = operation) -> Any:
            return operation(x[x[:, 0] > 0] if data_dependent else x[2:], i, v)

        compiled = stator.compile(program, dynamic=True)
        for chosen in (3, 0, 7):
            x = given(chosen)[0] if data_dependent else given(chosen + 2, chosen + 2)[0]
            args = x, torch.arange(20) % 3, torch.rand(20, 4, dtype=torch.float64)
            found, expected = (_result_or_error(function, *args) for function in (compiled, program))
            assert isinstance(found, torch.Tensor) == isinstance(expected, torch.Tensor), (name, chosen, found)
            if isinstance(expected, torch.Tensor):
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
            else:
                assert found is expected, (name, found, expected)


@pytest.mark.parametrize("data_dependent", [True, False])
def test_an_index_into_no_row_is_eagers_error(data_dependent: bool) -> None:
    """In a process of its own: a read of the memory that no row has ends it."""
    process = multiprocessing.get_context("spawn").Process(target=index_few_rows, args=(data_dependent,))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_wrong_assumption_leaves_inputs_as_they_are() -> None:
    """The check comes before the write, so that the frame can begin anew."""

    def program(x: Any, w: Any, total: Any) -> Any:
        fitting = (x @ w)[x[:, 0] > 0] + w.new_ones(5, 4)
        total.add_(1)
        return fitting

    compiled = stator.compile(program)
    for chosen in (5, 5, 3, 5):
        totals = torch.zeros(3), torch.zeros(3)
        x, w = given(chosen)
        found, expected = outcome(compiled, x, w, totals[0]), outcome(program, x, w, totals[1])
        same(found, expected)
        assert torch.equal(*totals)


def test_a_copy_that_eager_does_not_make_of_one_row() -> None:
    """`contiguous` of one row is the row itself, which the write then changes."""

    def program(x: Any, w: Any) -> Any:
        chosen = (x @ w)[x[:, 0] > 0]
        chosen.t().contiguous().add_(1)
        return chosen

    compiled = stator.compile(program)
    for chosen in (5, 1, 3, 0, 1):
        x, w = given(chosen)
        same(compiled(x, w), program(x, w))


TABLES: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda table, at: table[at],
    "columns": lambda table, at: table[:, at],
    "embedding": lambda table, at: F.embedding(at, table),
    "index_select": lambda table, at: table.index_select(0, at),
    "index_put": lambda table, at: table.index_put((at,), table.new_ones(())),
    "gather": lambda table, at: table.gather(0, at[:, None]),
}


@pytest.mark.parametrize("name", TABLES)
def test_an_index_into_a_table_of_no_rows_and_columns(name: str) -> None:
    def program(x: Any, at: Any) -> Any:
        chosen = x[x > 0]
        return TABLES[name](torch.outer(chosen, chosen), at)

    compiled = stator.compile(program)
    for x in (torch.ones(5), torch.tensor([1.0, -1, 2])):
        same(compiled(x, torch.tensor([1, 0])), program(x, torch.tensor([1, 0])))
    for function in (program, compiled):
        with pytest.raises((IndexError, RuntimeError)):
            function(-torch.ones(5), torch.tensor([1, 0]))


def test_tensors_without_elements_have_unknown_sizes() -> None:
    """Memory of no bytes whose shape is known only when the program runs."""

    def program(x: Any, labels: Any) -> Any:
        chosen = x[labels > 0][:, :0]
        return (chosen * 2).sin().t() @ chosen.exp(), (chosen + 1).cos()

    compiled = stator.compile(program, options={"verify": True}, fullgraph=True)
    for chosen in CHOSEN:
        x, _ = given(chosen)
        same(compiled(x, x[:, 0]), program(x, x[:, 0]))


def test_classes_of_an_empty_tensor_are_refused() -> None:
    compiled = stator.compile(lambda x: F.one_hot(x).float() * 2, fullgraph=True)
    for labels in ([0, 2], [1], []):
        x = torch.tensor(labels, dtype=torch.int64)
        if labels:
            same(compiled(x), F.one_hot(x).float() * 2)
    with pytest.raises(RuntimeError, match="Can not infer total number of classes from empty tensor"):
        compiled(torch.zeros(0, dtype=torch.int64))
