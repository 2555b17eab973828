"""Processes in which torch.compile was used too: it patches classes of torch, which capture looks through."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._dynamo import mutation_guard

import stator
from stator.base import counters
from stator.dynamo.host.compile_directives import without_module_tags


@pytest.fixture(scope="module", autouse=True)
def torch_compile_was_used() -> None:
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:3]:  # slicing makes a new ModuleList
            x = layer(x)
        return x


def test_making_a_module_list_while_capturing_does_not_break() -> None:
    model, x = Layers(), torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(stator.compile(model, fullgraph=True)(x), model(x))


def test_questions_and_advice_by_torch_compiles_own_names() -> None:
    import torch._dynamo

    def function(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.mark_static(x, 0)
        return x + 1 if torch._dynamo.is_compiling() else x - 1

    x = torch.randn(3)
    torch.testing.assert_close(stator.compile(function, fullgraph=True)(x), x + 1)


_AFTER_A_REFUSAL = """
import torch, stator

def program(x):
    return torch.cond(x.sum() > 0, lambda a: a, lambda a: a + 1, (x,))

for function in (program, stator.compile(program, backend="eager"), program):
    try:
        function(torch.ones(3))
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_compiler_that_puts_its_hook_over_ours_again() -> None:
    """torch.compile leaves its evaluator of frames in place when it fails, and wraps ours when it is used in a break:
    two evaluators must not call each other for ever. Refused are branches that give back what they are given."""
    ended = subprocess.run(
        [sys.executable, "-c", _AFTER_A_REFUSAL], capture_output=True, text=True, timeout=240, check=True
    )
    assert ended.stdout.split() == ["UncapturedHigherOrderOpError"] * 3


def test_either_name_sets_the_seed() -> None:
    assert torch.manual_seed is not torch.random.manual_seed  # importing torch's compiler replaced one

    def outer_name(x: torch.Tensor, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return x + torch.rand(3)

    def inner_name(x: torch.Tensor, seed: int) -> torch.Tensor:
        torch.random.manual_seed(seed)
        return x + torch.rand(3)

    x = torch.ones(3)
    for program in (outer_name, inner_name):
        compiled = stator.compile(program, backend="eager")
        torch.testing.assert_close(compiled(x, 3), program(x, 3), rtol=0, atol=0)


def test_a_version_that_makes_modules_outlives_the_first_use_of_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile replaces methods of nn.Module when it first compiles, to tag modules that are made later."""

    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(torch.nn.Module, name, without_module_tags(getattr(torch.nn.Module, name)))
    monkeypatch.setattr(torch.nn.Module, "___needs_generation_tag_patch", True, raising=False)
    model, x = Layers(), torch.randn(2, 4)
    compiled = stator.compile(model)
    compiled(x)
    mutation_guard.install_generation_tagging_init()
    assert torch.nn.Module.__init__ is not without_module_tags(torch.nn.Module.__init__)
    before = counters.counts["dynamo.compiled_frames"]
    torch.testing.assert_close(compiled(x), model(x))
    assert counters.counts["dynamo.compiled_frames"] == before
