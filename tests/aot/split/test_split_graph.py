"""Graphs with an operator inside that cannot be traced, handed to a backend: compiled around it, equal to eager.

Results, gradients, effects on inputs; how many parts are compiled, and what is counted. In float64, to 1e-9; what
autocast casts to bfloat16, to 1e-2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from stator import pipeline
from stator.base import counters, logs

pytestmark = pytest.mark.filterwarnings("ignore:stator. :RuntimeWarning")
BACKENDS = {"aot_eager": pipeline.aot_eager_backend, "inductor": pipeline.inductor_backend}
by_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)


def masked(x: Any, mask: Any) -> Any:
    y = x.sin() * 2
    return (torch.masked_select(y, mask).exp() + 1, y)


def indexed(x: Any, mask: Any) -> Any:
    return (x.exp()[mask].cos().sum() * 3,)


def repeated(x: Any, mask: Any) -> Any:
    times = mask[:, 0].to(torch.int64) + 1
    return (torch.repeat_interleave(x.sin(), times, 0).cos(),)


def narrowed(x: Any, mask: Any) -> Any:
    y = x.sin()
    part = torch.narrow(y, 0, mask[0, 0].to(torch.int64), 2)
    return (part * 2, part)


def split(x: Any, mask: Any) -> Any:
    first, second, third = torch.tensor_split(x.sin(), torch.tensor([1, 3]), 0)
    return (first.sum() * second, third)


def solved(x: Any, mask: Any) -> Any:
    found = torch.linalg.lstsq(x.sin(), mask.to(x.dtype), driver="gelsd")
    return (found.solution.exp(), found.residuals * 2)


def least_squares(x: Any, mask: Any) -> Any:
    solution, residuals = torch.linalg.lstsq(x.sin(), mask.to(x.dtype), driver="gelss")[:2]
    return (solution.exp(), residuals + 1)


def strided(x: Any, mask: Any) -> Any:
    return (x[:, ::2].as_strided((2, 2), (6, 2), 1).exp() * x.sum(),)


def two_places(x: Any, mask: Any) -> Any:
    y = torch.masked_select(x.sin(), mask).exp()
    places = torch.nonzero(mask).to(x.dtype)
    return (y.sum() * places.sum(), y * 2)


def number(x: Any, mask: Any) -> Any:
    return (x.sin() * x.detach().sum().item() + 1,)


def written(x: Any, mask: Any) -> Any:
    y = x.sin()
    view = y[1:]
    y.mul_(2)
    chosen = y[mask]
    view.add_(1)
    return (chosen.exp(), y.cos(), view)


def without_gradient(x: Any, mask: Any) -> Any:
    y = x.exp()
    torch._C._set_grad_enabled(False)
    z = (y * 2)[mask]
    w = z.sin()
    torch._C._set_grad_enabled(True)
    return (w + y.sum(), y[mask])


def lower_precision(x: Any, mask: Any) -> Any:
    torch.set_autocast_enabled("cpu", True)
    y = torch.mm(x, x.t())
    z = torch.masked_select(y, mask[:, :1].expand(4, 4))
    w = torch.mm(z[None, :], z[:, None])
    torch.set_autocast_enabled("cpu", False)
    return (w, y.float() * 2)


PROGRAMS = [
    masked, indexed, repeated, narrowed, split, solved, least_squares, strided, two_places, number, written,
    without_gradient, lower_precision,
]  # fmt: skip


def graph_of(program: Callable[..., Any]) -> fx.GraphModule:
    tracer = Setters()
    graph = tracer.trace(program)
    return fx.GraphModule(tracer.root, graph)


class Setters(fx.Tracer):
    """Records setters of torch's state, which take no proxies."""

    def trace(self, root: Any, concrete_args: Any = None) -> fx.Graph:
        patched = {name: getattr(owner, name) for owner, name in PLACES}
        try:
            for owner, name in PLACES:
                setattr(
                    owner, name, lambda *args, real=patched[name]: self.create_proxy("call_function", real, args, {})
                )
            return super().trace(root, concrete_args)
        finally:
            for owner, name in PLACES:
                setattr(owner, name, patched[name])


PLACES = ((torch._C, "_set_grad_enabled"), (torch, "set_autocast_enabled"))


def given(seed: int = 0, true: int = 7, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(12, dtype=torch.bool)
    mask[torch.randperm(12, generator=generator)[:true]] = True
    return torch.randn(4, 3, generator=generator, dtype=dtype).requires_grad_(), mask.reshape(4, 3)


def results_of(run: Callable[..., Any], x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    results = run(x, mask)
    roots = [result for result in results if result.requires_grad]
    tangents = [torch.linspace(0.5, 1.5, max(root.numel(), 1)).reshape(root.shape).to(root.dtype) for root in roots]
    return [*results, *torch.autograd.grad(roots, [x], tangents)]


@by_backend
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_and_gradients_are_eagers(program: Callable[..., Any], backend: Any) -> None:
    dtype, tolerance = (torch.float32, 1e-2) if program is lower_precision else (torch.float64, 1e-9)
    x, mask = given(dtype=dtype)
    compiled = backend(graph_of(program), [x, mask])
    for seed in (0, 1):
        x, mask = given(seed, dtype=dtype)
        found, expected = results_of(compiled, x, mask), results_of(program, x, mask)
        for left, right in zip(found, expected, strict=True):
            assert (left.dtype, left.requires_grad) == (right.dtype, right.requires_grad)
            torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@by_backend
def test_without_gradients(backend: Any) -> None:
    x, mask = given()
    with torch.no_grad():
        compiled = backend(graph_of(masked), [x, mask])
        for left, right in zip(compiled(x, mask), masked(x, mask), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)


def test_only_the_operator_runs_in_aten() -> None:
    x, mask = given()
    counters.clear()
    compiled = pipeline.inductor_backend(graph_of(masked), [x, mask])
    compiled(x, mask)
    assert counters.counts["aot_fallback:masked_select"] == 1
    assert counters.counts["aot_split:eager"] == 0
    assert counters.counts["kernels"] >= 2  # before it, and behind it


def test_what_is_behind_is_compiled_once_per_size_up_to_a_limit() -> None:
    x, mask = given()
    compiled = pipeline.aot_eager_backend(graph_of(indexed), [x, mask])
    counters.clear()
    for true in range(1, 13):
        x, mask = given(true=true)
        torch.testing.assert_close(compiled(x, mask)[0], indexed(x, mask)[0])
    assert counters.counts["aot_split:eager"] == 4  # of twelve sizes, eight are compiled
    x, mask = given(true=3)
    counters.clear()
    compiled(x, mask)
    assert not counters.counts["aot_split:eager"]


def test_a_write_to_an_input_before_the_operator_is_seen_behind_it() -> None:
    def program(x: Any, mask: Any) -> Any:
        x.add_(1)
        chosen = x[mask]
        x.mul_(2)
        return (chosen, x.sum())

    x, mask = given()
    ours, theirs = x.detach().clone(), x.detach().clone()
    found = pipeline.inductor_backend(graph_of(program), [ours, mask])(ours, mask)
    expected = program(theirs, mask)
    torch.testing.assert_close((ours, *found), (theirs, *expected))


def test_one_warning_names_the_operator() -> None:
    x, mask = given()
    logs.forget_warnings()
    with pytest.warns(RuntimeWarning, match="masked_select runs in ATen between compiled parts"):
        pipeline.aot_eager_backend(graph_of(masked), [x, mask])


def test_an_error_of_the_operator_is_eagers() -> None:
    def program(x: Any, mask: Any) -> Any:
        return (torch.masked_select(x.sin(), mask.reshape(3, 4)[:2]) + 1,)

    x, mask = given()
    with pytest.raises(RuntimeError) as expected:
        program(x, mask)
    with pytest.raises(RuntimeError) as found:
        pipeline.aot_eager_backend(graph_of(program), [x, mask])(x, mask)
    assert str(found.value) == str(expected.value)


@torch.library.custom_op("stator_tests::scaled_groups", mutates_args=())
def scaled_groups(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x * 2


scaled_groups.register_fake(lambda x, ends: torch.empty_like(x))


def _gradient_by_groups(ctx: Any, gradient: torch.Tensor) -> Any:
    made = torch.zeros_like(gradient)
    for end in ctx.ends.tolist():  # reads data
        made[:end] = gradient[:end] * 2
    return made, None


def _keep_ends(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.ends = inputs[1]


scaled_groups.register_autograd(_gradient_by_groups, setup_context=_keep_ends)


def test_an_operator_whose_gradient_formula_reads_data_runs_in_aten() -> None:
    def program(x: Any, ends: Any) -> Any:
        for _ in range(3):
            x = torch.ops.stator_tests.scaled_groups(x.sin().exp(), ends).cos()
        return (x,)

    counters.clear()
    x, ends = given()[0], torch.tensor([1, 3, 4])
    compiled = pipeline.inductor_backend(graph_of(program), [x, ends])
    for left, right in zip(results_of(compiled, x, ends), results_of(program, x, ends), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)
    assert counters.counts["aot_fallback:scaled_groups"] == 3
    assert counters.counts["aot_split"] == 7 and counters.counts["graphs"] == 0  # split once, not once for each call
