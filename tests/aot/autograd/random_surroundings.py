"""More features for `random_features`: surroundings of a compiled module in training code, and other parameters.

Importing this adds them; `make` here mixes them with those there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from tests.aot.autograd import random_callers, random_features
from tests.aot.autograd.random_callers import Run
from tests.aot.autograd.random_features import PLAIN_INSIDE, Numbers, Scenario, Store, full, pick
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor
INSIDE: dict[str, Any] = {}
AROUND: dict[str, Any] = {}
BEFORE: dict[str, Any] = {}


def into(table: dict[str, Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        table[function.__name__] = function
        return function

    return add


class Wider(Store):
    """With a table of sparse gradients, a complex weight and a part whose hooks are called."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(11)
        self.table = nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64))
        self.turned = nn.Parameter(torch.randn(2, 3, generator=generator, dtype=torch.complex128))
        self.part = nn.Linear(3, 3, dtype=torch.float64)
        with torch.no_grad():
            self.part.weight.copy_(torch.randn(3, 3, generator=generator, dtype=torch.float64))
            self.part.bias.copy_(torch.randn(3, generator=generator, dtype=torch.float64))


# ---- inside
@into(INSIDE)
def sparse_lookup(store: Any, values: list[Any], n: Numbers) -> Any:
    rows = torch.tensor([1, 3]) if n[0] < 0.5 else torch.tensor([2, 2])
    return [F.embedding(rows, store.table, sparse=n[1] < 0.7) * full(values, n[2])]


@into(INSIDE)
def bag(store: Any, values: list[Any], n: Numbers) -> Any:
    rows = torch.tensor([1, 3, 0, 1])
    made = F.embedding_bag(rows, store.table, torch.tensor([0, 1]), mode="sum", sparse=n[1] < 0.5)
    return [made + full(values, n[2])]


@into(INSIDE)
def complex_weight(store: Any, values: list[Any], n: Numbers) -> Any:
    made = store.turned * full(values, n[0])
    return [
        pick([made.real, made.abs(), made.imag.conj() * 2, (made @ made.mH).real[:, :1] * full(values, n[1])], n[2])
    ]


@into(INSIDE)
def part(store: Any, values: list[Any], n: Numbers) -> Any:
    return [store.part(full(values, n[0]))]


@into(INSIDE)
def nested_checkpoints(store: Any, values: list[Any], n: Numbers) -> Any:
    def inner(x: Tensor) -> Tensor:
        return (x @ store.weight).sin()

    def outer(x: Tensor, y: Tensor) -> Tensor:
        return checkpoint(inner, x * y, use_reentrant=False).tanh()

    return [checkpoint(outer, full(values, n[0]), full(values, n[1]), use_reentrant=False)]


@into(INSIDE)
def mixed(store: Any, values: list[Any], n: Numbers) -> Any:
    """Exact: sums of small powers of two."""
    with torch.autocast("cpu", torch.float16 if n[1] < 0.5 else torch.bfloat16, cache_enabled=n[2] < 0.5):
        made = full(values, n[0]).round().clamp(-4, 4).float() @ torch.eye(3)
        return [made.double(), F.relu(made).double() * full(values, n[1])]


@into(INSIDE)
def image(store: Any, values: list[Any], n: Numbers) -> Any:
    one = full(values, n[0]).double()
    made = one[None, :, None, :].expand(2, 2, 4, 3).to(memory_format=torch.channels_last) * 1
    kind = int(n[2] * 3)
    if kind == 0:
        made = F.max_pool2d(made, 2)
    elif kind == 1:
        made = F.avg_pool2d(made, 2)
    else:
        made = F.interpolate(made, scale_factor=2)
    return [made, made.sum((0, 2))[:, :1] * one]


@into(INSIDE)
def per_sample(store: Any, values: list[Any], n: Numbers) -> Any:
    value, other = full(values, n[0]), full(values, n[1])
    which = int(n[2] * 4)
    if which == 0:
        return [torch.func.vmap(torch.func.grad(lambda x, y: (x.sin() * y).sum()))(value, other)]
    if which == 1:
        return [torch.func.jacrev(lambda x: (x * other).sum(0))(value).sum(0)]
    if which == 2:
        return [torch.func.jacfwd(lambda x: (x.tanh() * other).sum(0))(value).sum(0)]
    made = torch.func.functional_call(store.part, {"weight": store.weight, "bias": other[0]}, (value,))
    return [made]


# ---- around
@into(BEFORE)
def module_hooks(run: Run, n: Numbers) -> None:
    which = int(n[0] * 4)
    target: Any = run.store if n[1] < 0.4 else run.store.part
    if which == 0:
        target.register_full_backward_hook(lambda m, gi, go: run.unordered.append(("out", go[0])) or None)
    elif which == 1:
        target.register_full_backward_pre_hook(lambda m, go: (None if go[0] is None else go[0] * 2, *go[1:]))
    elif which == 2:
        target.register_forward_hook(lambda m, i, o: o * 2 if isinstance(o, Tensor) else None)
    else:
        target.register_forward_pre_hook(lambda m, i: tuple(one * 1 for one in i))


@into(BEFORE)
def frozen(run: Run, n: Numbers) -> None:
    pick(list(run.store.parameters()), n[0]).requires_grad_(False)


@into(AROUND)
def scaled(run: Run, n: Numbers) -> None:
    if run.roots():
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=True)
        scaler.scale(run.total(n[0])).backward()
        trained = [one for one in run.store.parameters() if one.requires_grad and not one.is_complex()]
        given = [one for one in trained if one.grad is None or not one.grad.is_sparse]
        optimizer = torch.optim.SGD(given, lr=0.1)
        if any(one.grad is not None for one in given):
            scaler.unscale_(optimizer)
            if n[1] < 0.5:
                scaler.step(optimizer)
                scaler.update()


@into(AROUND)
def zeroed(run: Run, n: Numbers) -> None:
    run.store.zero_grad(set_to_none=n[0] < 0.5)
    if run.roots():
        run.total(n[1]).backward(retain_graph=True)


@into(AROUND)
def accumulated(run: Run, n: Numbers) -> None:
    for step in range(2):
        run.start(0.99)
        run.run()
        if run.roots():
            (run.total(n[0]) * (step + 1)).backward()


@into(AROUND)
def replica(run: Run, n: Numbers) -> None:
    """Another module shares the parameters; the results of both are differentiated together."""
    other = type(run.store)()
    other.scenario = run.store.scenario
    other.load_state_dict(run.store.state_dict())
    for name, one in run.store.named_parameters():
        owner, _, last = name.rpartition(".")
        setattr(other.get_submodule(owner), last, one)
    call, before = run.call, run.results
    run.call = run.compile(other)
    run.start(n[0])
    run.run()
    run.call, run.results = call, [*before, *run.results]


@into(AROUND)
def func_outside(run: Run, n: Numbers) -> None:
    def loss(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        made = run.call(x, run.plain * 1, run.plain * 2)
        found = [one for one in torch.utils._pytree.tree_leaves(made) if isinstance(one, Tensor)]
        return sum((one * 0.3).sin().sum() for one in found if one.is_floating_point())  # type: ignore[return-value]

    x = run.plain.clone()
    which = int(n[1] * 3)
    if which == 0:
        run.note(torch.func.grad(loss)(x))
    elif which == 1:
        run.note(*torch.func.vjp(loss, x)[1](torch.ones((), dtype=torch.float64)))
    else:
        run.note(torch.func.jvp(loss, (x,), (x * 2,))[1])


@into(AROUND)
def functional(run: Run, n: Numbers) -> None:
    def loss(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        made = run.call(x * 1, run.plain * 1, run.plain * 2)
        found = [one for one in torch.utils._pytree.tree_leaves(made) if isinstance(one, Tensor)]
        return sum((one * 0.3).sin().sum() for one in found if one.is_floating_point()) + x.sum()  # type: ignore[return-value]

    if n[1] < 0.4:
        run.note(torch.autograd.functional.jacobian(loss, run.plain.clone()))
    elif n[1] < 0.7:
        run.note(*torch.autograd.functional.hvp(loss, run.plain.clone(), run.plain))
    else:
        run.note(*torch.autograd.functional.vhp(loss, run.plain.clone(), run.plain))


@into(AROUND)
def some_inputs(run: Run, n: Numbers) -> None:
    """`backward(inputs=...)`, which accumulates into some leaves."""
    leaves = [one for one in [*run.leaves, *run.store.parameters()] if one.requires_grad]
    if run.roots():
        run.total(n[0]).backward(inputs=[pick(leaves, n[1]), leaves[0]], retain_graph=n[2] < 0.5)


@into(AROUND)
def stepped(run: Run, n: Numbers) -> None:
    """A step between two backwards."""
    if run.roots():
        run.total(n[0]).backward(retain_graph=True)
        with torch.no_grad():
            for one in run.store.parameters():
                if one.grad is not None and n[1] < 0.8:
                    one.sub_(0.1 * (one.grad.to_dense() if one.grad.is_sparse else one.grad))
        run.total(n[2]).backward()


for table, more in (
    (random_features.INSIDE, INSIDE), (random_callers.AROUND, AROUND), (random_callers.BEFORE, BEFORE),
):  # fmt: skip
    table.update(more)
_LOUD = [name for name in random_callers.PLAIN_AROUND if name not in random_callers.QUIET]


def make(seed: int) -> Scenario:
    chosen = random.Random(seed + 1_000_000)

    def numbers() -> Numbers:
        return tuple(chosen.random() for _ in range(3))

    inside = [
        (chosen.choice(list(INSIDE) if chosen.random() < 0.5 else PLAIN_INSIDE), numbers())
        for _ in range(chosen.randint(2, 6))
    ]
    shown = tuple(round(1 - chosen.random() ** 1.5 * 0.8 - 1e-9, 6) for _ in range(chosen.randint(1, 3)))
    steps = []
    if chosen.random() < 0.5:
        steps.append((chosen.choice([*BEFORE, *BEFORE, "packed", "hooks_before", "warm", "inference"]), numbers()))
    steps.append(("start", numbers()))
    steps += [(chosen.choice(sorted(random_callers.QUIET)), numbers()) for _ in range(chosen.choice([0, 0, 1]))]
    steps += [(chosen.choice(list(AROUND) if chosen.random() < 0.6 else _LOUD), numbers())
              for _ in range(chosen.randint(1, 3))]  # fmt: skip
    return Scenario(seed, tuple(inside), shown, tuple(steps))


def difference(scenario: Scenario, compile: Callable[[Any], Any]) -> str | None:
    return random_callers.difference(scenario, compile, Wider)
