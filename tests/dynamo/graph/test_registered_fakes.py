"""A user's operators whose fake implementations ask for sizes that depend on data stay in the graph, equal to eager.

Compared in float64 to 1e-10 relative, for sizes that change from call to call, 0 and 1 among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import stator
from stator.base.counters import counts

TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(scope="module")
def operators() -> Iterator[SimpleNamespace]:
    """`above`: the elements above a threshold, with a gradient. `pairs`: two results of one size, by the older name.
    `many`: promises at least three elements. `squares`: of fixed size. `factory`: the fake implementation calls a
    function without arguments on a device. `doubled`: a size is no symbol by itself. `spread`: rows at a distance that
    depends on data, `columns`: all strides do."""
    library = torch.library.Library("stator_test_fakes", "FRAGMENT")
    library.define("above(Tensor x, float threshold) -> Tensor")
    library.define("above_backward(Tensor grad, Tensor x, float threshold) -> Tensor")
    library.define("pairs(Tensor x) -> (Tensor, Tensor)")
    library.define("many(Tensor x) -> Tensor")
    for name in ("squares", "factory", "doubled", "spread", "columns"):
        library.define(f"{name}(Tensor x) -> Tensor")
    library.impl("above", lambda x, threshold: x[x > threshold], "CPU")
    library.impl(
        "above_backward", lambda grad, x, threshold: torch.zeros_like(x).masked_scatter_(x > threshold, grad), "CPU"
    )
    library.impl("pairs", lambda x: (x[x > 0], x.abs()[x > 0].long()), "CPU")
    library.impl("squares", lambda x: x * x, "CPU")
    library.impl("many", lambda x: x[x > 0], "CPU")
    library.impl("factory", lambda x: x[x > 0], "CPU")
    library.impl("doubled", lambda x: torch.cat([x[x > 0], x[x > 0], x[:1]]), "CPU")
    library.impl("spread", lambda x: x.repeat(3, 1)[:, : int((x > 0).sum())], "CPU")
    library.impl("columns", lambda x: x[: int((x > 0).sum()) // 2 * 2 + 2].repeat(4).view(4, -1)[:, :2].t(), "CPU")
    ops = torch.ops.stator_test_fakes

    def size(**bounds):
        return torch.library.get_ctx().new_dynamic_size(**bounds)

    def pairs(x):
        count = torch.library.get_ctx().create_unbacked_symint()
        return x.new_empty(count), x.new_empty((count,), dtype=torch.int64)

    def kept(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.threshold = inputs[1]

    def gradient(ctx, grad):
        return ops.above_backward(grad, ctx.saved_tensors[0], ctx.threshold), None

    torch.library.register_fake("stator_test_fakes::above", lambda x, threshold: x.new_empty(size()), lib=library)
    torch.library.register_fake(
        "stator_test_fakes::above_backward", lambda grad, x, threshold: torch.empty_like(x), lib=library
    )
    torch.library.register_fake("stator_test_fakes::pairs", pairs, lib=library)
    torch.library.register_fake(
        "stator_test_fakes::many", lambda x: x.new_empty(size(min=3, max=x.numel())), lib=library
    )
    torch.library.register_fake("stator_test_fakes::squares", torch.empty_like, lib=library)
    torch.library.register_autograd("stator_test_fakes::above", gradient, setup_context=kept, lib=library)
    torch.library.register_fake(
        "stator_test_fakes::factory", lambda x: torch.zeros(size(), dtype=torch.float64), lib=library
    )
    torch.library.register_fake("stator_test_fakes::doubled", lambda x: x.new_empty(2 * size() + 1), lib=library)
    torch.library.register_fake(
        "stator_test_fakes::spread", lambda x: x.new_empty_strided((3, size()), (size(), 1)), lib=library
    )
    torch.library.register_fake(
        "stator_test_fakes::columns", lambda x: x.new_empty_strided((2, 4), (size(), size())), lib=library
    )
    yield ops
    library._destroy()


def inputs():
    """Of eight elements, these many are positive: 5, 0, 1, 8, 2."""
    generator = torch.Generator().manual_seed(7)
    for positive in (5, 0, 1, 8, 2):
        x = torch.rand(8, generator=generator, dtype=torch.float64) + 0.1
        x[positive:] *= -1
        yield x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_one_graph_for_all_sizes(operators, backend):
    def program(x, w):
        chosen = operators.above(x, 0.05)
        return (chosen * w).exp().sum(), torch.cat([chosen, x * 2]), chosen.shape[0] + 1

    compiled = stator.compile(program, backend=backend, fullgraph=True)
    before = counts["graphs"]
    for x in inputs():
        expected_w, actual_w = (torch.tensor(0.3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        expected_x, actual_x = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected, actual = program(expected_x, expected_w), compiled(actual_x, actual_w)
        torch.testing.assert_close(actual, expected, **TOLERANCE)
        expected[0].backward()
        actual[0].backward()
        torch.testing.assert_close((actual_x.grad, actual_w.grad), (expected_x.grad, expected_w.grad), **TOLERANCE)
    assert counts["graphs"] - before == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["factory", "doubled", "spread", "columns"])
def test_sizes_and_strides_in_any_form(operators, name, backend):
    """Kernels need strides that keep elements apart, whatever the data are: those of `columns` may not."""
    operator = getattr(operators, name)

    def program(x):
        y = operator(x)
        return y, (y * 2).sum(0), y.flatten() + 1

    in_one = (name, backend) != ("columns", "inductor")
    compiled = stator.compile(program, backend=backend, fullgraph=in_one)
    before = counts["graph_breaks"]
    for x in inputs():
        torch.testing.assert_close(compiled(x), program(x), check_stride=True, **TOLERANCE)
    assert (counts["graph_breaks"] == before) == in_one


def test_results_of_one_size_may_be_added(operators):
    def program(x):
        first, second = operators.pairs(x)
        return first + second

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for x in inputs():
        torch.testing.assert_close(compiled(x), program(x), **TOLERANCE)


def test_bounds_that_do_not_hold_begin_the_call_anew(operators):
    def program(x):
        chosen = operators.many(x)
        return "many" if len(chosen) > 2 else "few", chosen * 2

    compiled = stator.compile(program, backend="eager")
    kinds = []
    for x in inputs():
        expected, actual = program(x), compiled(x)
        assert actual[0] == expected[0]
        torch.testing.assert_close(actual[1], expected[1], **TOLERANCE)
        kinds.append(actual[0])
    assert kinds == ["many", "few", "few", "many", "few"]


def test_without_unknown_sizes_the_graph_ends_at_the_operator(operators):
    def program(x):
        return operators.above(x * 2, 0.0) + 1

    compiled = stator.compile(program, backend="eager", options={"unknown_sizes": False})
    before = counts["graph_breaks"]
    for x in inputs():
        torch.testing.assert_close(compiled(x), program(x), **TOLERANCE)
    assert counts["graph_breaks"] > before


def test_an_operator_that_has_to_know_a_size_ends_the_graph_by_its_kind():
    def program(x):
        size = (x > 0).sum().item() + 2
        return torch.nn.functional.adaptive_avg_pool1d(x[None], size)

    x = torch.randn(8, generator=torch.Generator().manual_seed(3))
    found = stator.explain(program)(x)
    assert {reason.kind for reason in found.break_reasons} == {"data-dependent"}
    torch.testing.assert_close(found.result, program(x))


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_a_kernel_differentiates_by_itself_has_gradients(operators, backend):
    """Nothing is registered for autograd: eager goes through the operations of the kernel, written in Python."""

    def program(x):
        return (operators.squares(x * 2) * x.sum()).sum()

    compiled = stator.compile(program, backend=backend)
    for x in inputs():
        expected_x, actual_x = x.clone().requires_grad_(), x.clone().requires_grad_()
        program(expected_x).backward()
        compiled(actual_x).backward()
        torch.testing.assert_close(actual_x.grad, expected_x.grad, **TOLERANCE)
