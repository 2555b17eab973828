"""`stator.explain`: counts, reasons with places, printing, and that nothing is left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import stator
from stator.aot.partition import call_costs


def breaks_twice(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    time.sleep(0)
    y = y * 2 - 1
    if y.sum() > 0:
        return y.sin()
    return y.cos()


def test_counts_reasons_and_places() -> None:
    found = stator.explain(breaks_twice)(torch.ones(3))
    first = breaks_twice.__code__.co_firstlineno
    assert (found.graph_count, found.graph_break_count, len(found.graphs)) == (3, 2, 3)
    # add; mul, sub, sum, gt; sin. 3.13 compares and tests in one instruction, which is where the graph ends
    assert found.op_count == (6 if sys.version_info < (3, 13) else 5)
    assert [reason.place.line for reason in found.break_reasons] == [first + 2, first + 4]
    assert all(reason.place.filename == __file__ for reason in found.break_reasons)
    assert found.out_guards and torch.equal(found.result, breaks_twice(torch.ones(3)))


def test_prints_a_report() -> None:
    text = str(stator.explain(breaks_twice)(torch.ones(3)))
    line = breaks_twice.__code__.co_firstlineno + 2
    assert "graphs: 3" in text and "graph breaks: 2" in text and f"line {line}, in breaks_twice" in text
    assert "data-dependent-jump" in text and "sin" in text


@pytest.mark.fixed_sizes
def test_names_graphs_that_are_too_small_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_costs, "LITTLE_DATA", 1 << 15)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin().tanh()
        time.sleep(0)
        return (y.sin() * x).exp() * y + y.cos()

    found = stator.explain(function)(torch.ones(3, requires_grad=True))
    ((number, place, reason),) = found.left_to_eager
    assert (number, place.line) == (0, function.__code__.co_firstlineno + 1) and "in the forward" in reason
    assert f"graph 0, {place}: {reason}" in str(found)
    assert not stator.explain(function)(torch.ones(3)).left_to_eager


def test_breaks_are_ranked_by_their_cost() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            x = x + i
            time.sleep(0.02)
            if x.sum() > 1e9:
                x = x - 1
        return x

    start = time.perf_counter()
    found = stator.explain(function)(torch.ones(100))
    elapsed = time.perf_counter() - start  # on a busy machine a sleep takes as long as it likes
    slow, jump = found.break_costs
    assert (slow.reason.kind, slow.passes) == ("call-builtin", 3) and 0.06 < slow.native_seconds < elapsed
    assert (jump.reason.kind, jump.passes, jump.native_seconds) == ("data-dependent-jump", 3, 0)
    assert slow.carried_bytes == 3 * 400 and slow.seconds > slow.native_seconds
    text = str(found)
    assert text.index("call-builtin") < text.index("data-dependent-jump") and "passed 3 times" in text
    assert all(cost.reason.hint for cost in found.break_costs)


def test_what_is_compiled_inside_a_native_call_is_not_its_cost() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        time.sleep(0.03)
        return x * 2

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    found = stator.explain(outer)(torch.ones(3))
    by_place = {cost.reason.place.function.split(".")[-1]: cost for cost in found.break_costs}
    slept = by_place["inner"].native_seconds
    assert slept > 0.03
    assert sum(cost.native_seconds for cost in found.break_costs) < 2 * slept


def test_modules_methods_and_compiled_things() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    x = torch.randn(2, 3)
    for target in (model, stator.compile(model, backend="eager"), stator.compile(lambda x: model(x), backend="eager")):
        found = stator.explain(target)(x)
        assert (found.graph_count, found.graph_break_count, found.op_count) == (1, 0, 2)
        assert torch.equal(found.result, model(x))


def test_leaves_no_state_behind() -> None:
    graphs = []
    compiled = stator.compile(breaks_twice, backend=lambda gm, inputs: graphs.append(gm) or gm.forward)
    stator.explain(compiled)(torch.ones(3))
    assert graphs == []
    compiled(torch.ones(3))
    assert len(graphs) == 3


def test_errors_of_the_program_come_through() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        stator.explain(fails)(torch.ones(1))


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(stator.UsageError, match="takes a function or module"):
        stator.explain(3)  # type: ignore[arg-type]


@pytest.fixture
def perceptron() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))


def test_memory_of_a_training_step_is_predicted_and_measured(perceptron: torch.nn.Module) -> None:
    x = torch.randn(1024, 256)
    found = stator.explain(lambda x: perceptron(x).square().mean(), memory=True)(x)
    found.result.backward()
    (memory,) = found.memory
    weights = sum(parameter.numel() * 4 for parameter in perceptron.parameters())
    assert memory.saved is not None and 0 < memory.saved <= 1024 * (2 * 512 + 256) * 4 + 4096
    assert list(memory.parts) == ["forward", "backward"]
    assert memory.parts["backward"].predicted > weights  # all gradients
    scratch = 160_000 * torch.get_num_threads()  # of the library that multiplies matrices, for each thread
    for part in memory.parts.values():
        assert part.measured is not None
        assert part.predicted is not None and part.predicted <= part.measured <= part.predicted + scratch
    text = str(found)
    assert "  forward: " in text and "  backward: " in text and "MB predicted" in text and "MB measured" in text
    assert "for its backward" in text

    gradients = [parameter.grad for parameter in perceptron.parameters()]
    perceptron.zero_grad()
    perceptron(x).square().mean().backward()
    for actual, parameter in zip(gradients, perceptron.parameters(), strict=True):
        torch.testing.assert_close(actual, parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_report_of_memory_names_what_the_backward_computes_again(perceptron: torch.nn.Module) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(perceptron, x, use_reentrant=False).square().mean()

    found = stator.explain(step, memory=True)(torch.randn(64, 256))
    assert found.memory[0].again == ()  # no backward was compiled yet
    found.result.backward()
    assert {"aten.addmm.default", "aten.gelu.default"} <= set(found.memory[0].again)
    assert "computed again in the backward: " in str(found) and "aten.gelu.default" in str(found)


def test_memory_of_a_step_that_takes_its_gradients_inside(perceptron: torch.nn.Module) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = perceptron(x).square().mean()
        loss.backward()
        return loss.detach()

    found = stator.explain(step, memory=True)(torch.randn(1024, 256))
    (memory,) = found.memory
    whole = memory.parts["whole"]
    assert list(memory.parts) == ["whole"] and whole.measured is not None
    assert whole.predicted <= whole.measured <= 1.05 * whole.predicted


def test_memory_under_exact_rounding_is_predicted_and_measured(perceptron: torch.nn.Module) -> None:
    x = torch.randn(1024, 256)
    step = lambda x: perceptron(x).square().mean()  # noqa: E731
    found = stator.explain(step, memory=True, options={"exact_rounding": True})(x)
    found.result.backward()
    gradients = [parameter.grad for parameter in perceptron.parameters()]
    (memory,) = found.memory
    assert list(memory.parts) == ["forward", "backward"]
    assert all(part.predicted and part.measured for part in memory.parts.values())
    weights = sum(parameter.numel() * 4 for parameter in perceptron.parameters())
    assert memory.saved == (512 + 512 + 256) * 1024 * 4  # of both sides of the GELU, and the result
    backward = memory.parts["backward"].measured
    assert backward is not None and backward > memory.saved + weights
    assert "not predicted" not in str(found) and "MB measured" in str(found)

    perceptron.zero_grad()
    step(x).backward()
    for actual, parameter in zip(gradients, perceptron.parameters(), strict=True):
        assert torch.equal(actual, parameter.grad)


def test_options_of_explain_are_checked() -> None:
    with pytest.raises(stator.UsageError, match="did you mean 'exact_rounding'"):
        stator.explain(torch.sin, options={"exact_roundin": True})


def test_memory_says_when_no_backward_ran(perceptron: torch.nn.Module) -> None:
    found = stator.explain(perceptron, memory=True)(torch.randn(4, 256))
    assert list(found.memory[0].parts) == ["forward"] and "backward: did not run" in str(found)
    with torch.no_grad():
        found = stator.explain(perceptron, memory=True)(torch.randn(4, 256))
    assert list(found.memory[0].parts) == ["whole"] and "did not run" not in str(found)


def test_memory_is_only_told_when_asked_for(perceptron: torch.nn.Module) -> None:
    found = stator.explain(perceptron)(torch.randn(4, 256))
    assert found.memory == [] and "memory" not in str(found)


def test_memory_is_not_measured_under_another_profiler(perceptron: torch.nn.Module) -> None:
    with torch.autograd.profiler.profile():
        found = stator.explain(perceptron, memory=True)(torch.randn(4, 256))
    assert found.memory[0].parts["forward"].measured is None and "not measured" in str(found)


def _halves(x: torch.Tensor) -> torch.Tensor:
    y = x / 2
    stator.graph_break()
    return y + 1


def _in_a_call(x: torch.Tensor) -> torch.Tensor:
    return _halves(x + 1) * 3


class _BreakingBlock:
    def __enter__(self) -> None:
        stator.graph_break()

    def __exit__(self, *raised: object) -> None:
        stator.graph_break()


def _in_a_with_block(x: torch.Tensor) -> torch.Tensor:
    with _BreakingBlock():
        x = x * 2
    return x + 1


@pytest.mark.parametrize("program", [_in_a_call, _in_a_with_block])
def test_breaks_in_functions_that_the_program_calls(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(3)
    found = stator.explain(program)(x)
    assert torch.equal(found.result, program(x))
    assert found.graph_break_count == len(found.break_reasons) >= 1


def test_sizes_that_may_change_and_lines_that_need_some() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + x.shape[0]
        return y if x.shape[1] > 3 else y * 2

    found = str(stator.explain(program, dynamic=True)(torch.randn(5, 7)))
    line = program.__code__.co_firstlineno + 2
    assert "for many values of x.size(0), x.size(1)" in found
    assert "only where x.size(1) >= 4" in found and f"line {line}" in found
