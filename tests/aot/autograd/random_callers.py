"""Random mixtures of autograd features, inside of programs and in their callers; a seed makes one scenario.

A scenario is data: steps of a program and steps of its caller, each with numbers that choose operands. So a scenario
that fails can be made smaller by leaving steps out (`smaller`).
"""

from __future__ import annotations

import contextlib
import copy
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from tests.aot.autograd.random_features import PLAIN_INSIDE, Numbers, Scenario, Store, Tensor, pick

AROUND: dict[str, Callable[..., Any]] = {}
BEFORE: dict[str, Callable[..., Any]] = {}


def around(function: Callable[..., Any]) -> Callable[..., Any]:
    AROUND[function.__name__] = function
    return function


def before(function: Callable[..., Any]) -> Callable[..., Any]:
    BEFORE[function.__name__] = function
    return function


class Run:
    """One run of a scenario: the caller's tensors and notes."""

    def __init__(self, store: Store, compile: Callable[[Any], Callable[..., Any]]) -> None:
        self.store, self.compile = store, compile
        self.call = compile(store)
        generator = torch.Generator().manual_seed(1)
        self.leaves = [torch.randn(2, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]
        self.plain = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        self.generator = generator
        self.seen: list[Any] = []
        self.unordered: list[Any] = []
        self.inputs: list[Tensor] = []
        self.results: list[Tensor] = []
        self.stack = contextlib.ExitStack()
        self.asked = 0

    def note(self, *found: Any) -> None:
        for one in found:
            self.seen.append(one.detach().clone() if isinstance(one, Tensor) else one)

    def start(self, kind: float) -> None:
        """Inputs: leaves, with history, views, one tensor twice, views of each other."""
        x, w, v = self.leaves
        base = v * 2
        choices = [
            lambda: [x, w, self.plain], lambda: [x * 1, w, v], lambda: [base[:], w * 1, self.plain],
            lambda: [x, x, w], lambda: [base, base.view(2, 3), x], lambda: [(x * 2).t().contiguous().t(), w, v],
            lambda: [x.detach(), w, v], lambda: [x * 1, w * 2, base], lambda: [x, w, v],
        ]  # fmt: skip
        self.inputs = pick(choices, kind)()

    def run(self) -> None:
        torch.manual_seed(0)
        result = self.call(*self.inputs)
        leaves = torch.utils._pytree.tree_leaves(result)
        self.note(*[one for one in leaves if not isinstance(one, Tensor)])
        self.results = [one for one in leaves if isinstance(one, Tensor)]
        for one in self.results:
            self.note(one, one.requires_grad, one.is_leaf, one.stride())
        seen = [*self.results, *self.inputs]
        self.note(
            [first.untyped_storage()._cdata == second.untyped_storage()._cdata for first in seen for second in seen]
        )
        self.note(*self.inputs, [one.requires_grad for one in self.inputs])

    def roots(self, number: float = 0.0) -> list[Tensor]:
        found = [one for one in self.results if one.requires_grad and one.is_floating_point()]
        return found[: 1 + int(number * len(found))] if number < 0.7 else found[::-1][: 1 + int(number * len(found))]

    def total(self, number: float = 0.99) -> Tensor:
        roots = self.roots(number)
        return sum(((one * 0.3).sin() * (at + 1)).sum() for at, one in enumerate(roots))  # type: ignore[return-value]

    def all_leaves(self) -> list[Tensor]:
        return [*self.leaves, *self.store.parameters()]


@around
def backward(run: Run, n: Numbers) -> None:
    if run.roots():
        run.total(n[0]).backward(retain_graph=n[1] < 0.5)


@around
def tangents(run: Run, n: Numbers) -> None:
    roots = run.roots(n[0])
    kinds = [torch.ones_like, lambda one: torch.ones((), dtype=one.dtype).expand(one.shape), torch.zeros_like,
             lambda one: torch.arange(2.0 * one.numel(), dtype=one.dtype)[::2].view(one.shape)]  # fmt: skip
    given = [pick(kinds, (n[1] + at * 0.3) % 1)(one) for at, one in enumerate(roots)]
    torch.autograd.backward(roots, given, retain_graph=n[2] < 0.5)


@around
def asked(run: Run, n: Numbers) -> None:
    if not run.roots():
        return
    among = [one for one in [*run.results, *run.inputs, *run.all_leaves()] if one.requires_grad]
    chosen = random.Random(n[1]).sample(range(len(among)), min(len(among), 1 + int(n[0] * 4)))
    found = torch.autograd.grad(
        run.total(n[2]), [among[at] for at in chosen], retain_graph=n[2] < 0.6, allow_unused=True
    )
    run.note(*found)


@around
def second(run: Run, n: Numbers) -> None:
    if not run.roots():
        return
    leaves = run.all_leaves()
    among = [*leaves, *[one for one in run.results if one.requires_grad]]
    first = torch.autograd.grad(run.total(n[0]), among if n[1] < 0.5 else leaves, create_graph=True, allow_unused=True)
    run.note(*first)
    roots = [(one * 0.3).sin().square().sum() for one in first if one is not None and one.requires_grad]
    if roots:
        total = sum(roots) + (run.total() if n[1] > 0.8 else 0)
        run.note(*torch.autograd.grad(total, among, allow_unused=True, retain_graph=n[2] < 0.6))


@around
def second_by_backward(run: Run, n: Numbers) -> None:
    if not run.roots():
        return
    run.total(n[0]).backward(create_graph=True)
    grads = [one.grad for one in run.all_leaves()]
    for one in run.all_leaves():
        one.grad = None
    roots = [one.square().sum() for one in grads if one is not None and one.requires_grad]
    if roots:
        sum(roots).backward()  # type: ignore[union-attr]


@around
def freed_graph_of_its_own(run: Run, n: Numbers) -> None:
    """create_graph without retain_graph."""
    if run.roots():
        found = torch.autograd.grad(
            run.total(n[0]), run.all_leaves(), create_graph=True, retain_graph=False, allow_unused=True
        )
        run.note(*found)


@around
def hessian_product(run: Run, n: Numbers) -> None:
    if not run.roots():
        return
    leaves = run.all_leaves()
    first = torch.autograd.grad(run.total(n[0]), leaves, create_graph=True, allow_unused=True)
    pairs = [(one, torch.ones_like(one)) for one in first if one is not None and one.requires_grad]
    if pairs:
        outputs, directions = zip(*pairs, strict=True)
        run.note(*torch.autograd.grad(outputs, leaves, directions, allow_unused=True, retain_graph=True))


@around
def batched(run: Run, n: Numbers) -> None:
    roots = run.roots()
    if not roots:
        return
    run.asked = 0  # gradients that are retained are batched tensors then
    root = roots[0]
    rows = torch.linspace(-1, 1, 2 * root.numel(), dtype=root.dtype).view(2, *root.shape)
    found = torch.autograd.grad(
        root, run.all_leaves(), rows, is_grads_batched=True, allow_unused=True, retain_graph=n[0] < 0.6,
        create_graph=n[1] < 0.3,
    )  # fmt: skip
    run.note(*found)


def _noted(run: Run, name: Any, factor: float, gradient: Any) -> Any:
    if gradient is None or not torch._C._functorch.is_batchedtensor(gradient):
        batched = gradient is not None and torch._C._dispatch_keys(gradient).has("Batched")
        run.unordered.append((str(name), None if gradient is None or batched else gradient.detach().clone()))
    return None if gradient is None or factor == 1 else gradient * factor


@around
def hook_results(run: Run, n: Numbers) -> None:
    for at, one in enumerate(run.results):
        if one.requires_grad and (at + n[0]) % 1 < 0.7:
            one.register_hook(partial(_noted, run, f"result {at}", 1 + int(n[1] * 3)))


@around
def hook_inputs(run: Run, n: Numbers) -> None:
    for at, one in enumerate([*run.inputs, *run.all_leaves()]):
        if one.requires_grad and (one.is_leaf or one.grad_fn):  # a written tensor makes its node when grad_fn is read
            one.register_hook(partial(_noted, run, f"input {at}", 1 + int(n[1] * 3)))


@around
def retain(run: Run, n: Numbers) -> None:
    for one in run.results if n[0] < 0.5 else [*run.results, *run.inputs]:
        if one.requires_grad:
            one.retain_grad()
    run.asked = 1


@around
def after_accumulation(run: Run, n: Numbers) -> None:
    for at, one in enumerate(run.all_leaves()):
        one.register_post_accumulate_grad_hook(lambda leaf, at=at: _noted(run, f"leaf {at}", 1, leaf.grad))


@around
def multi_hook(run: Run, n: Numbers) -> None:
    tensors = [one for one in run.results if one.requires_grad]
    if tensors:

        def seen(grads: Any) -> None:
            for at, one in enumerate(grads if isinstance(grads, (tuple, list)) else [grads]):
                _noted(run, f"several {at}", 1, one)

        run.stack.callback(torch.autograd.graph.register_multi_grad_hook(tensors, seen, mode="all").remove)


@around
def again(run: Run, n: Numbers) -> None:
    """A second call; the results of both in hand."""
    before = run.results
    run.start(n[0])
    run.run()
    run.results = [*before, *run.results]


@around
def compute_with(run: Run, n: Numbers) -> None:
    """Tensors outside of the graph, hooked."""
    roots = run.roots(n[0])
    if roots:
        made = (pick(roots, n[1]) * 2).sin()
        made.register_hook(partial(_noted, run, "outside", 2))
        run.results = [*run.results, made]


@around
def drop(run: Run, n: Numbers) -> None:
    roots = run.roots(0.99)
    if roots:
        loss = run.total(0.99)
        run.results = [loss]


@around
def drop_some(run: Run, n: Numbers) -> None:
    run.results = run.results[int(n[0] * 2) :] or run.results


@around
def write_result(run: Run, n: Numbers) -> None:
    one = pick(run.results, n[0])
    with torch.set_grad_enabled(n[1] < 0.7):
        one.mul_(2)


@around
def write_input(run: Run, n: Numbers) -> None:
    with torch.no_grad():
        pick([*run.inputs, *run.leaves], n[0]).mul_(2)


@around
def existing_grads(run: Run, n: Numbers) -> None:
    for at, one in enumerate(run.all_leaves()):
        one.grad = None if at % 3 == 0 else torch.full_like(one, 0.5)


@around
def anomaly(run: Run, n: Numbers) -> None:
    run.stack.enter_context(torch.autograd.set_detect_anomaly(True))


@around
def one_thread(run: Run, n: Numbers) -> None:
    run.stack.enter_context(torch.autograd.set_multithreading_enabled(False))


@around
def other_thread(run: Run, n: Numbers) -> None:
    if not run.roots():
        return
    failed: list[BaseException] = []

    def work() -> None:
        try:
            run.total(n[0]).backward(retain_graph=n[1] < 0.5)
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@around
def copies(run: Run, n: Numbers) -> None:
    for one in run.results:
        if one.is_leaf:
            made = copy.deepcopy(one)
            run.note(made, made.requires_grad)


@around
def kind_of_error(run: Run, n: Numbers) -> None:
    """A backward of a tensor without a history, or through a freed graph."""
    run.results[0].sum().backward()


@before
def packed(run: Run, n: Numbers) -> None:
    run.stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: (t * 1, 1), lambda pair: pair[0]))


@before
def no_grad(run: Run, n: Numbers) -> None:
    with torch.no_grad():
        run.start(n[0])
        run.run()


def _gradients_in_inference() -> bool:
    """Whether eager computes gradients of torch.func in inference mode; in torch 2.11 they are zeros."""
    with torch.inference_mode():
        return bool(torch.func.grad(torch.sin)(torch.zeros(())))


@before
def inference(run: Run, n: Numbers) -> None:
    transforms = {"transformed", "per_sample"}
    if any(name in transforms for name, _ in run.store.scenario.inside) and not _gradients_in_inference():
        return
    with torch.no_grad():
        run.start(0.99)
    copied = Run(run.store, lambda _: run.call)
    copied.inputs = [one.detach().clone() for one in run.inputs]
    with torch.inference_mode():
        torch.manual_seed(0)
        result = copied.call(*copied.inputs)
        run.note(*[one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, Tensor)])


@before
def hooks_before(run: Run, n: Numbers) -> None:
    hook_inputs(run, n)


@before
def grads_before(run: Run, n: Numbers) -> None:
    existing_grads(run, n)


@before
def warm(run: Run, n: Numbers) -> None:
    """Another call before, whose results are dropped."""
    run.start(n[0])
    run.run()


PLAIN_AROUND, PLAIN_BEFORE = tuple(AROUND), tuple(BEFORE)  # other files may add features


def make(seed: int) -> Scenario:
    chosen = random.Random(seed)

    def numbers() -> Numbers:
        return tuple(chosen.random() for _ in range(3))

    common = ["multiply", "add", "unary", "linear", "view", "use_view"]
    rare = [name for name in PLAIN_INSIDE if name not in common]
    inside_steps = [
        (chosen.choice(common if chosen.random() < 0.45 else rare), numbers()) for _ in range(chosen.randint(3, 8))
    ]
    shown = tuple(round(1 - chosen.random() ** 1.5 * 0.8 - 1e-9, 6) for _ in range(chosen.randint(1, 4)))
    steps = [(chosen.choice(PLAIN_BEFORE), numbers())] if chosen.random() < 0.3 else []
    steps.append(("start", numbers()))
    quiet = [name for name in PLAIN_AROUND if name in QUIET]
    loud = [name for name in PLAIN_AROUND if name not in QUIET]
    steps += [(chosen.choice(quiet), numbers()) for _ in range(chosen.choice([0, 0, 1, 1, 2]))]
    steps += [(chosen.choice(loud), numbers()) for _ in range(chosen.randint(1, 3))]
    return Scenario(seed, tuple(inside_steps), shown, tuple(steps))


QUIET = {
    "hook_results", "hook_inputs", "retain", "after_accumulation", "multi_hook", "again",
    "compute_with", "drop", "drop_some", "write_result", "write_input", "existing_grads", "anomaly", "one_thread",
    "copies",
}  # fmt: skip


def play(scenario: Scenario, compile: Callable[[Any], Any], kind: type[Store] = Store) -> tuple[list[Any], str | None]:
    """The notes of a run, and the class of the error that ends it."""
    torch._C._set_grad_enabled(True)
    torch.manual_seed(3)
    store = kind()
    store.scenario = scenario
    run = Run(store, compile)
    error = None
    with run.stack:
        try:
            for name, numbers in scenario.around:
                if name == "start":
                    run.start(numbers[0])
                    run.run()
                elif name in BEFORE:
                    BEFORE[name](run, numbers)
                else:
                    AROUND[name](run, numbers)
        except Exception as caught:
            error = type(caught).__name__
            torch._C._set_grad_enabled(True)
            run.seen.append(f"error {caught}")
    if error is None:
        run.unordered.sort(
            key=lambda entry: (entry[0], -1e9 if entry[1] is None else round(float(entry[1].abs().sum()), 6))
        )
        for name, value in run.unordered:
            run.seen += [name, value]
        run.seen += [None if one.grad is None else one.grad.clone() for one in run.all_leaves()]
        if run.asked:
            run.seen += [one.grad for one in run.results if one.requires_grad and one.retains_grad]
        run.seen += [one.clone() for one in store.buffers()]
        run.seen += [one.detach().clone() for one in store.parameters()]
    return run.seen, error


@dataclass(frozen=True)
class Difference:
    """An error that only eager raises, or only compiled code, as docs/training.md tells."""

    raises: str  # "eager" or "compiled"
    text: str
    needs: tuple[str, ...]  # a scenario without any of these steps has no such difference
    calls: int = 1  # the least number of the needed steps


BACKWARDS = (
    "backward", "tangents", "asked", "second", "second_by_backward", "freed_graph_of_its_own", "hessian_product",
    "batched", "other_thread", "kind_of_error", "scaled", "zeroed", "accumulated", "some_inputs", "stepped",
)  # fmt: skip
WRITES = ("write_some", "write_without_grad", "write_input", "write_result", "count", "batch_norm", "stepped", "scaled")
OBSERVERS = ("hooked", "hook_results", "retain", "multi_hook", "compute_with", "asked", "second")
DOCUMENTED = (
    # the compiled forward does not save that tensor: the gradients are those of the values that the forward read
    Difference("eager", "modified by an inplace operation", WRITES),
    Difference("eager", "When use_reentrant=True, torch.utils.checkpoint is incompatible", ("checkpointed",)),
    # the compiled forward saves other tensors
    Difference("compiled", "modified by an inplace operation", WRITES),
    # backward calls of one result to different inputs: no saving node of eager lies on both ways
    Difference("compiled", "Trying to backward through the graph a second time", BACKWARDS, 2),
    # with create_graph=True the forward is computed again from its inputs
    Difference("compiled", "was modified in place before its backward was differentiated", WRITES),
    Difference("compiled", "differentiated again, and the gradient of a result is observed", OBSERVERS),
)


def is_documented(scenario: Scenario, raises: str, text: str) -> bool:
    steps = [name for name, _ in (*scenario.inside, *scenario.around)]
    return any(
        one.raises == raises and one.text in text and sum(name in one.needs for name in steps) >= one.calls
        for one in DOCUMENTED
    )


def identity(store: Any) -> Any:
    return store


def difference(scenario: Scenario, compile: Callable[[Any], Any], kind: type[Store] = Store) -> str | None:
    """How the compiled program differs from eager, or None."""
    wanted, expected = play(scenario, identity, kind)
    found, error = play(scenario, compile, kind)
    if error != expected:
        raised = [("eager", wanted[-1])] * (expected is not None) + [("compiled", found[-1])] * (error is not None)
        if any(is_documented(scenario, who, str(text)) for who, text in raised):
            return None
        return f"eager: {expected} ({str(wanted[-1])[:300]}), compiled: {error} ({str(found[-1])[:600]})"
    if expected is not None:
        return None
    if len(found) != len(wanted):
        return f"{len(found)} things seen, {len(wanted)} in eager: {_names(found)} {_names(wanted)}"
    for at, (left, right) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(right, Tensor) != isinstance(left, Tensor):
            return f"{at} of {len(wanted)}: {left}, in eager {right}"
        if not isinstance(right, Tensor):
            if left != right:
                return f"{at} of {len(wanted)}: {left}, in eager {right}"
            continue
        if right.dtype != left.dtype or right.shape != left.shape or right.layout != left.layout:
            return f"{at} of {len(wanted)}: {left.dtype} {left.shape}, in eager {right.dtype} {right.shape}"
        if right.is_sparse:
            left, right = left.to_dense(), right.to_dense()
        if not torch.allclose(left, right, rtol=1e-9, atol=1e-10, equal_nan=True):
            return f"{at} of {len(wanted)}: {left}, in eager {right}"
    return None


def _names(seen: list[Any]) -> list[str]:
    return [one for one in seen if isinstance(one, str)]


def smaller(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Without the steps that it fails without."""
    changed = True
    while changed:
        changed = False
        for field in ("inside", "shown", "around"):
            steps = getattr(scenario, field)
            for at in range(len(steps)):
                if field == "around" and steps[at][0] == "start":
                    continue
                left = steps[:at] + steps[at + 1 :]
                if not left:
                    continue
                tried = replace(scenario, **{field: left})
                if fails(tried):
                    scenario, changed = tried, True
                    break
    return scenario
