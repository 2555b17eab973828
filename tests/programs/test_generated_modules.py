"""Generated modules that change themselves: results and state are those of eager."""

from __future__ import annotations

import copy
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.differential import observe, written

import stator

sys.path.insert(0, str(Path(__file__).parent))
from generate_modules import generate_module


def state(module: Any) -> Any:
    """Everything that a generated module may have changed in itself."""
    own = {name: value for name, value in vars(module).items() if not name.startswith(("_parameters", "_modules"))}
    shown = {name: value for name, value in own.items() if isinstance(value, int | float | list | dict | torch.Tensor)}
    return written([module.state_dict(), shown, module.settings.names, [part.calls for part in module.parts]])


@pytest.mark.filterwarnings("ignore:.*recompile_limit:RuntimeWarning")  # counters in attributes are specialised
@pytest.mark.parametrize(
    ("backend", "seed"), [*(("eager", n) for n in range(25)), *(("aot_eager", n) for n in (25, 26))]
)
def test_generated_module_keeps_its_state_as_eager_does(backend: str, seed: int) -> None:
    namespace: dict[str, Any] = {"__name__": f"generated_module_{seed}"}
    sys.modules[namespace["__name__"]] = types.ModuleType(namespace["__name__"])  # dataclasses look there
    exec(compile(generate_module(seed), f"<generated module {seed}>", "exec"), namespace)
    expected = namespace["Net"]()
    module = copy.deepcopy(expected)
    compiled = stator.compile(module, backend=backend)
    for call in range(5):
        if call == 3:
            expected.eval()
            compiled.eval()
        x = torch.rand(4 if call == 2 else 2, 3, generator=torch.Generator().manual_seed(call)) - 0.5
        flag = call == 1
        found, wanted = (observe(partial(one, flag=flag), (x.clone(), [])) for one in (compiled, expected))
        assert found.data() == wanted.data(), f"call {call}"
        assert state(module) == state(expected), f"state after call {call}"
    stator.reset()
