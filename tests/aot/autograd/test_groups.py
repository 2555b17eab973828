"""Results that do not depend on all inputs, nor inputs that nothing depends on: autograd goes where eager's goes.

So hooks are called where eager calls them, and a gradient that is asked for has been through them where eager's has.
float64, 1e-12.
"""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.differential import Tolerance, assert_same
from torch import nn

import stator
from stator.aot.autograd.autograd_step import _MOST_PARTIAL as MOST_SETS
from stator.aot.autograd.autograd_step import CompiledStep
from stator.aot.trace.input_groups import BackwardProgress
from stator.base import counters

Run = Callable[..., Any]
CLOSE = Tolerance(1e-12, 1e-12)


def leaves() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def noted(log: list[Any], name: str, gradient: torch.Tensor | None) -> torch.Tensor | None:
    log.append((name, gradient if gradient is None else gradient.clone()))
    return None if gradient is None else gradient * 3


def compare(program: Run, look: Run, backend: str = "aot_eager") -> None:
    def found(run: Run) -> Any:
        given = leaves()
        log: list[Any] = []
        gradients = look(given, run(*given), log)
        return [*gradients, *[one.grad for one in given], *log]

    assert_same(found(stator.compile(program, backend=backend, fullgraph=True)), found(program), CLOSE)


def beside(x: Any, w: Any, v: Any) -> Any:
    """v leads nowhere, the first result does not depend on w."""
    y = (x * 2).sin()
    return y, y * w


def chains(x: Any, w: Any, v: Any) -> Any:
    """Each leads to one input more than the one before, or to two of three."""
    first = (x * x).exp()
    second = (first * w).sin()
    return first, second, second * v, (w * v).tanh(), (x * v).tanh()


def views(x: Any, w: Any, v: Any) -> Any:
    y = (x * 2).sin()
    return y, y[0], y.t(), y[0] * w[0]


def ask(what: str, given: list[Any], results: Any, log: list[Any], hooks: bool = True) -> Any:
    """The gradient of all results by the named tensors: inputs x, w and v, results by their number."""
    for at, result in enumerate(results if hooks else ()):
        result.register_hook(partial(noted, log, str(at)))
    among = {"x": given[0], "w": given[1], "v": given[2], **{str(at): one for at, one in enumerate(results)}}
    total = sum((one * (at + 1)).sum() for at, one in enumerate(results))
    found = torch.autograd.grad(total, [among[one] for one in what], allow_unused=True)
    log.sort(key=lambda entry: entry[0])  # a view and a result that was not computed from it have no order
    return found


ASKED = ["x", "w", "v", "xw", "0", "0x", "0w", "0v", "1w", "01xwv", "1v"]


@pytest.mark.parametrize("program", [beside, chains, views], ids=lambda program: program.__name__)
@pytest.mark.parametrize("what", ASKED)
def test_what_is_asked_for(program: Run, what: str) -> None:
    compare(program, partial(ask, what))
    compare(program, partial(ask, what, hooks=False))


@pytest.mark.parametrize("program", [beside, chains, views], ids=lambda program: program.__name__)
def test_with_kernels(program: Run) -> None:
    compare(program, partial(ask, "0w"), "inductor")
    compare(program, partial(ask, "xw"), "inductor")


@pytest.mark.parametrize("program", [beside, chains], ids=lambda program: program.__name__)
def test_only_the_last_result(program: Run) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        for at, result in enumerate(results):
            result.register_hook(partial(noted, log, str(at)))
        return torch.autograd.grad(results[-1].sum(), [results[0], given[1]], allow_unused=True)

    compare(program, look)


def test_a_tensor_computed_from_a_result_outside_of_the_graph() -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        y, z = results
        outside = y.exp()
        outside.register_hook(partial(noted, log, "outside"))
        return torch.autograd.grad((z.sum() + outside.square().sum()), [outside, given[1]])

    compare(beside, look)


def test_a_view_and_an_input_that_was_written_to() -> None:
    def program(x: Any, w: Any, v: Any) -> Any:
        return x[0], (w * v).sum()

    def writes(x: Any, w: Any, v: Any) -> Any:
        x.mul_(2)
        return x, (w * v).sum()

    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        results[0].register_hook(partial(noted, log, "first"))
        return torch.autograd.grad(results[0].exp().sum() + results[1], [results[0], given[1]])

    compare(program, look)
    compare(lambda x, w, v: program(x * 1, w, v), look)
    compare(lambda x, w, v: writes(x * 1, w, v), look)
    for run in (program, writes):
        compiled = stator.compile(run, backend="aot_eager", fullgraph=True)

        def seen(call: Run, run: Run = run) -> Any:
            given = leaves()
            log: list[Any] = []
            gradients = look(given, call(given[0] * 1, *given[1:]), log)
            return [*gradients, *log]

        assert_same(seen(compiled), seen(run), CLOSE)


def test_through_the_results_of_another_graph() -> None:
    first, second = (lambda x, w: (x.sin(), w.cos())), (lambda y, z: (y * 2, y * z))

    def found(one: Run, other: Run) -> Any:
        x, w, _ = leaves()
        log: list[Any] = []
        y, z = one(x, w)
        last, product = other(y, z)
        for name, tensor in (("y", y), ("z", z), ("last", last)):
            tensor.register_hook(partial(noted, log, name))
        return [*torch.autograd.grad(last.exp().sum() + product.sum(), [last, y, w]), *log]

    compiled = [stator.compile(one, backend="aot_eager", fullgraph=True) for one in (first, second)]
    assert_same(found(*compiled), found(first, second), CLOSE)


def test_hooks_of_parameters_that_a_backward_does_not_come_to() -> None:
    def found(compile: Run) -> Any:
        torch.manual_seed(0)
        layers = nn.ModuleList([nn.Linear(3, 3, dtype=torch.float64) for _ in range(3)])
        log: list[Any] = []
        for name, parameter in layers.named_parameters():
            parameter.register_hook(partial(noted, log, name))

        def forward(x: Any) -> Any:
            unused = layers[2].weight * 2
            hidden = layers[0](x).tanh()
            return hidden, layers[1](hidden).tanh() + unused.detach().sum()

        hidden, last = compile(forward)(leaves()[0])
        hidden.sum().backward(retain_graph=True)
        last.sum().backward()
        return [*[parameter.grad for parameter in layers.parameters()], *sorted(log, key=lambda entry: entry[0])]

    assert_same(
        found(partial(stator.compile, backend="aot_eager", fullgraph=True)), found(lambda function: function), CLOSE
    )


@pytest.mark.parametrize("program", [beside, chains], ids=lambda program: program.__name__)
def test_second_derivatives(program: Run) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        for at, result in enumerate(results):
            result.register_hook(partial(noted, log, str(at)))
        total = sum((one * 0.5).sin().square().sum() for one in results)
        first = torch.autograd.grad(total, given, create_graph=True, allow_unused=True)
        seen = [None if one is None else one.detach() for one in first]
        second = sum(one.sin().square().sum() for one in first if one is not None)
        found = torch.autograd.grad(second, [given[1], results[0]], allow_unused=True)
        log.sort(key=lambda entry: (entry[0], float(entry[1].sum())))
        return *seen, *found

    compare(program, look)


def test_one_backward_of_all_results_is_compiled_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that several groups of inputs need are computed once."""
    calls: list[Any] = []
    plain = CompiledStep.gradients
    monkeypatch.setattr(
        CompiledStep, "gradients", lambda *given, **more: calls.append(given[2]) or plain(*given, **more)
    )
    given = leaves()
    compiled = stator.compile(lambda x, w, v: ((x * w).sin(), (x * w).sin() * v), backend="aot_eager", fullgraph=True)
    first, last = compiled(*given)
    (first.sum() + last.sum()).backward()
    last = compiled(*given)[1]
    last.sum().backward()
    assert [request.by for request in calls] == [None, None]


def with_caches(x: Any, w: Any, v: Any) -> Any:
    """A loss of all inputs, and two results of one each."""
    first, second = (w * 2).exp(), (v * 2).sin()
    return (x * first * second).cos(), first, second


def partly_shared(x: Any, w: Any, v: Any) -> Any:
    return (x * w).sin(), (w * v).exp()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Notes of which groups gradients are computed, in one go each."""
    found: list[Any] = []
    plain = CompiledStep.gradients
    monkeypatch.setattr(
        CompiledStep, "gradients", lambda *given, **more: found.append(given[2].by) or plain(*given, **more)
    )
    return found


def backward_graphs(program: Run, look: Run) -> int:
    before = counters.counts["compiled:backward"]
    compare(program, look)
    return counters.counts["compiled:backward"] - before


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("hooked", [True, False])
def test_one_backward_graph(computed: list[Any], places: tuple[int, ...], hooked: bool) -> None:
    """Of groups that lead to sets of results of which neither contains the other."""

    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        for at, result in enumerate(results if hooked else ()):
            result.register_hook(partial(noted, log, str(at)))
        sum(results[at].sum() for at in places).backward()
        log.sort(key=lambda entry: entry[0])
        return []

    assert backward_graphs(with_caches, look) >= 1  # hooks between results need more
    assert computed == [None]
    if not hooked:
        assert backward_graphs(with_caches, look) == 1


def test_only_the_groups_that_are_asked_for(computed: list[Any]) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        return torch.autograd.grad(sum(one.sum() for one in results), given[1])

    assert backward_graphs(partly_shared, look) == 1
    assert len(computed) == 1
    assert len(computed[0]) == 1


def in_a_thread(function: Run) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_tangent_that_comes_late(computed: list[Any]) -> None:
    """Autograd counts nodes in each thread: one of another thread may run behind those that the call made."""

    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        first, second = results
        late = in_a_thread(lambda: second.sin())
        assert late.grad_fn._sequence_nr() < first.grad_fn._sequence_nr()
        (first.sum() + late.sum()).backward()
        return []

    compare(partly_shared, look)
    assert len(computed) == 2
    assert None not in computed


def test_tangents_that_come_late_in_many_orders(computed: list[Any]) -> None:
    """A step compiles backwards for a few sets of its inputs, and all gradients for other sets."""

    def chain(*given: Any) -> Any:
        return [(one * 2).exp() for one in given]

    many = [one.detach().requires_grad_() for one in leaves() * 3]
    compiled = stator.compile(chain, backend="aot_eager", fullgraph=True)
    for late in range(len(many)):
        results = compiled(*many)
        after = in_a_thread(partial(torch.sin, results[late]))
        (sum(one.sum() for one in results) + after.sum()).backward()
    for one in many:
        grown = (one.detach() * 2).exp()
        assert_same(one.grad, 2 * grown * (len(many) + grown.cos()), CLOSE)
    assert len({by for by in computed if by is not None}) <= MOST_SETS
    assert None in computed


def test_a_backward_inside_of_another() -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        first, second = results

        def inner(gradient: torch.Tensor) -> None:
            with torch.enable_grad():
                total = second.sum()
            log.append(("inner", torch.autograd.grad(total, given[2], retain_graph=True)[0]))

        for one in given[:2]:
            one.register_hook(inner)
        (first.sum() + (second * 3).sum()).backward(retain_graph=True)
        first.sum().backward()
        return []

    compare(partly_shared, look)


def test_after_a_hook_that_raised() -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        def fails(gradient: torch.Tensor) -> None:
            raise ValueError("no")

        for one in given:
            handle = one.register_hook(fails)
            with pytest.raises(ValueError, match="no"):
                torch.stack([result.sum() for result in results]).sum().backward(retain_graph=True)
            handle.remove()
        for one in given:
            one.grad = None
        (results[0] * 2).sum().backward(retain_graph=True)
        results[1].sum().backward()
        return []

    compare(partly_shared, look)
    compare(with_caches, look)


def test_tangents_are_not_kept() -> None:
    """When only gradients by results are asked for, nobody takes them; nor are gradients when a backward has raised."""
    results = stator.compile(with_caches, backend="aot_eager", fullgraph=True)(*leaves())
    gone: list[Any] = []
    results[1].register_hook(lambda gradient: gone.append(weakref.ref(gradient)))
    found = torch.autograd.grad((results[1] * 3).sum() + results[0].sum(), results[1])
    del found
    assert len(gone) == 1
    assert gone[0]() is None

    given = leaves()
    results = stator.compile(partly_shared, backend="aot_eager", fullgraph=True)(*given)
    waiting: list[int] = []

    def fails(gradient: torch.Tensor) -> None:
        waiting.extend(len(one.found) for one in gc.get_objects() if type(one) is BackwardProgress)
        raise ValueError("no")

    for one in given:
        one.register_hook(fails)
    with pytest.raises(ValueError, match="no"):
        (results[0].sum() + results[1].sum()).backward()
    assert waiting == [2]  # of three groups
    assert not any(type(one) is BackwardProgress for one in gc.get_objects())


def test_nothing_is_kept_when_a_backward_has_run() -> None:
    """Nor by a cycle, when there was none."""
    gc.collect()
    gc.disable()
    try:
        for backward in (True, False):
            given = leaves()
            results = stator.compile(chains, backend="aot_eager", fullgraph=True)(*given)
            gone = [weakref.ref(results[0].grad_fn), *[weakref.ref(one) for one in results]]
            if backward:
                sum(one.sum() for one in results).backward()
            del results
            assert [one() for one in gone] == [None] * len(gone)
    finally:
        gc.enable()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (3, 4, 0), (1, 0, 3)])
def test_one_backward_after_the_other(order: tuple[int, ...]) -> None:
    """Without retain_graph a backward past values that eager has freed raises, after some of the gradients."""

    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        seen = []
        for at in (*order, order[0]):
            try:
                results[at].sum().backward()
            except RuntimeError as error:
                log.append((str(error).partition("(")[0], None))
                for one in given:
                    one.grad = None
            seen += [None if one.grad is None else one.grad.clone() for one in given]
        return seen

    compare(chains, look)


class _OneOfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, gradient


def test_no_gradient_of_what_is_no_leaf_is_none() -> None:
    """Not zeros."""

    def found(compile: Run) -> Any:
        x, w, _ = leaves()
        h = x * 2
        h.retain_grad()
        compile(lambda h, w: _OneOfTwo.apply(h, w).sin())(h, w).sum().backward()
        return [h.grad, x.grad, w.grad]

    assert_same(
        found(partial(stator.compile, backend="aot_eager", fullgraph=True)), found(lambda function: function), CLOSE
    )


def test_what_saved_nothing_is_not_freed() -> None:
    def program(x: Any, w: Any, v: Any) -> Any:
        return x + w, (x * v).sin()

    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        (results[0] + results[1]).sum().backward()
        results[0].sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            results[1].sum().backward()
        return []

    compare(program, look)


def test_views_of_what_is_no_result_where_results_depend_on_different_inputs() -> None:
    """The node of the base is older than the nodes of its views."""

    def program(x: Any, w: Any) -> Any:
        base = x * 2
        first, second = base[0], base[1]
        return first, first.exp() * w[0], w.cos(), second

    found = []
    for run in (program, stator.compile(program, backend="aot_eager", fullgraph=True)):
        x, w = (torch.arange(6.0, dtype=torch.float64).view(2, 3).div(at).requires_grad_() for at in (5, 7))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it would run eagerly
            results = run(x, w)
        results[0].register_hook(lambda gradient: gradient * 3)
        found.append(torch.autograd.grad(sum(one.sin().sum() for one in results), [x, w]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
