"""`stator.explain`: counts, reasons with places, printing, and that nothing is left behind."""

from __future__ import annotations

import sys

import pytest
import torch

import stator


def breaks_twice(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print(end="")
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
