"""Custom autograd.Functions in compiled code, beside eager: results, gradients, guards, effects, errors."""

from __future__ import annotations

import pytest
import torch
from tests.scenarios import BACKENDS, Scenario, check, gradients, leaf, may_break, scenarios
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

from stator.dynamo.capture import capture
from stator.graph.printer import load_graph, print_graph

TABLE = torch.arange(4.0)
SCALE = 2.0
SCALED = torch.full((4,), 0.5, requires_grad=True)


class Scaled(Function):
    """Not the true derivative, so that it cannot be mistaken for autograd's."""

    @staticmethod
    def forward(ctx, x, factor=3):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 5 * x * ctx.factor, None


class Several(Function):
    @staticmethod
    def forward(x, y, power=2):
        a, b = x.exp(), (x + y).sin() ** power
        return a, b, a.argmax(), power

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, power = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(x, output[0], None)
        ctx.y = y
        ctx.power = power

    @staticmethod
    def backward(ctx, ga, gb, gi, gp):
        x, a, nothing = ctx.saved_tensors
        assert nothing is None and gi is not None and gp is None
        with torch.no_grad():
            c = (x + ctx.y).cos() * ctx.power
        return ga * a + gb * c, gb * c, None


class InPlace(Function):
    @staticmethod
    def forward(ctx, x, y):
        x.mul_(3)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x, y * 2

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * 3.5 + x.detach(), h * 2


class WithoutZeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.kept = (x * 2).detach()
        return x.sin(), x.cos(), "text"

    @staticmethod
    def backward(ctx, a, b, text):
        total = None
        if a is not None:
            total = a * 7
        if b is not None:
            total = b * 5 * ctx.kept if total is None else total + b * 5 * ctx.kept
        return total


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 4 * ctx.saved_tensors[0] ** 2 * g


def saves_and_attributes(compiled):
    x = leaf(3, 4)
    f = compiled(lambda x: Scaled.apply(x.sin(), 2).sum() + Scaled.apply(x).sum())
    return [gradients(f(x), x) for _ in range(2)]


def several_outputs(compiled):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)

    def program(x, y):
        a, b, i, n = Several.apply(x, y * 2, 3)
        return (a * b).sum() * n, i, a

    f = compiled(program)
    loss, i, a = f(x, y)
    return gradients(loss, x, y), i, a.detach(), i.requires_grad, gradients(f(x, y)[2].sum(), x, y)


def default_arguments_of_forward(compiled):
    x, y = leaf(4), leaf(4, seed=1)
    return gradients(compiled(lambda x, y: Several.apply(x, y)[1].sum())(x, y), x, y)


def dirty_argument(compiled):
    x, y = leaf(4), leaf(4, seed=1)

    def program(x, y):
        z = x * 2
        w, v = InPlace.apply(z, y)
        return (w * z + v).sum(), w is z

    loss, same = compiled(program)(x, y)
    return loss.detach(), gradients(loss, x, y), same


@may_break
def dirty_leaf(compiled):
    return compiled(lambda x: InPlace.apply(x, x)[1].sum())(leaf(4))


def missing_gradients_stay_missing(compiled):
    x = leaf(4)
    f = compiled(lambda x: WithoutZeros.apply(x)[:2])
    return [gradients(choose(*f(x)), x) for choose in _CHOICES]


_CHOICES = (lambda a, b: a.sum(), lambda a, b: b.sum(), lambda a, b: (a * b).sum())


def nothing_requires_grad(compiled):
    x = torch.arange(4.0)

    def program(x):
        a, b, text = WithoutZeros.apply(x)
        return a + b, text, Scaled.apply(x, 4)

    f = compiled(program)
    with torch.no_grad():
        inside = f(leaf(4))
    return f(x), inside


def needs_input_grad(compiled):
    class Asks(Function):
        @staticmethod
        def forward(ctx, x, y, n):
            ctx.asked = ctx.needs_input_grad
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return (
                g * y if ctx.needs_input_grad[0] else None,
                g * x * len(ctx.asked) if ctx.needs_input_grad[1] else None,
                None,
            )

    apply = Asks.apply
    f = compiled(lambda x, y: apply(x, y, 3).sum())
    x, y = leaf(4), leaf(4, seed=1)
    return gradients(f(x, y), x, y), gradients(f(x, y.detach()), x), gradients(f(x.detach(), y), y)


def reads_tensors_it_is_not_given(compiled):
    class Closes(Function):
        @staticmethod
        def forward(ctx, x):
            return x * TABLE + SCALED

        @staticmethod
        def backward(ctx, g):
            return g * (TABLE + 1)

    x = leaf(4)
    found = gradients(compiled(lambda x: Closes.apply(x).sum() * SCALED.sum())(x), x, SCALED)
    plain = compiled(lambda x: Closes.apply(x).sum())(torch.ones(4))
    return found, plain


def no_gradient_for_some(compiled):
    class Partly(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return None, g * 2, None, None

    x, y = leaf(4), leaf(4, seed=1)
    return gradients(compiled(lambda x, y: Partly.apply(x, y).sum())(x, y), x, y)


def same_tensor_twice(compiled):
    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y * 2, g * x * 3

    x = leaf(4)
    return gradients(compiled(lambda x: Product.apply(x, x).sum())(x), x)


class Returned(Function):
    @staticmethod
    def forward(ctx, x):
        return x, x * 2

    @staticmethod
    def backward(ctx, g, h):
        return g * 10 + h


def argument_is_returned(compiled):
    def program(x):
        y, z = Returned.apply(x)
        return (y * z).sum(), y is x

    f, x = compiled(program), leaf(4)
    loss, same = f(x)
    return gradients(loss, x), same, f(torch.ones(4))[1]


def functions_inside_functions(compiled):
    class Outer(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Scaled.apply(x, 2)

        @staticmethod
        def backward(ctx, g):
            return Scaled.apply(g, 1) * ctx.saved_tensors[0]

    x = leaf(4)
    return gradients(compiled(lambda x: Outer.apply(x.exp()).sum())(x), x)


@may_break
def vjp_is_another_name(compiled):
    class ByVjp(Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def vjp(ctx, g):
            return g * 9

    x = leaf(4)
    return gradients(compiled(lambda x: ByVjp.apply(x).sum())(x), x)


def layout_of_gradients_is_asked(compiled):
    class Asks(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3 if g.is_contiguous() else g * 3 + 0

    x = leaf(3, 4)
    y = compiled(lambda x: Asks.apply(x))(x)
    return gradients(y.sum(), x), gradients(compiled(lambda x: Asks.apply(x).t())(x).sum(), x)


def backward_writes_to_its_gradient(compiled):
    class Writes(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            g = g.clone()
            return g.mul_(4)

    x = leaf(4)
    return gradients(compiled(lambda x: Writes.apply(x).pow(2).sum())(x), x)


def context_is_emptied_in_backward(compiled):
    class Empties(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = x.exp()
            return ctx.kept * 2

        @staticmethod
        def backward(ctx, g):
            kept, ctx.kept = ctx.kept, None
            return g * kept

    x = leaf(4)
    return gradients(compiled(lambda x: Empties.apply(x).sum())(x), x)


def run_twice(compiled):
    x = leaf(4)
    loss = compiled(lambda x: Twice.apply(x).sum())(x)
    loss.backward(retain_graph=True)
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        return x.grad, str(error)[:40]


def differentiated_twice_with_another_layout(compiled):
    x, w = leaf(3, 4), leaf(4, 3, seed=1)
    (g,) = torch.autograd.grad(compiled(lambda x, w: (Twice.apply(x).t() * w).sum())(x, w), x, create_graph=True)
    return g.detach(), torch.autograd.grad(g.pow(2).sum(), (x, w))


def grad_mode_in_backward(compiled):
    class Asks(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x * (3 if torch.is_grad_enabled() else 2)

    x = leaf(4)
    f = compiled(lambda x: Asks.apply(x).sum())
    (first,) = torch.autograd.grad(f(x), x)
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    return first, g.detach(), h


def backward_applies_another_function(compiled):
    class Cosine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.cos()

        @staticmethod
        def backward(ctx, g):
            assert ctx.needs_input_grad[0]
            (x,) = ctx.saved_tensors
            return g * x.sin() * 7

    class Exponential(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * Cosine.apply(y)

    x = leaf(4)
    y = compiled(lambda x: Exponential.apply(x * 2).sum())(x)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    return first.detach(), gradients(first.sum(), x)


@may_break
def backward_applies_its_own_function(compiled):
    class Doubled(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return Doubled.apply(g) * 5

    def twice(x, direction):
        (first,) = torch.autograd.grad(Doubled.apply(x), x, direction, create_graph=True)
        return torch.autograd.grad(first.sum(), direction)

    return compiled(twice)(leaf(4), leaf(4, seed=1))


@may_break
def once_differentiable_twice(compiled):
    x = leaf(4)
    f = compiled(lambda x: Once.apply(x).sum())
    first = gradients(f(x), x)
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    try:
        torch.autograd.grad(g.sum(), x)
    except RuntimeError as error:
        return first, g.detach(), str(error)


def globals_that_change(compiled):
    global SCALE

    class Global(Function):
        @staticmethod
        def forward(ctx, x):
            return x * SCALE

        @staticmethod
        def backward(ctx, g):
            return g * SCALE * 10

    x, found = leaf(4), []
    f = compiled(lambda x: Global.apply(x).sum())
    for scale in (2.0, 3.0, 2.0):
        SCALE = scale
        found.append((f(x).detach(), gradients(f(x), x)))
    return found


def methods_that_change(compiled):
    class Changing(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = leaf(4)
    f = compiled(lambda x: Changing.apply(x).sum())
    first = gradients(f(x), x)
    Changing.backward = staticmethod(lambda ctx, g: g * 7)
    return first, gradients(f(x), x)


def forward_with_effects(compiled):
    class Logs(Function):
        @staticmethod
        def forward(ctx, x, log):
            log.append(len(log))
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3, None

    x, log = leaf(4), []
    f = compiled(lambda x: Logs.apply(x, log).sum())
    return [gradients(f(x), x) for _ in range(2)], log


@may_break
def backward_with_effects(compiled):
    log = []

    class Logs(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            log.append(1)
            return g * 3

    x = leaf(4)
    f = compiled(lambda x: Logs.apply(x.exp()).sum() * 2)
    return [(gradients(f(x), x), list(log)) for _ in range(2)]


@may_break
def backward_changes_its_context_for_the_next(compiled):
    class Counts(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.counts = [1]
            return x * 2

        @staticmethod
        def backward(ctx, g):
            ctx.counts.append(2)
            return g * len(ctx.counts)

    x = leaf(4)
    loss = compiled(lambda x: Counts.apply(x).sum())(x)
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad


@may_break
def backward_writes_to_a_tensor_outside(compiled):
    seen = torch.zeros(4)

    class Remembers(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.copy_(g)
            return g * 3

    x = leaf(4)
    before = compiled(lambda x: Remembers.apply(x.exp()).sum())(x)
    found = [seen.clone()]
    return gradients(before, x), found, seen


@may_break
def backward_raises(compiled):
    class Raises(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("no gradient today")

    x = leaf(4)
    y = compiled(lambda x: Raises.apply(x).sum())(x)
    return gradients(y, x)


@may_break
def wrong_number_of_gradients(compiled):
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g

    x, y = leaf(4), leaf(4)
    y = compiled(lambda x, y: Wrong.apply(x, y).sum())(x, y)
    return gradients(y, x)


@may_break
def errors_name_the_function(compiled):
    class Selects(Function):
        @staticmethod
        def forward(ctx, x):
            return x.select(0, 0)

        @staticmethod
        def backward(ctx, g):
            return g

    def program(x):
        y = Selects.apply(x.exp())
        try:
            y += 1
        except RuntimeError as error:
            return str(error)

    return compiled(program)(leaf(4))


@may_break
def backward_in_compiled_code_unpacks_once(compiled):
    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y * 2, g * x

    def step(loss):
        loss.backward()
        return loss * 2

    x, y, step = leaf(4), leaf(4, seed=1), compiled(step)
    for _ in range(2):
        step(checkpoint(lambda x, y: Product.apply(x.exp(), y), x, y, use_reentrant=False).sum())
    return x.grad, y.grad


@may_break
def tensors_in_a_list(compiled):
    class Lists(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, [x * 3]

        @staticmethod
        def backward(ctx, g, nothing):
            return g * 3

    x = leaf(4)
    y, (z,) = compiled(lambda x: Lists.apply(x))(x)
    return gradients(y.sum(), x), z


@may_break
def forward_leaks_a_tensor(compiled):
    kept = {}

    class Leaks(Function):
        @staticmethod
        def forward(ctx, x):
            kept["it"] = x * 5
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    x = leaf(4)
    loss = compiled(lambda x: Leaks.apply(x.exp()).sum())(x)
    return gradients(loss, x), kept


@may_break
def recomputes_in_backward(compiled):
    class Recomputes(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin().exp()

        @staticmethod
        def backward(ctx, g):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                y = x.sin().exp()
            return torch.autograd.grad(y, x, g)[0]

    x = leaf(4)
    return gradients(compiled(lambda x: Recomputes.apply(x * 2).sum())(x), x)


def under_autocast(compiled):
    class MatMul(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w.t(), x.t() @ g

    x, w = leaf(3, 4), leaf(4, 4, seed=1)
    f = compiled(lambda x, w: MatMul.apply(x, w))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x, w)
    found = gradients(y.float().pow(2).sum(), x, w)
    return y.detach(), [gradient.bfloat16() for gradient in found]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True)


def test_a_graph_with_functions_inside_prints_and_runs_again() -> None:
    def program(x):
        y = x.sin()
        return Scaled.apply(y, 3).sum() + vmap(grad(torch.sum))(x).sum()

    x = leaf(3, 4)
    captured = capture(program, {"x": x})
    assert captured.graph is not None
    text = print_graph(captured.graph)
    assert "def forward_apply_scaled_backward_1(" in text and "def forward_vmap_function_grad_function(" in text
    functions = {node.name: node.target for node in captured.graph.graph.nodes}
    (result,) = load_graph(text, functions)(x)
    assert torch.equal(result, program(x))
    assert torch.equal(*(torch.autograd.grad(loss, x)[0] for loss in (result, program(x))))
