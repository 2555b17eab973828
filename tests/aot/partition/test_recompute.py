"""The choice of saved values, on graphs where the right choice is plain."""

from __future__ import annotations

from typing import Any

import pytest
from tests.aot.partition.joint_graphs import HandMade, Writer, assert_halves_compute, aten
from torch import fx

from stator.aot.partition.budget import choose_saved, fill_knapsack
from stator.aot.partition.forward_backward_sets import divide_joint
from stator.aot.partition.liveness import estimate_peak
from stator.aot.partition.partition import partition
from stator.aot.partition.recompute import HOLDING, HOLDING_AT_PEAK, RecomputeProblem

N = 256  # large enough for bytes to outweigh the fixed cost of a tensor


def kept(joint: HandMade, budget: float = 1.0) -> set[Any]:
    """Operators whose results are kept, and the names of inputs that are."""
    chosen = choose_saved(joint, divide_joint(joint), budget).saved
    return {node.name if node.op == "placeholder" else node.target for node in chosen}


def check_gradients(joint: HandMade, budget: float = 1.0) -> fx.GraphModule:
    """Compare both halves with the joint graph; returns the backward."""
    halves = partition(joint, budget)
    assert_halves_compute(joint, halves)
    return halves.backward


def pointwise_chain() -> HandMade:
    """value = sum of sin(2 * exp(x) + 1): eager keeps two intermediates."""
    w = Writer()
    x, tangent = w.primal(N, N), w.tangent()
    grown = w.call(aten.exp.default, x)
    inner = w.call(aten.add.Tensor, w.call(aten.mul.Tensor, grown, 2), 1)
    value = w.call(aten.sum.default, w.call(aten.sin.default, inner))
    w.backward = True
    to_inner = w.call(aten.mul.Tensor, w.call(aten.expand.default, tangent, [N, N]), w.call(aten.cos.default, inner))
    return w.joint([value], [w.call(aten.mul.Tensor, w.call(aten.mul.Tensor, to_inner, 2), grown)])


def products(layers: int = 12) -> HandMade:
    """A tower of x -> sin(x @ w) / 100, with something like the gradients of all weights, which are smaller than x."""
    w = Writer()
    x = w.primal(8 * N, N)
    weights = [w.primal(N, N) for _ in range(layers)]
    tangent = w.tangent(8 * N, N)
    inputs, grown = [x], []
    for weight in weights:
        grown.append(w.call(aten.sin.default, w.call(aten.mm.default, inputs[-1], weight)))
        inputs.append(w.call(aten.mul.Tensor, grown[-1], 0.01))
    w.backward = True
    gradients, flowing = [], tangent
    for index in reversed(range(layers)):
        flowing = w.call(aten.mul.Tensor, w.call(aten.mul.Tensor, flowing, 0.01), grown[index])
        gradients.append(w.call(aten.mm.default, w.call(aten.t.default, inputs[index]), flowing))
        flowing = w.call(aten.mm.default, flowing, w.call(aten.t.default, weights[index]))
    return w.joint([inputs[-1]], gradients)


def test_pointwise_operators_are_computed_again() -> None:
    joint = pointwise_chain()
    assert kept(joint) == {"primal_1"}
    check_gradients(joint)


def test_products_are_not_computed_again() -> None:
    joint = products()
    backward = check_gradients(joint)
    targets = [node.target for node in backward.graph.nodes]
    assert targets.count(aten.mm.default) == 23  # two for each layer but the first, which needs one
    assert choose_saved(joint, divide_joint(joint)).saved_bytes > 0


def test_small_results_of_reductions_are_kept() -> None:
    w = Writer()
    x, tangent = w.primal(N, N), w.tangent(N, N)
    inner = w.call(aten.mm.default, x, x)
    largest = w.call(aten.amax.default, inner, [1], True)
    value = w.call(aten.sub.Tensor, inner, largest)
    w.backward = True
    joint = w.joint([value], [w.call(aten.mul.Tensor, tangent, w.call(aten.mul.Tensor, inner, largest))])
    assert kept(joint) == {aten.mm.default, aten.amax.default}
    check_gradients(joint)


def test_the_narrower_of_two_values_is_kept() -> None:
    w = Writer()
    x, tangent = w.primal(N, N), w.tangent(N, N)
    inner = w.call(aten.mm.default, x, x)
    mask = w.call(aten.gt.Scalar, w.call(aten.rand_like.default, inner), 0.5)
    value = w.call(aten.mul.Tensor, inner, mask)
    w.backward = True
    joint = w.joint([value], [w.call(aten.mul.Tensor, tangent, mask)])
    assert kept(joint) == {aten.gt.Scalar}
    check_gradients(joint)


def test_what_is_returned_anyway_is_preferred() -> None:
    w = Writer()
    x, tangent = w.primal(N, N), w.tangent(N, N)
    product = w.call(aten.mm.default, x, x)
    shifted = w.call(aten.add.Tensor, product, 1)
    value = w.call(aten.sin.default, shifted)
    w.backward = True
    joint = w.joint([product, value], [w.call(aten.mul.Tensor, tangent, w.call(aten.cos.default, shifted))])
    choice = choose_saved(joint, divide_joint(joint))
    assert [node.target for node in choice.saved] == [aten.mm.default]
    assert choice.saved_bytes == 0
    check_gradients(joint)


def activations(layers: int, last: int) -> HandMade:
    """A tower of x -> exp(x @ w), whose last layer has `last` columns: kept values, then one large gradient."""
    w = Writer()
    widths = [N] * layers + [last]
    x, tangent = w.primal(N, N), None
    weights = [w.primal(N, width) for width in widths]
    inputs, products = [x], []
    for weight in weights:
        products.append(w.call(aten.mm.default, inputs[-1], weight))
        inputs.append(w.call(aten.exp.default, w.call(aten.sin.default, products[-1])))
    tangent = w.tangent(N, last)
    w.backward = True
    gradients, flowing = [], tangent
    for at in reversed(range(len(widths))):
        slope = w.call(aten.cos.default, products[at])
        flowing = w.call(aten.mul.Tensor, flowing, w.call(aten.mul.Tensor, slope, inputs[at + 1]))
        gradients.append(w.call(aten.mm.default, w.call(aten.t.default, inputs[at]), flowing))
        flowing = w.call(aten.mm.default, flowing, w.call(aten.t.default, weights[at]))
    return w.joint([inputs[-1]], gradients)


@pytest.mark.parametrize(("last", "again"), [(8, True), (40 * N, False)])
def test_more_is_computed_again_only_where_that_lowers_the_peak(last: int, again: bool) -> None:
    joint = activations(4, last)
    sides = divide_joint(joint)
    problem = RecomputeProblem(joint, sides, library_again=False)
    plain, lean = problem.solve(HOLDING), problem.solve(HOLDING_AT_PEAK)
    assert lean.saved_bytes < plain.saved_bytes
    assert choose_saved(joint, sides) == (lean if again else plain)
    check_gradients(joint)


@pytest.mark.parametrize("budget", [0.0, 0.2, 0.5, 0.8])
def test_a_budget_is_kept(budget: float) -> None:
    joint = products()
    sides = divide_joint(joint)
    held = RecomputeProblem(joint, sides, library_again=True).held
    least, peak, most = (estimate_peak(sides, choose_saved(joint, sides, b).saved, held) for b in (0.0, budget, 1.0))
    assert least < 0.7 * most
    assert peak <= least + budget * (most - least)
    check_gradients(joint, budget)


def test_a_smaller_budget_costs_more() -> None:
    joint = products()
    sides = divide_joint(joint)
    costs = [choose_saved(joint, sides, budget).recompute_cost for budget in (1.0, 0.7, 0.4, 0.0)]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


def test_random_numbers_are_kept_under_any_budget() -> None:
    w = Writer()
    x, tangent = w.primal(N, N), w.tangent(N, N)
    noise = w.call(aten.rand_like.default, x)
    value = w.call(aten.mul.Tensor, x, noise)
    w.backward = True
    joint = w.joint([value], [w.call(aten.mul.Tensor, tangent, noise)])
    assert kept(joint, 0.0) == {aten.rand_like.default}
    check_gradients(joint, 0.0)


def test_a_budget_outside_of_its_range_is_refused() -> None:
    joint = pointwise_chain()
    with pytest.raises(ValueError, match="between 0 and 1"):
        partition(joint, 1.5)


def regions() -> HandMade:
    """Three checkpointed layers of x -> sin(x @ w) @ w."""
    w = Writer()
    x, weight, tangent = w.primal(N, N), w.primal(N, N), w.tangent(N, N)
    inputs, products, waves = [x], [], []
    for number in range(3):
        w.checkpoint = number
        products.append(w.call(aten.mm.default, inputs[-1], weight))
        waves.append(w.call(aten.sin.default, products[-1]))
        inputs.append(w.call(aten.mm.default, waves[-1], weight))
        w.checkpoint = None
    w.backward = True
    gradients, flowing = [], tangent
    turned = w.call(aten.t.default, weight)
    for number in reversed(range(3)):
        gradients.append(w.call(aten.mm.default, w.call(aten.t.default, waves[number]), flowing))
        inner = w.call(
            aten.mul.Tensor, w.call(aten.mm.default, flowing, turned), w.call(aten.cos.default, products[number])
        )
        gradients.append(w.call(aten.mm.default, w.call(aten.t.default, inputs[number]), inner))
        flowing = w.call(aten.mm.default, inner, turned)
    return w.joint([inputs[-1]], [*gradients, flowing])


def test_of_checkpoint_regions_only_the_inputs_are_kept() -> None:
    joint = regions()
    saved = choose_saved(joint, divide_joint(joint)).saved
    produced = [node for node in saved if node.op != "placeholder"]
    assert [node.meta["checkpoint"] for node in produced] == [0, 1]
    assert all(user.meta.get("checkpoint") != node.meta["checkpoint"] for node in produced for user in node.users)
    check_gradients(joint)


def test_a_region_is_computed_again_just_before_its_gradients() -> None:
    backward = partition(regions()).backward
    waves = [index for index, node in enumerate(backward.graph.nodes) if node.target is aten.sin.default]
    weights = [index for index, node in enumerate(backward.graph.nodes) if node.target is aten.cos.default]
    assert len(waves) == 3
    assert waves[0] < weights[0] < waves[1] < weights[1] < waves[2] < weights[2]


def test_knapsack_takes_the_best_that_fits() -> None:
    assert fill_knapsack([10, 9, 9], [100, 60, 60], 120) == [1, 2]
    assert fill_knapsack([5], [10], 9) == []
    assert fill_knapsack([], [], 100) == []
