"""torch.func, forward-mode AD and torch.autograd.functional, inside compiled code and around it, beside eager."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from tests.scenarios import BACKENDS, Scenario, check, gradients, leaf, may_break, scenarios
from torch import nn
from torch._vmap_internals import _vmap
from torch.autograd import functional
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

import stator
from stator.base import counters

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def to_number(x):
    return (x @ W).sin().sum()


def to_vector(x):
    return (x @ W).tanh()


def plain(*shape: int) -> torch.Tensor:
    return leaf(*shape).detach()


def of(compiled, program):
    """A program on a tensor that does not require grad, on one that does, with its gradient, and under no_grad."""
    f, x = compiled(program), leaf(3, 4)
    result = f(x)
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    found = gradients(sum((t * t).sum() for t in tensors), x) if tensors else None
    with torch.no_grad():
        inside = f(x)
    return f(x.detach()), result, found, inside


# ---- inside ----


def gradient(compiled):
    return of(compiled, lambda x: grad(to_number)(x))


def gradient_value_and_more(compiled):
    def f(x, y, *, scale):
        return (x * y).exp().sum() * scale, {"a": x.cos(), "b": [y]}

    return of(compiled, lambda x: grad_and_value(f, argnums=(0, 1), has_aux=True)(x, x * 2, scale=3.0))


def gradient_of_a_tree(compiled):
    def f(parts, n):
        return (parts["a"] * parts["b"][0]).sum() * n

    return of(compiled, lambda x: grad(f)({"a": x, "b": [x.sin()]}, 3))


def mapped(compiled):
    return of(compiled, lambda x: vmap(to_number)(x))


def numbers_beside_mapped_tensors(compiled):
    return of(compiled, lambda x: (vmap(lambda a: 0 + a.sum())(x), vmap(lambda a: True + a.long())(x[:, 0])))


def what_requires_grad_inside(compiled):
    def told(a, b):
        return (a * b).sum() * (2 if a.requires_grad else 3) * (5 if b.requires_grad else 7) * (1 if a.is_leaf else 11)

    def program(x, y):
        mapped = vmap(lambda a: a * (2 if a.requires_grad else 3))(x)
        pushed = jvp(lambda a: told(a, y), (x,), (y,))
        inner = grad(lambda a: grad(lambda b: told(a, b))(y).sum())(x)
        return grad(told)(x, y), grad(told, argnums=(0, 1))(x, y), jacrev(told, argnums=1)(x, y), mapped, pushed, inner

    f = compiled(program)
    return f(plain(3), plain(3)), f(leaf(3), plain(3)), f(plain(3), leaf(3))


def computed_tensors_that_are_not_mapped(compiled):
    def program(x):
        return grad(lambda a: vmap(lambda b, c: b * c.sum(), in_dims=(0, None))(a, a * 2).sum())(x)

    return of(compiled, program)


@may_break
def what_requires_grad_of_results_inside(compiled):
    def program(x):
        return grad(lambda a: (a * 2).sum() * (2 if (SCALED * 2).requires_grad else 3))(x)

    return compiled(program)(plain(4))


SCALED = torch.ones(4, requires_grad=True)


def mapped_over_other_dimensions(compiled):
    def program(x):
        return vmap(lambda a, b, n: {"r": a * b.sum() * n, "q": [a]}, in_dims=(1, None, None), out_dims=1)(x, x, 2)

    return of(compiled, program)


def mapped_sees_one_example(compiled):
    def one(a):
        return a * 2 if a.shape == (4,) and a.dim() == 1 else a

    return of(compiled, lambda x: vmap(one)(x))


def mapped_in_chunks(compiled):
    return of(compiled, lambda x: vmap(to_vector, chunk_size=2)(x))


def per_sample_gradients(compiled):
    return of(compiled, lambda x: vmap(grad(to_number))(x))


def gradient_of_mapped(compiled):
    return of(compiled, lambda x: grad(lambda a: vmap(to_number)(a).sum())(x))


def mapped_twice(compiled):
    inner = vmap(lambda a, b: a * b, in_dims=(0, None))
    return of(compiled, lambda x: vmap(inner, in_dims=(None, 0))(x[0], x[:, 0]))


def forward_mode(compiled):
    return of(compiled, lambda x: jvp(to_vector, (x,), (x * 2,)))


def pulled_back(compiled):
    def program(x):
        result, pull = vjp(lambda a: (a.sin(), a.cos()), x)
        return result, pull((x * 3, x)), pull((x, x))

    return of(compiled, program)


def pulled_back_with_more(compiled):
    def program(x):
        result, pull, more = vjp(lambda a: (a.sin(), {"it": a.exp()}), x, has_aux=True)
        return result, pull(x), more

    return of(compiled, program)


def jacobians(compiled):
    return of(compiled, lambda x: (jacrev(to_vector)(x[0]), jacfwd(to_vector)(x[0]), hessian(to_number)(x[0])))


@may_break
def linear_map(compiled):
    def program(x):
        result, push = linearize(torch.sin, x)
        return result, push(x * 2)

    f = compiled(program)
    return f(plain(3, 4))


def functional_modules(compiled):
    net, x = model(), plain(3, 4)

    def loss(parameters, example):
        return functional_call(net, parameters, (example,)).pow(2).sum()

    def program(x):
        parameters = {name: p.detach() for name, p in net.named_parameters()}
        return vmap(grad(loss), in_dims=(None, 0))(parameters, x)

    return compiled(program)(x), [p.grad for p in net.parameters()]


def functional_call_with_gradients(compiled):
    net, x, w = model(), plain(3, 4), leaf(8, 4, seed=2)
    f = compiled(lambda x, w: functional_call(net, {"0.weight": w * 2}, (x,)).sum())
    return gradients(f(x, w), w, *net.parameters())


def ensemble(compiled):
    nets = [model() for _ in range(3)]
    for scale, net in enumerate(nets):
        with torch.no_grad():
            net[0].weight.mul_(scale + 1)
    parameters, buffers = stack_module_state(nets)
    base = model()

    def one(p, b, x):
        return functional_call(base, (p, b), (x,))

    f = compiled(lambda p, b, x: vmap(one, in_dims=(0, 0, None))(p, b, x).sum())
    return gradients(f(parameters, buffers, plain(2, 4)), *parameters.values())


def transforms_made_before(compiled):
    made = grad(to_number), vmap(grad(to_number)), jacrev(to_vector), hessian(to_number), grad_and_value(to_number)
    return of(compiled, lambda x: [f(x) for f in made[:2]] + [f(x[0]) for f in made[2:]])


def transform_is_returned(compiled):
    return compiled(lambda x: grad(to_number))(plain(3, 4))(plain(3, 4))


def effects_happen_once(compiled):
    calls = []

    def f(a):
        calls.append(1)
        return a.sum()

    run = compiled(lambda x: grad(f)(x) + len(calls))
    return run(plain(3)), run(plain(3)), calls


@may_break
def numbers_at_random(compiled):
    def program(x):
        result, pull = vjp(lambda a: torch.nn.functional.dropout(a, 0.5), x)
        return torch.equal((result != 0), (pull(torch.ones(50))[0] != 0))

    return compiled(program)(torch.ones(50))


@may_break
def mapped_random_numbers_are_refused(compiled):
    return compiled(lambda x: vmap(lambda a: a + torch.rand(4))(x))(plain(3, 4))


@may_break
def mapped_branch_on_data(compiled):
    return compiled(lambda x: vmap(lambda a: a if a.sum() > 0 else -a)(x))(plain(3, 4))


@may_break
def wrong_dimensions(compiled):
    return compiled(lambda x: vmap(to_vector, in_dims=5)(x))(plain(3, 4))


@may_break
def gradient_of_no_number(compiled):
    return compiled(lambda x: grad(to_vector)(x))(plain(3, 4))


@may_break
def tensor_that_leaks(compiled):
    kept = []

    def f(a):
        kept.append(a.shape)
        return (a * a).sum()

    def leaking(a):
        kept.append((a * 2).sum())
        return (a * a).sum()

    first = compiled(lambda x: grad(f)(x))(plain(3))
    second = compiled(lambda x: torch.func.vmap(leaking)(x))(plain(3, 4))
    return first, second, len(kept)


# ---- outside ----


def compiled_inside_transforms(compiled):
    f, g, x = compiled(to_vector), compiled(to_number), plain(3, 4)
    for _ in range(2):  # before and after it was compiled for plain tensors
        found = (
            grad(g)(x),
            vmap(f)(x),
            jvp(f, (x,), (x,)),
            vjp(f, x)[1](x),
            jacrev(f)(x[0]),
            jacfwd(f)(x[0]),
            hessian(g)(x[0]),
            vmap(grad(g))(x),
        )
        plainly = f(x), g(x), gradients(g(y := leaf(3, 4)), y)
    return found, plainly


def compiled_model_inside_transforms(compiled):
    net, x = model(), plain(3, 4)
    f = compiled(net)
    before = f(x)
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters, example):
        return functional_call(net, parameters, (example,)).pow(2).sum()

    return before.detach(), vmap(f)(x).detach(), vmap(grad(compiled(loss)), in_dims=(None, 0))(parameters, x)


def dual_tensors(compiled):
    f, x = compiled(to_vector), plain(3, 4)
    found = []
    for _ in range(2):
        with forward_ad.dual_level():
            result = forward_ad.unpack_dual(f(forward_ad.make_dual(x, x * 2)))
            found.append((result.primal, result.tangent))
        found.append(f(x))
    return found


def functional_api(compiled):
    f, g, x = compiled(to_vector), compiled(to_number), plain(4)
    return (
        functional.jacobian(f, x),
        functional.jacobian(f, x, vectorize=True),
        functional.jacobian(f, x, vectorize=True, strategy="forward-mode"),
        functional.hessian(g, x),
        functional.hessian(g, x, vectorize=True),
        functional.jvp(f, x, x),
        functional.vjp(f, x, x),
        functional.hvp(g, x, x),
        functional.vhp(g, x, x),
    )


def gradient_checks(compiled):
    def f(x, y):
        return (x * y).sin() * x, (x / (y * y + 1)).sum()

    x, y = leaf(3, dtype=torch.float64), leaf(3, seed=1, dtype=torch.float64)
    run = compiled(f)
    return (
        torch.autograd.gradcheck(run, (x, y), check_batched_grad=True),
        torch.autograd.gradcheck(run, (x, y), check_forward_ad=True),
        torch.autograd.gradgradcheck(run, (x, y)),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True)


MODEL = model()


def _sample_loss(parameters, x):
    return functional_call(MODEL, parameters, (x[None],)).square().sum()


TRANSFORMED = {
    "grad": lambda: (grad(lambda x: to_number(x)), (torch.randn(4),)),
    "grad_and_value": lambda: (grad_and_value(lambda x: to_number(x)), (torch.randn(4),)),
    "jacrev": lambda: (jacrev(lambda x: to_vector(x)), (torch.randn(4),)),
    "jacfwd": lambda: (jacfwd(lambda x: to_vector(x)), (torch.randn(4),)),
    "hessian": lambda: (hessian(lambda x: to_number(x)), (torch.randn(4),)),
    "vmap": lambda: (vmap(lambda x: to_vector(x), in_dims=1), (torch.randn(4, 3),)),
    "vmap of a module": lambda: (vmap(MODEL), (torch.randn(3, 4),)),
    "gradients of each sample": lambda: (
        vmap(grad(_sample_loss), (None, 0)),
        ({name: value.detach() for name, value in MODEL.named_parameters()}, torch.randn(3, 4)),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_what_a_transform_gave_is_compiled_itself(name: str) -> None:
    torch.manual_seed(0)
    transformed, given = TRANSFORMED[name]()
    compiled = stator.compile(transformed, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(*given), transformed(*given))
    assert compiled.__wrapped__ is transformed


def _asks_for_gradients(x):
    return (x.requires_grad_() * 2).sum()


REFUSED = {
    "requires_grad_": lambda x: grad(_asks_for_gradients)(x),
    "requires_grad_ in the arguments of vmap": lambda x: vmap(lambda row: row.clone().requires_grad_(False) * 2)(x),
    "a position that is no integer": lambda x: jacrev(to_vector, argnums=0.0)(x),
    "positions in a list": lambda x: grad(to_number, argnums=[0])(x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused_in_its_words(name: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        REFUSED[name](torch.ones(4))
    with pytest.raises(RuntimeError) as actual:
        stator.compile(REFUSED[name])(torch.ones(4))
    assert str(actual.value) == str(expected.value)


def test_tangents_of_what_is_written_to_are_zeros_of_its_layout() -> None:
    """ATen's operator would look at the storage of a buffer that is a part of a larger one in a compiled graph."""

    def writes(x, y):
        x[:2] = y
        return (x**2).sum()

    x, y = torch.randn(3), torch.randn(2)
    expected = jacfwd(writes, argnums=1)(x.clone(), y)
    counters.clear()
    compiled = stator.compile(lambda x, y: jacfwd(writes, argnums=1)(x, y), fullgraph=True)
    torch.testing.assert_close(compiled(x.clone(), y), expected)
    assert "inductor_fallback:aten._new_zeros_with_same_feature_meta.default" not in counters.counts


def test_an_old_vmap_runs_compiled_code_without_a_warning() -> None:
    x = leaf(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(_vmap(stator.compile(lambda x: x.sin() + 1))(x), x.sin() + 1)
