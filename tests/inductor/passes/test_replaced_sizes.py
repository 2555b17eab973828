"""Symbols of a graph that others replace: the values come from the graph's own inputs."""

import pytest
import torch

import stator


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("shapes", [((5, 5, 5), (4, 3, 2)), ((2, 6, 3), (7, 2, 4))])
def test_a_size_that_another_graph_s_input_tells_is_that_of_an_own_input(shapes):
    def variance(x, mask):  # counts the mask's elements in a graph without x, whose sizes equal the mask's
        return torch.masked.var(x, 1, mask=mask, unbiased=False)

    compiled = stator.compile(variance, dynamic=True)
    for shape in shapes:
        x, mask = torch.randn(shape, requires_grad=True), torch.rand(shape) > 0.3
        found, expected = compiled(x, mask), variance(x, mask)
        torch.testing.assert_close(found, expected, equal_nan=True)
        torch.testing.assert_close(
            torch.autograd.grad(found.nansum(), x)[0], torch.autograd.grad(expected.nansum(), x)[0], equal_nan=True
        )
