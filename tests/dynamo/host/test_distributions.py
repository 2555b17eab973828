"""torch.distributions in captured code, with their validation of arguments: one graph, equal to eager to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributions as D
from tests.differential import Counts

import stator

_PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "categorical": lambda x: (
        D.Categorical(logits=x).sample(),
        D.Categorical(logits=x).log_prob(torch.tensor([0, 1, 2])),
        D.Categorical(probs=x.exp()).entropy(),
    ),
    "bernoulli": lambda x: (D.Bernoulli(logits=x).sample(), D.Bernoulli(x.sigmoid()).log_prob(torch.ones(3, 4))),
    "normal": lambda x: (D.Normal(x, x.exp()).rsample(), D.kl_divergence(D.Normal(x, 1.0), D.Normal(0.0, x.exp()))),
    "multivariate": lambda x: D.MultivariateNormal(x, torch.eye(4)).log_prob(x * 2),
    "relaxed": lambda x: D.RelaxedOneHotCategorical(torch.tensor(0.5), logits=x).rsample(),
    "transformed": lambda x: D.TransformedDistribution(
        D.Normal(torch.zeros(4), 1.0), [D.transforms.TanhTransform(cache_size=1)]
    ).log_prob(x.tanh()),
    "intervals": lambda x: (
        D.Uniform(-x.exp(), x.exp()).log_prob(x * 0),
        D.Gamma(x.exp(), 1.0).log_prob(x.exp()),
        D.Beta(x.exp(), 2.0).mean,
    ),
    "mixture": lambda x: D.MixtureSameFamily(D.Categorical(logits=x), D.Normal(x, 1.0)).log_prob(torch.zeros(3)),
    "counts": lambda x: (D.OneHotCategorical(logits=x).sample(), D.Poisson(x.exp()).log_prob(torch.ones(3, 4))),
}


@pytest.fixture(autouse=True)
def _validated() -> Iterator[None]:
    """torch.compile switches validation off for the process, as soon as anything uses it."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_in_one_graph_as_in_eager(name: str) -> None:
    program = _PROGRAMS[name]
    whole = name != "transformed" or not hasattr(D.transforms, "weakref")  # to what the program makes: that breaks
    compiled = stator.compile(program, backend="eager", fullgraph=whole)
    for seed in range(2):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        outcomes = []
        for function in (program, compiled):
            torch.manual_seed(seed)
            found = torch.utils._pytree.tree_leaves(function(x))
            able = [one for one in found if one.requires_grad]
            gradient = torch.autograd.grad(sum(one.sum() for one in able), x) if able else ()
            outcomes.append([*found, *gradient])
        assert all(map(torch.equal, *outcomes)), name


def test_one_graph_serves_all_sizes() -> None:
    program = lambda x: D.Independent(D.Gamma(x.exp(), x.exp()), 1).log_prob(x.exp())  # noqa: E731
    compiled, counts = stator.compile(program, dynamic=True), Counts()
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), program(x))
    assert (counts.compilations, counts.breaks) == (1, 0)


@pytest.mark.parametrize("dynamic", [None, True])
def test_arguments_are_validated(dynamic: bool | None) -> None:
    compiled = stator.compile(lambda x: D.Normal(x, x).log_prob(x), backend="eager", fullgraph=True, dynamic=dynamic)
    compiled(torch.ones(3))
    with pytest.raises(ValueError, match="to satisfy the constraint GreaterThan"):
        compiled(-torch.ones(3))
