"""Steps of torch's optimizers, compiled as one graph: parameters and state are eager's, and few versions are enough.

Compiled steps compute the factors that depend on the step count in tensors of double precision; eager, in Python.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from optimizer_cases import CASES, Case, as_it_is, give_gradients, parameters, stepped, text, whole

import stator
from stator.base import counters

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about its own deprecations
TOLERANCE = {"rtol": 2e-6, "atol": 5e-7}
IN_DOUBLE = {"rtol": 1e-12, "atol": 1e-13}


def assert_same(expected: Any, found: Any, tolerance: dict[str, float] = TOLERANCE) -> None:
    (own, optimizer), (ours, compiled) = expected, found
    for one, other in zip(own, ours, strict=True):
        torch.testing.assert_close(other, one, **tolerance)
        assert list(optimizer.state[one]) == list(compiled.state[other])
        for name, value in optimizer.state[one].items():
            single = tolerance is IN_DOUBLE and torch.as_tensor(value).dtype == torch.float32
            torch.testing.assert_close(compiled.state[other][name], value, **(TOLERANCE if single else tolerance))


@pytest.mark.parametrize("case", CASES, ids=text)
def test_ten_steps_are_those_of_eager(case: Case) -> None:
    expected = stepped(case, as_it_is)
    counters.clear()
    found = stepped(case, whole("aot_eager"))
    assert_same(expected, found)
    # capture makes the state during the first step, except a momentum that begins as the first gradient
    begins_later = "dampening" in case[1]
    assert counters.counts["dynamo.compiled_frames"] <= 1 + begins_later
    assert counters.counts["graphs"] <= 1 + begins_later


@pytest.mark.parametrize("case", [case for case in CASES if case[0] != "Muon"], ids=text)  # which rounds to bfloat16
def test_ten_steps_in_double_precision(case: Case) -> None:
    """Eager's lists for ASGD compute its rate in single precision; so does eager with a rate in a tensor."""
    single = (case[0] == "ASGD" and case[1].get("foreach")) or isinstance(case[1].get("lr"), torch.Tensor)
    expected, found = (stepped(case, run, dtype=torch.float64) for run in (as_it_is, whole("aot_eager")))
    assert_same(expected, found, TOLERANCE if single else IN_DOUBLE)


USUAL = (("AdamW", {"lr": 0.01, "foreach": None}), ("SGD", {"lr": 0.1, "momentum": 0.9, "foreach": None}))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=text(case), marks=[pytest.mark.slow] * (case not in USUAL))
        for case in CASES
        if case[1].get("foreach") is None
    ],
)
def test_ten_steps_in_kernels(case: Case) -> None:
    """RMSprop, centered, subtracts nearly equal numbers."""
    tolerance = TOLERANCE if case in USUAL else {"rtol": 1e-5, "atol": 2e-6}
    assert_same(stepped(case, as_it_is), stepped(case, whole("inductor")), tolerance)


@pytest.mark.parametrize(("name", "options"), [("Muon", {}), ("SGD", {"fused": True}), ("Adagrad", {"fused": True})])
def test_the_first_change_of_a_rate_compiles_nothing(name: str, options: dict[str, Any]) -> None:
    if not hasattr(torch.optim, name):
        pytest.skip("this torch has none")
    own = [torch.nn.Parameter(torch.randn(3, 4))]
    optimizer = getattr(torch.optim, name)(own, lr=0.01, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = stator.compile(optimizer.step, backend="aot_eager")
    with stator.assert_no_recompile():
        for _ in range(3):
            own[0].grad = torch.randn(3, 4)
            step()
            schedule.step()


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_half_width_parameters(name: str) -> None:
    case = (name, {"lr": 0.01, "foreach": True})
    own, _ = stepped(case, as_it_is, dtype=torch.bfloat16)
    ours, _ = stepped(case, whole("aot_eager"), dtype=torch.bfloat16)
    for one, other in zip(own, ours, strict=True):
        torch.testing.assert_close(other, one, rtol=2e-2, atol=2e-2)


def test_a_gradient_that_appears_is_seen() -> None:
    owned = parameters()
    optimizer = torch.optim.SGD(owned, lr=0.1)
    step = stator.compile(optimizer.step, backend="eager", fullgraph=True)
    for missing in (0, 1, None):
        give_gradients(owned, 0)
        if missing is not None:
            owned[missing].grad = None
        before = [parameter.detach().clone() for parameter in owned]
        step()
        changed = [not torch.equal(one, other) for one, other in zip(owned, before, strict=True)]
        assert changed == [at != missing for at in range(3)]


def test_capturable_reads_as_it_is_outside_of_steps() -> None:
    owned = parameters()
    optimizer = torch.optim.Adam(owned, lr=0.1)

    @stator.compile(backend="eager", fullgraph=True)
    def step() -> bool:
        optimizer.step()
        return optimizer.param_groups[0]["capturable"]

    for turn in range(3):
        give_gradients(owned, turn)
        assert step() is False
    assert optimizer.param_groups[0]["capturable"] is False


@pytest.mark.parametrize("name", ["Adam", "RMSprop", "ASGD"])
@pytest.mark.parametrize("fails", [False, True])
def test_capturable_reads_as_it_is_in_closures_and_behind_steps_that_failed(name: str, fails: bool) -> None:
    owned = parameters()
    optimizer = getattr(torch.optim, name)(owned, lr=0.1)
    seen: list[Any] = []

    def closure() -> torch.Tensor:
        seen.append(optimizer.param_groups[0]["capturable"])
        if fails:
            raise ValueError
        return owned[0].sum()

    @stator.compile(backend="eager", fullgraph=True)
    def step() -> bool:
        with contextlib.suppress(ValueError):
            optimizer.step(closure)
        return optimizer.param_groups[0]["capturable"]

    for turn in range(2):
        give_gradients(owned, turn)
        assert step() is False
    assert seen == [False, False] and optimizer.param_groups[0]["capturable"] is False


@pytest.mark.parametrize("name", ["ASGD", "Rprop"])
def test_state_begins_with_what_the_program_has_set(name: str) -> None:
    """Their state holds the learning rate."""

    def run(compiled: Any) -> Any:
        owned = parameters()
        optimizer = getattr(torch.optim, name)(owned, lr=0.1)

        def step() -> None:
            optimizer.param_groups[0]["lr"] = 0.01
            optimizer.step()

        for turn in range(2):
            give_gradients(owned, turn)
            compiled(step)()
        return owned, optimizer

    assert_same(run(as_it_is), run(whole("eager")))


def test_a_group_that_lacks_something_fails_where_the_step_comes_to_it() -> None:
    def run(compiled: Any) -> Any:
        owned = parameters()
        optimizer = torch.optim.SGD(owned[:2], lr=0.1)
        optimizer.param_groups.append({"params": owned[2:]})

        def step() -> Any:
            try:
                optimizer.step()
            except KeyError as error:
                return error.args

        give_gradients(owned, 0)
        return compiled(step)(), [one.detach() for one in owned]

    (expected, own), (found, ours) = run(as_it_is), run(whole("eager"))
    assert found == expected
    assert all(map(torch.equal, own, ours))


@pytest.mark.parametrize("options", [{}, {"nesterov": True, "weight_decay": 0.1}, {"maximize": True}, {"fused": True}])
def test_momentum_begins_as_the_first_gradient(options: dict[str, Any]) -> None:
    """Bit by bit, signs of zeros included, and in the memory format of eager's."""

    def run(compiled: Any) -> list[torch.Tensor]:
        owned = [torch.nn.Parameter(torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)))]
        owned[0].data = owned[0].data.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(owned, lr=0.1, momentum=0.9, **options)
        give_gradients(owned, 1)
        owned[0].grad = owned[0].grad.to(memory_format=torch.channels_last)  # type: ignore[union-attr]
        owned[0].grad[0, 0, 0, :2] = torch.tensor([0.0, -0.0])
        compiled(optimizer.step)()
        return [owned[0].detach(), optimizer.state[owned[0]]["momentum_buffer"]]

    for one, other in zip(run(as_it_is), run(whole("eager")), strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
        assert one.stride() == other.stride()


def test_step_hooks_run() -> None:
    seen: list[str] = []
    owned = parameters()
    optimizer = torch.optim.SGD(owned, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    step = stator.compile(optimizer.step, backend="eager")
    for turn in range(2):
        give_gradients(owned, turn)
        step()
    assert seen == ["before", "after"] * 2


def test_two_hundred_parameters_need_few_checks() -> None:
    owned = [torch.nn.Parameter(torch.ones(2)) for _ in range(200)]
    optimizer = torch.optim.AdamW(owned, lr=0.1)
    step = stator.compile(optimizer.step, backend="eager", fullgraph=True)
    counters.clear()
    for _ in range(3):
        for parameter in owned:
            parameter.grad = torch.ones(2)  # new gradient tensors in each step: no guard fixes them
        step()
    assert counters.counts["dynamo.compiled_frames"] == 1


def test_a_program_that_looks_at_the_state_sees_it_as_eager_does() -> None:
    def run(compiled: Any) -> list[Any]:
        owned = parameters()
        optimizer = torch.optim.Adam(owned, lr=0.1)

        def step() -> tuple[int, int]:
            before = len(optimizer.state)
            optimizer.step()
            return before, len(optimizer.state)

        run_step, seen = compiled(step), []
        for turn in range(3):
            give_gradients(owned, turn)
            seen.append(run_step())
        return [*seen, *owned]

    for one, other in zip(run(as_it_is), run(whole("eager")), strict=True):
        torch.testing.assert_close(torch.as_tensor(other), torch.as_tensor(one))


def test_parameters_that_get_gradients_later_get_state_then() -> None:
    def run(compiled: Any) -> list[Any]:
        owned = parameters()
        optimizer = torch.optim.Adam(owned, lr=0.1)
        run_step = compiled(optimizer.step)
        for turn in range(4):
            give_gradients(owned, turn)
            if turn < 2:
                owned[1].grad = None
            run_step()
        return [*owned, *(optimizer.state[one]["step"] for one in owned)]

    for one, other in zip(run(as_it_is), run(whole("eager")), strict=True):
        torch.testing.assert_close(other, one)


def test_parameters_that_become_one_are_noticed() -> None:
    """The graph writes to many tensors; that they are distinct is one guard."""
    tensors = [torch.ones(2) for _ in range(30)]

    @stator.compile(backend="eager", fullgraph=True)
    def add_to_all() -> None:
        for tensor in tensors:
            tensor.add_(1)

    add_to_all()
    assert all(tensor[0] == 2 for tensor in tensors)
    tensors[7] = tensors[20]
    add_to_all()
    assert tensors[7][0] == 4
    assert all(tensor[0] == 3 for at, tensor in enumerate(tensors) if at not in (7, 20))


@pytest.mark.parametrize("form", [{}, {"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_gradients_are_left_as_eager_leaves_them(form: dict[str, Any]) -> None:
    """Eager's lists for Nesterov's momentum leave the update in the gradients; its single steps do not."""
    case = ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, **form})
    left = [[owned.grad for owned in stepped(case, run, 2)[0][:1]] for run in (as_it_is, whole("aot_eager"))]
    torch.testing.assert_close(*left, **TOLERANCE)
