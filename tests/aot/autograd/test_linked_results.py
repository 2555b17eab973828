"""Gradients between results of one compiled call: torch.autograd.grad by a result, hooks, retained gradients.

Equal to eager in value, and in which gradients there are; float64 to 1e-10. What is compiled for it, and when.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stator
from stator import aot

BACKENDS = ("aot_eager", "inductor")
# gradients that eager expands from a number, compiled code may write out
assert_equal = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
by_backend = pytest.mark.parametrize("backend", BACKENDS)


def leaves() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((4, 3), (3, 3), (3, 5))
    )


def chain(x: Any, v: Any, w: Any) -> Any:
    hidden = (x @ v).tanh()
    logits = hidden @ w
    return F.cross_entropy(logits, torch.arange(4)), logits, hidden


def with_a_second_way(x: Any, v: Any, w: Any) -> Any:
    """The loss was computed from both results, one of them from the other."""
    hidden = (x @ v).exp()
    logits = hidden @ w
    return logits.sigmoid().sum() + (hidden * hidden).mean(), logits, hidden


def two_losses(x: Any, v: Any, w: Any) -> Any:
    first, second = (x @ v).sin(), (x @ w).cos()
    return first.exp().sum(), second.exp().sum(), first, second


def of_one_operator(x: Any, v: Any, w: Any) -> Any:
    """Results of one operator, of which only one leads to the loss."""
    deviation, mean = torch.std_mean((x @ v).exp(), 1)
    return deviation.sum() * 2, deviation, mean


def written(x: Any, v: Any, w: Any) -> Any:
    hidden = (x @ v).sin()
    hidden.mul_(2)
    hidden[0] = 1.0
    return hidden.exp().sum(), hidden


def reads_a_view(x: Any, v: Any, w: Any) -> Any:
    hidden = (x @ v).exp()
    return hidden[:, 0].cos().sum(), hidden


def through_a_view(x: Any, v: Any, w: Any) -> Any:
    hidden = (x @ v).exp()
    first = hidden[:, 0]
    return (first * first).sum() + hidden.sin().sum(), first, hidden, hidden.t()


def of_one_memory(x: Any, v: Any, w: Any) -> Any:
    """Views of a tensor that is not returned."""
    first, second, third = (x @ v).exp().unbind(1)
    return (first * second).sum(), third, second, first


def through_views_of_views(x: Any, v: Any, w: Any) -> Any:
    hidden = (x @ v).exp()
    rows = hidden[1:]
    return (rows[0].square() * 3).sum() + rows.sum(), rows[0], rows, hidden


def through_a_view_of_an_input(x: Any, v: Any, w: Any) -> Any:
    flat = x.view(-1)
    return flat.exp().sum() + (flat.view(4, 3) @ v).sin().sum(), flat, x[0]


PROGRAMS = [
    chain, with_a_second_way, two_losses, of_one_operator, written, reads_a_view,
    through_a_view, of_one_memory, through_views_of_views, through_a_view_of_an_input,
]  # fmt: skip
by_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


def noted(log: list[Any], factor: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:  # as eager tells hooks of other results of an operator that has several
        return None
    log.append((factor, gradient.clone()))
    return gradient * factor


def both(program: Callable[..., Any], backend: str, look: Callable[..., Any]) -> None:
    assert_equal(look(stator.compile(program, backend=backend, fullgraph=True)), look(program))


@by_backend
@by_program
def test_by_each_result(program: Callable[..., Any], backend: str) -> None:
    def look(run: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []
        for by_leaves in (False, True):
            for source in range(len(program(*leaves()))):
                given = leaves()
                results = run(*given)
                others = [result for at, result in enumerate(results) if at != source]
                asked = [*others, *given] if by_leaves else others
                found += torch.autograd.grad(results[source].sum(), asked, retain_graph=True, allow_unused=True)
                found += torch.autograd.grad(results[source].sum(), given, allow_unused=True)  # and as if nothing was
        return found

    both(program, backend, look)


@by_backend
def test_an_unused_result_is_the_error_it_is_in_eager(backend: str) -> None:
    first, _, _, second = stator.compile(two_losses, backend=backend)(*leaves())
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        torch.autograd.grad(first, second)


@by_backend
@by_program
def test_hooks_and_retained_gradients(program: Callable[..., Any], backend: str) -> None:
    def look(run: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []
        for retained in (False, True):
            for outside in (False, True):
                log: list[Any] = []
                given = leaves()
                loss, *others = run(*given)
                for at, other in enumerate(others):
                    other.register_hook(partial(noted, log, at + 2))
                    if retained:
                        other.retain_grad()
                root = loss + sum((other * other).sum() for other in others) if outside else loss
                root.backward()
                log.sort(key=lambda entry: entry[0])
                found += [
                    *[seen for _, seen in log],
                    *[other.grad for other in others if retained],
                    *[leaf.grad for leaf in given],
                ]
        return found

    both(program, backend, look)


@by_backend
def test_a_hook_is_not_called_for_a_loss_that_does_not_lead_there(backend: str) -> None:
    called: list[int] = []
    _, second, one, two = stator.compile(two_losses, backend=backend)(*leaves())
    one.register_hook(lambda g: called.append(1))
    two.register_hook(lambda g: called.append(2))
    second.backward()
    assert called == [2]


@by_backend
def test_inputs_of_a_backward(backend: str) -> None:
    def look(run: Callable[..., Any]) -> list[Any]:
        given = leaves()
        loss, logits, hidden = run(*given)
        loss.backward(inputs=[logits, given[1]])
        return [logits.grad, hidden.grad, *[leaf.grad for leaf in given]]

    both(chain, backend, look)


@by_backend
@by_program
def test_second_derivatives_by_results(program: Callable[..., Any], backend: str) -> None:
    """Gradients by results and leaves, differentiated by results and leaves, and those once more."""

    def look(run: Callable[..., Any]) -> list[Any]:
        given = leaves()
        results = run(*given)
        loss, *others = results
        everything = [*others, *given]
        found: list[Any] = []
        of_others = torch.autograd.grad(loss, others, create_graph=True, allow_unused=True)
        of_leaves = torch.autograd.grad(loss, given, create_graph=True, allow_unused=True)
        mixed = torch.autograd.grad(loss, (given[1], others[-1], given[0]), create_graph=True, allow_unused=True)
        for first in (of_others, of_leaves, mixed):
            found += [one if one is None else one.detach() for one in first]
            root = sum((one * one).sum() for one in first if one is not None and one.requires_grad)
            if isinstance(root, int):
                continue
            second = torch.autograd.grad(root, everything, create_graph=True, allow_unused=True)
            found += [one if one is None else one.detach() for one in second]
            root = sum((one * one).sum() for one in second if one is not None and one.requires_grad)
            if not isinstance(root, int):
                found += torch.autograd.grad(root, everything, allow_unused=True, retain_graph=True)
        return found

    both(program, backend, look)


@by_backend
@by_program
def test_second_derivatives_past_results_with_hooks(program: Callable[..., Any], backend: str) -> None:
    def look(run: Callable[..., Any]) -> list[Any]:
        log: list[Any] = []
        given = leaves()
        loss, *others = run(*given)
        for at, other in enumerate(others):
            other.retain_grad()
            other.register_hook(partial(noted, log, at + 2))
        first = torch.autograd.grad(loss, given, create_graph=True, allow_unused=True)
        seen = len(log)
        sum((one * one).sum() for one in first if one is not None).backward()
        log = sorted(log[:seen], key=lambda entry: entry[0]) + sorted(log[seen:], key=lambda entry: entry[0])
        found = [*[seen for _, seen in log], *[other.grad for other in others], *[leaf.grad for leaf in given]]
        return [one if one is None else one.detach() for one in found]

    both(program, backend, look)


@by_backend
@pytest.mark.parametrize("shown", [False, True])
def test_inputs_that_are_written_to(shown: bool, backend: str) -> None:
    """Results are differentiated by the new contents."""

    def program(x: Any, v: Any) -> Any:
        x.mul_(2)
        x[0] = 3.0
        loss = (x * x @ v).sum()
        first = x[1]
        return (loss + (first * first).sum() + x.sin().sum(), *((first, x) if shown else ()))

    def look(run: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []
        for hooked in (False, True):
            given = leaves()
            x, log = given[0] * 1, []
            loss, *others = run(x, given[1])
            found += torch.autograd.grad(loss, [x, *others, *given[:2]], allow_unused=True, retain_graph=True)
            found.append(x.detach().clone())
            if hooked:
                for at, other in enumerate([x, *others[:1]]):
                    other.register_hook(partial(noted, log, at + 2))
                    other.retain_grad()
            (loss + x.sum()).backward()
            log.sort(key=lambda entry: entry[0])
            found += [*[seen for _, seen in log], x.grad, *[leaf.grad for leaf in given[:2]]]
        return found

    both(program, backend, look)


@by_backend
def test_hooks_of_dropped_results(backend: str) -> None:
    def look(run: Callable[..., Any]) -> list[Any]:
        log: list[Any] = []
        given = leaves()
        loss, logits, hidden = run(*given)
        logits.register_hook(partial(noted, log, 2))
        hidden.register_hook(partial(noted, log, 3))
        del logits, hidden
        loss.backward()
        assert [factor for factor, _ in log] == [2, 3]
        return [*[seen for _, seen in log], *[leaf.grad for leaf in given]]

    both(chain, backend, look)


@by_backend
def test_hooks_of_a_result_that_was_written_to_since(backend: str) -> None:
    """Hooks from before the write see the gradient by the old contents."""

    def look(run: Callable[..., Any]) -> list[Any]:
        log: list[Any] = []
        given = leaves()
        loss, _, _, result = run(*given)
        result.register_hook(partial(noted, log, 2))
        result.mul_(3)
        result.register_hook(partial(noted, log, 5))
        (loss + result.sum()).backward()
        log.sort(key=lambda entry: entry[0])
        return [*[seen for _, seen in log], *[leaf.grad for leaf in given]]

    both(two_losses, backend, look)


@by_backend
def test_second_derivatives_by_the_only_result(backend: str) -> None:
    """A gradient that depends on the result itself, as that of exp; hooks of the result are called again."""

    def program(x: Any, v: Any, w: Any) -> Any:
        return (x @ v).exp()

    def look(run: Callable[..., Any]) -> list[Any]:
        log: list[Any] = []
        given = leaves()
        result = run(*given)
        result.register_hook(partial(noted, log, 2))
        first = torch.autograd.grad(result.sin().sum(), given[:2], create_graph=True)
        second = torch.autograd.grad(sum((one * one).sum() for one in first), [result, *given[:2]])
        return [*(one.detach() for one in first), *second, *[seen for _, seen in log]]

    both(program, backend, look)


@by_backend
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_second_derivatives_past_dropped_results_that_lead_to_no_others(count: int, hooked: bool, backend: str) -> None:

    def program(x: Any, v: Any, w: Any) -> Any:
        return (x.exp() + 1, x.sin())[:count]

    def look(run: Callable[..., Any]) -> Any:
        x, v, w = leaves()
        result = run(x, v, w)[0]
        if hooked:
            result.register_hook(lambda gradient: gradient.sin())
        loss = result.sum().sin()
        del result
        (by_x,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(by_x.sin().sum() + loss, x)

    if not hooked:
        return both(program, backend, look)
    with pytest.raises(RuntimeError, match="stator: a backward of a compiled graph is differentiated again"):
        look(stator.compile(program, backend=backend))


@by_backend
def test_random_numbers_are_those_of_the_forward(backend: str) -> None:
    """The gradient by the logits, taken on to the input, is the gradient by the input."""

    def program(x: Any, v: Any, w: Any) -> Any:
        hidden = F.dropout(x @ v, 0.5)
        return F.dropout(hidden.exp(), 0.5).sum(), hidden

    given = leaves()
    loss, hidden = stator.compile(program, backend=backend)(*given)
    (by_hidden,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    onwards = torch.autograd.grad(hidden, given[:2], by_hidden, retain_graph=True)
    assert_equal(onwards, torch.autograd.grad(loss, given[:2]))


@by_backend
def test_hooks_of_one_result_are_not_called_for_another(backend: str) -> None:
    called: list[int] = []
    first, second = stator.compile(lambda x: (x.sin(), x.cos()), backend=backend)(leaves()[0])
    first.register_hook(lambda g: called.append(1))
    second.sum().backward()
    assert called == []


def test_a_plain_backward_compiles_what_it_did_without_links() -> None:
    compiled: list[str] = []

    def note(graph: Any, inputs: Any) -> Any:
        compiled.append(graph.meta["part"])
        return aot.run_eagerly(graph, inputs)

    run = aot.compile_training(chain, leaves(), note, keep=aot.keep_all)
    for _ in range(2):
        loss, logits, _ = run(*leaves())
        loss.backward()
    assert compiled == ["forward", "backward"]
    loss, logits, _ = run(*leaves())
    torch.autograd.grad(loss, logits)
    assert compiled == ["forward", "backward", "backward"]


def test_results_that_are_dropped_are_not_kept_alive() -> None:
    import weakref

    loss, logits, hidden = stator.compile(chain, backend="aot_eager")(*leaves())
    gone = weakref.ref(logits), weakref.ref(hidden)
    del logits, hidden
    assert [reference() for reference in gone] == [None, None]
    loss.backward()


def test_nothing_is_linked_without_grad_mode() -> None:
    with torch.no_grad():
        results = aot.compile_training(chain, leaves(), aot.run_eagerly, keep=aot.keep_all)(*leaves())
    assert len(results) == 3


OPERATORS: list[Callable[..., Any]] = [
    lambda a, b: a * b, lambda a, b: a + b, lambda a, b: a.sin(), lambda a, b: a.exp() - b, lambda a, b: a.tanh(),
    lambda a, b: torch.stack((a, b)).sum(0), lambda a, b: a.detach() * b, lambda a, b: (a, b)[0].clone(),
]  # fmt: skip


def random_program(seed: int) -> Callable[..., Any]:
    chosen = random.Random(seed)
    steps = [(chosen.choice(OPERATORS), chosen.random(), chosen.random()) for _ in range(8)]
    shown = sorted(chosen.sample(range(8), 4))

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        values = [x, y]
        for operator, first, second in steps:
            values.append(operator(values[int(first * len(values))], values[int(second * len(values))]))
        return [values[2 + at] for at in shown]

    return program


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed: int) -> None:
    program = random_program(seed)

    def given() -> list[torch.Tensor]:
        return [torch.linspace(low, 1, 3, dtype=torch.float64).requires_grad_() for low in (-1, 0.1)]

    def look(run: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []
        for source in range(4):
            inputs = given()
            results = list(run(*inputs))
            if results[source].requires_grad:
                others = [one for at, one in enumerate(results) if at != source and one.requires_grad]
                sought = [*others, *inputs]
                found += torch.autograd.grad(results[source].sum(), sought, allow_unused=True, retain_graph=True)
                first = torch.autograd.grad(results[source].sum(), sought, allow_unused=True, create_graph=True)
                roots = [one.square().sum() for one in first if one is not None and one.requires_grad]
                if roots:
                    found += torch.autograd.grad(sum(roots), sought, allow_unused=True)
            inputs = given()
            results = list(run(*inputs))
            if results[source].requires_grad:
                log: list[torch.Tensor] = []
                for result in results:
                    if result.requires_grad:
                        result.register_hook(lambda g, log=log: (log.append(g.clone()), g * 2)[1])
                results[source].sum().backward()
                found += [sum(log), torch.tensor(len(log)), *[one.grad for one in inputs]]
        return found

    run = aot.compile_training(program, given(), aot.run_eagerly, keep=aot.keep_all)
    assert_equal(look(run), look(program))


VIEWS: list[Callable[..., Any]] = [
    lambda a, b: a[0] if a.dim() > 1 else a.unsqueeze(0),
    lambda a, b: a.t() if a.dim() == 2 else a.view(1, -1),
    lambda a, b: a.chunk(2)[0],
    lambda a, b: a.view(a.shape),
    lambda a, b: a.sum() * b,
    lambda a, b: a.sin(),
    lambda a, b: a.clone().mul_(3),
]


@pytest.mark.parametrize("seed", range(25))
def test_random_views(seed: int) -> None:
    """Results are views of inputs, of each other and of tensors that are not returned; one input is written to."""
    chosen = random.Random(seed)
    steps = [(chosen.choice(VIEWS), chosen.random(), chosen.random()) for _ in range(7)]
    shown, writes = sorted(chosen.sample(range(7), 4)), seed % 3 == 0

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        values = [x.mul_(2) if writes else x, y]
        for operator, first, second in steps:
            values.append(operator(values[int(first * len(values))], values[int(second * len(values))]))
        return [values[2 + at] for at in shown]

    def look(run: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []
        for source in range(4):
            for hooked in (False, True):
                roots = [
                    torch.linspace(low, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_() for low in (-1, 0.1)
                ]
                inputs = [root * 1 for root in roots]
                results = list(run(*inputs))
                seen = list({id(one): one for one in [*inputs, *results]}.values())
                log: list[Any] = []
                for at, one in enumerate(seen if hooked else ()):
                    one.register_hook(partial(noted, log, at + 2))
                found += torch.autograd.grad(results[source].sin().sum(), [*seen, *roots], allow_unused=True)
                found += [gradient for _, gradient in sorted(log, key=lambda entry: entry[0])]
        return found

    assert_equal(look(stator.compile(program, backend="aot_eager")), look(program))


@pytest.mark.parametrize("count", [1, 2])
def test_hooks_of_nodes_are_refused(count: int) -> None:
    """A node of a compiled graph stands for many of eager's."""
    results = stator.compile(lambda x: ((x * 2).sin(), x.exp())[:count], backend="aot_eager")(leaves()[0])
    for register in (results[0].grad_fn.register_hook, results[0].grad_fn.register_prehook):
        with pytest.raises(RuntimeError, match=r"stator: a hook is registered on an autograd node"):
            register(lambda *gradients: None)


def test_results_that_do_not_depend_on_each_other_share_a_node() -> None:
    def program(x: torch.Tensor) -> Any:
        hidden = (x * 2).sin()
        return hidden, (x + 1).cos(), (hidden * x).exp()

    first, second, third = stator.compile(program, backend="aot_eager")(leaves()[0])
    assert first.grad_fn is second.grad_fn
    assert third.grad_fn is not first.grad_fn in [node for node, _ in third.grad_fn.next_functions]


def test_hooks_of_one_result_where_only_another_has_a_gradient() -> None:
    """Neither the hook is called, nor does autograd's hook of several tensors wait for it."""

    def program(x: torch.Tensor) -> Any:
        return (x * 2).sin(), (x + 1).cos(), x.exp() * 3

    def look(run: Callable[..., Any]) -> list[Any]:
        x = leaves()[0]
        results, log = run(x), []
        for at, result in enumerate(results):
            result.register_hook(partial(noted, log, at + 2))
            result.retain_grad()
        torch.autograd.graph.register_multi_grad_hook(results[:2], lambda found: log.append((9, found[0])))
        results[0].sum().backward(retain_graph=True)
        assert results[1].grad is None
        (results[0].sum() + results[2].sum()).backward()
        log.sort(key=lambda entry: entry[0])  # results that do not depend on each other have no order
        return [*[part for entry in log for part in entry], x.grad, results[0].grad, results[2].grad]

    assert_equal(look(stator.compile(program, backend="aot_eager")), look(program))
