"""Programs of tests/programs with all of their tensors on the device: compiled to kernels, they do as eager there."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.differential import FUSED
from tests.gpu.device import DEVICE
from tests.gpu.moved import TESTS, module_of, on_device
from tests.programs.shapes.cases import Case, cases
from tests.scenarios import Scenario, check, scenarios

import stator

FOLDERS = ("programs/autograd", "programs/changes")


def with_scenarios() -> list[Any]:
    found = []
    for path in sorted(path for folder in FOLDERS for path in (TESTS / folder).glob("test_*.py")):
        if "scenarios(globals())" in path.read_text():
            module = module_of(str(path))
            for one in scenarios(vars(module)):
                found.append(pytest.param(module, *one.values, id=f"{path.stem.removeprefix('test_')}.{one.id}"))
    return found


@pytest.mark.parametrize(("module", "scenario"), with_scenarios())
def test_scenario(module: ModuleType, scenario: Scenario) -> None:
    with on_device(module):
        check(scenario, "inductor", tolerance=FUSED)


@pytest.mark.parametrize("dynamic", [True, None])
@settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), max_examples=15)
@given(case=cases())
def test_random_program_over_random_shapes(dynamic: bool | None, case: Case) -> None:
    with torch.device(DEVICE):
        module_of("programs/shapes/test_random_shapes.py").check(case, "inductor", dynamic)


RECURRENT = module_of("programs/test_recurrent_layers.py")


@pytest.mark.parametrize(("kind", "given"), [pytest.param(*case.values, id=case.id) for case in RECURRENT.CASES])
def test_recurrent_layers(kind: str, given: dict[str, Any]) -> None:
    """Dropout draws eager's numbers; cuDNN's layers stay whole."""
    with torch.device(DEVICE):
        module = RECURRENT.layers(kind, **given)
        x = torch.randn((2, 5, 4), requires_grad=True)
        compiled = stator.compile(module, options={"exact_random": True})
        found, expected = (RECURRENT.step(call, module, x) for call in (compiled, module))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype is theirs.dtype and mine.shape == theirs.shape
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()
