"""torch.cond on a tensor: both branches in one graph, of which one runs. Compared with the branch run by Python."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import stator
from stator.base import counters
from stator.base.errors import Unsupported
from stator.graph.subgraphs import subgraph_ops

BACKENDS = ["eager", "aot_eager", "inductor"]
_weights = torch.Generator().manual_seed(1)
LEFT = torch.randn(4, 4, generator=_weights).requires_grad_()
RIGHT = torch.randn(4, 4, generator=_weights).requires_grad_()
torch.manual_seed(0)
LINEAR = torch.nn.Linear(4, 4)
PARAMETERS = [LEFT, RIGHT, *LINEAR.parameters()]


def taken(condition: Any, true: Callable[..., Any], false: Callable[..., Any], operands: Any = ()) -> Any:
    """What torch.cond means."""
    return (true if bool(condition) else false)(*operands)


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Calls a function with `taken` in place of torch.cond."""

    def call(function: Callable[..., Any], *args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "cond", taken)
            return function(*args)

    yield call


def closures(x: torch.Tensor) -> Any:
    y = x.exp()
    return torch.cond(x.sum() > 0, lambda: y @ LEFT, lambda: y * 2 + RIGHT)


def nested(x: torch.Tensor) -> Any:
    def first(a: torch.Tensor) -> Any:
        return torch.cond(a.max() > 1, lambda b: b.sin() @ LEFT, lambda b: b.cos(), (a,))

    def second(a: torch.Tensor) -> Any:
        return torch.cond(a.min() < -1, lambda b: b * 3, lambda b: b.tanh() @ RIGHT, (a,))

    return torch.cond(x.sum() > 0, first, second, (x * 2,))


def containers(x: torch.Tensor) -> Any:
    def first(o: Any) -> Any:
        return {"a": o["q"].sin(), "b": [o["q"].sum(), 3]}

    def second(o: Any) -> Any:
        return {"a": o["q"].cos(), "b": [o["q"].mean(), 3]}

    made = torch.cond(x.sum() > 0, first, second, ({"q": x},))
    return made["a"] + made["b"][0] * made["b"][1]


def modules(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: torch.relu(LINEAR(a)), lambda a: a @ LEFT, (x,))


def constants(x: torch.Tensor) -> Any:
    return torch.cond(
        x.sum() > 0, lambda a: torch.tensor([1.0, 2, 3, 4]).expand(4, 4) + a, lambda a: a * torch.arange(4.0), (x,)
    )


def only_a_constant(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: torch.ones(4, 4), lambda a: a.sin(), (x,)) * 2


def results_written_to(x: torch.Tensor) -> Any:
    y = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))
    y.mul_(2)
    y[0] = 1
    return y


def views(x: torch.Tensor) -> Any:
    second = x[2:].t()[0:1, 0].expand(4)
    return torch.cond(x[0].sum() > 0, lambda a, b: a.sum(0) + b, lambda a, b: a.prod(0) - b, (x[:2], second))


def loop(x: torch.Tensor) -> Any:
    for turn in range(3):
        x = torch.cond(x.sum() > turn, lambda a: a.sin() + 1, lambda a, k=turn: a.cos() * (k + 2), (x,))
    return x


def several_results(x: torch.Tensor) -> Any:
    def first(a: torch.Tensor) -> Any:
        return a.sin(), a.argmax(), a.detach().cos()

    def second(a: torch.Tensor) -> Any:
        return a.cos(), a.argmin(), a.sum(1, keepdim=True) * torch.ones(4)

    a, b, c = torch.cond(x.sum() > 0, first, second, (x,))
    return a * c + b


def without_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        mask = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))
    return mask * x


def under_autocast(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.cond(x.sum() > 0, lambda a: (a @ LEFT).float(), lambda a: (a @ RIGHT).float(), (x,)).sin()


def checkpointed(x: torch.Tensor) -> Any:
    def region(a: torch.Tensor) -> Any:
        return torch.cond(a.sum() > 0, lambda b: (b @ LEFT).sin(), lambda b: b.cos().exp(), (a,)).sin()

    return checkpoint(region, x * 2, use_reentrant=False)


PROGRAMS = [
    *(closures, nested, containers, modules, constants, only_a_constant, results_written_to, views, loop),
    *(several_results, without_grad, under_autocast, checkpointed),
]


def gradients(function: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    """Of x and all parameters; zeros where there is none."""
    x = x.clone().requires_grad_()
    result = function(x)
    sources = [x, *PARAMETERS]
    if not result.requires_grad:
        return [torch.zeros_like(one) for one in sources]
    found = torch.autograd.grad(result.sum(), sources, allow_unused=True)
    return [torch.zeros_like(one) if grad is None else grad for one, grad in zip(sources, found, strict=True)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_branch_taken_and_its_gradients(program: Any, backend: str, by_python: Any) -> None:
    """float32 of order one, a few operators deep: 1e-5 relative and absolute."""
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for seed in range(4):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)) + (0.5 if seed % 2 else -0.5)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), by_python(program, x), rtol=1e-5, atol=1e-5)
        got, wanted = gradients(compiled, x), by_python(gradients, program, x)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_one_branch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs of the other one are not called."""
    ran: list[int] = []
    run = subgraph_ops.SubgraphOp.run

    def counted(part: subgraph_ops.SubgraphOp, tensors: Any, sizes: Any) -> Any:
        part._functions = tuple(
            (lambda *values, at=at, function=function: (ran.append(at), function(*values))[1])
            for at, function in enumerate(part._functions)
        )
        return run(part, tensors, sizes)

    monkeypatch.setattr(subgraph_ops.SubgraphOp, "run", counted)
    compiled = stator.compile(closures, backend="inductor", fullgraph=True)
    with torch.no_grad():
        compiled(torch.ones(4, 4))
        assert ran == [0]
        ran.clear()
        monkeypatch.setattr(subgraph_ops.SubgraphOp, "run", run)
        compiled(-torch.ones(4, 4))
    assert ran == [1]


def test_both_branches_become_kernels() -> None:
    before = counters.counts["parts"]
    compiled = stator.compile(constants, backend="inductor", fullgraph=True, options={"verify": True})
    compiled(torch.ones(4, 4))
    assert counters.counts["parts"] == before + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_change_are_inputs_of_branches(backend: str, by_python: Any) -> None:
    def program(x: torch.Tensor, number: float) -> Any:
        return torch.cond(x.sum() > 0, lambda a: a * number, lambda a: a + number, (x,))

    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for turn in range(6):
        x = torch.full((4,), 1.0 if turn % 2 else -1.0)
        torch.testing.assert_close(compiled(x, turn + 0.5), by_python(program, x, turn + 0.5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives_of_derivatives(backend: str, by_python: Any) -> None:
    """Third derivatives in float64: 1e-9 relative."""
    weight = LEFT.detach().double().requires_grad_()

    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: (a @ weight).sin(), lambda a: (a * a * a) @ weight, (x,))

    def third(function: Any, x: torch.Tensor) -> Any:
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(second.sum(), (x, weight))

    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for sign in (1, -1):
        x = torch.rand(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * sign
        torch.testing.assert_close(third(compiled, x), by_python(third, program, x), rtol=1e-9, atol=1e-12)


def test_random_numbers_in_a_branch_with_gradients_break_the_graph() -> None:
    """The backward would compute the branch again, with other numbers, as plain torch does."""

    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: torch.nn.functional.dropout(a, 0.5).exp(), lambda a: a.cos(), (x,))

    def result_and_gradient(function: Callable[..., Any]) -> Any:
        x = torch.ones(64, requires_grad=True)
        torch.manual_seed(3)
        result = function(x)
        return result, torch.autograd.grad(result.sum(), x)

    compiled = stator.compile(program, backend="aot_eager")
    torch.testing.assert_close(result_and_gradient(compiled), result_and_gradient(program), rtol=0, atol=0)
    with pytest.raises(Unsupported, match="draws random numbers, and has gradients"):
        stator.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(64, requires_grad=True))
    with torch.no_grad():
        torch.manual_seed(3)
        result = stator.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(64))
        torch.manual_seed(3)
        assert torch.equal(result, torch.nn.functional.dropout(torch.ones(64), 0.5).exp())


def test_a_custom_function_may_decide_in_forward_and_backward(by_python: Any) -> None:
    class Deciding(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            ctx.save_for_backward(x)
            return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a * a, (x,))

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return torch.cond(x.sum() > 0, lambda g, a: g * a.cos(), lambda g, a: g * a * 3, (gradient, x))

    def program(x: torch.Tensor) -> Any:
        return Deciding.apply(x * 2)

    compiled = stator.compile(program, backend="inductor", fullgraph=True)
    for sign in (1.0, -1.0):
        x = torch.linspace(0.1, 1, 16).reshape(4, 4) * sign
        torch.testing.assert_close(gradients(compiled, x), by_python(gradients, program, x))


def test_results_require_grad_and_what_was_not_read_has_a_gradient_of_zeros() -> None:
    """As in plain torch, where both branches have the same signature for autograd."""
    for backend in BACKENDS:
        compiled = stator.compile(
            lambda p, x, y: torch.cond(p, lambda a, b: torch.ones(3), lambda a, b: a * b, (x, y)),
            backend=backend,
            fullgraph=True,
        )
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        result = compiled(torch.tensor(True), x, y)
        assert result.requires_grad
        result.sum().backward()
        assert torch.equal(x.grad, torch.zeros(3)) and torch.equal(y.grad, torch.zeros(3)), backend


EFFECTS: list[int] = []
REFUSED = {
    "shares memory": (lambda a: a, lambda a: a + 1),
    "whose branches give f32": (lambda a: a.sum(), lambda a: a.sin()),
    "or f64": (lambda a: a.sin(), lambda a: a.double()),
    "strides": (lambda a: torch.ones(3, 2).t() + a[0], lambda a: torch.ones(2, 3) + a[0]),
    "different structure": (lambda a: (a.sin(), a.cos()), lambda a: a.cos()),
    "something else than tensors": (lambda a: (a.sin(), None), lambda a: (a.cos(), None)),
    "writes to": (lambda a: a.add_(1) * 2, lambda a: a.sin()),
    "changes an object": (lambda a: (EFFECTS.append(1), a.sin())[1], lambda a: a.cos()),
    "prints": (lambda a: (print("x"), a.sin())[1], lambda a: a.cos()),
    "raises KeyError": (lambda a: {}["missing"], lambda a: a.cos()),
    r"item\(\)": (lambda a: a * a.sum().item(), lambda a: a.cos()),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_plain_torch_refuses_is_refused_with_the_line_of_the_program(reason: str) -> None:
    true, false = REFUSED[reason]

    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, true, false, (x,))

    with pytest.raises(Unsupported, match=reason) as caught:
        stator.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    assert "test_conditions_on_tensors.py" in str(caught.value)
    assert not EFFECTS


def test_compiled_branches_are_freed_with_what_was_compiled() -> None:
    def made() -> Any:
        weight = torch.nn.Parameter(torch.randn(4, 4))

        def program(x: torch.Tensor) -> Any:
            return torch.cond(x.sum() > 0, lambda a: a @ weight, lambda a: a * 2, (x,))

        compiled = stator.compile(program, backend="inductor", fullgraph=True)
        for sign in (1, -1):
            compiled(torch.ones(4, 4) * sign).sum().backward()
        return weakref.ref(weight)

    gc.collect()
    before = len(subgraph_ops._parts)
    weight = made()
    gc.collect()
    assert weight() is None
    assert len(subgraph_ops._parts) <= before


# ---- while_loop ----


def growing(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    shift = x.exp()

    def body(state: Any) -> Any:
        return ({"turn": state["turn"] + 1, "y": state["y"].abs() * 2 + shift @ LEFT},)

    (state,) = while_loop(lambda s: s["y"].abs().sum() < 100, body, ({"turn": torch.tensor(0), "y": x},))
    return state["y"], state["turn"]


def growing_by_python(x: torch.Tensor) -> Any:
    y, turn, shift = x, 0, x.exp()
    while y.abs().sum() < 100:
        y, turn = y.abs() * 2 + shift @ LEFT, turn + 1
    return y, torch.tensor(turn)


def deciding_inside(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    def body(at: torch.Tensor, y: torch.Tensor) -> Any:
        z = torch.cond(y.sum() > 10, lambda q: q.sin(), lambda q: q * 3, (y,))
        (w,) = while_loop(lambda v: v.abs().max() < 4, lambda v: (v * 1.5,), (z + 1,))
        return at + 1, w

    return while_loop(lambda at, y: at < 3, body, (torch.tensor(0), x.abs()))


def deciding_by_python(x: torch.Tensor) -> Any:
    y = x.abs()
    for _ in range(3):
        y = (y.sin() if y.sum() > 10 else y * 3) + 1
        while y.abs().max() < 4:
            y = y * 1.5
    return torch.tensor(3), y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("program", "wanted"), [(growing, growing_by_python), (deciding_inside, deciding_by_python)])
def test_a_loop_turns_as_often_as_its_tensors_say(program: Any, wanted: Any, backend: str) -> None:
    """Up to ten turns in float32: 1e-4 relative."""
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    with torch.no_grad():
        for seed in range(3):
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x), wanted(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_that_never_turns_gives_copies(backend: str) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def program(x: torch.Tensor) -> Any:
        at, y = while_loop(lambda at, y: at < 0, lambda at, y: (at + 1, y * 2), (torch.tensor(0), x))
        y.add_(1)
        return at, y

    x = torch.zeros(3)
    at, y = stator.compile(program, backend=backend, fullgraph=True)(x)
    assert int(at) == 0 and torch.equal(y, torch.ones(3)) and torch.equal(x, torch.zeros(3))


def test_a_loop_of_what_requires_grad_is_refused() -> None:
    with pytest.raises(Unsupported, match="require grad"):
        stator.compile(growing, backend="eager", fullgraph=True)(torch.ones(4, 4))
