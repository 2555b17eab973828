"""Captured code watches all that it has read: after each change the next call does as eager.

Each generator of the files `reads_of_*.py` is a program and a history: it yields the program, a function of a tensor,
and then stops once more after each change but the last.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.differential import observe, written

import stator
from stator.base import config

END = object()
FILES = sorted(Path(__file__).parent.glob("reads_of_*.py"))


def load(path: Path) -> ModuleType:
    """Load the module anew, since programs change it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for the names of annotations
    spec.loader.exec_module(module)
    return module


def histories(path: Path) -> list[Any]:
    found = vars(load(path)).values()
    return [pytest.param(path, one.__name__, id=one.__name__) for one in found if inspect.isgeneratorfunction(one)]


def run(path: Path, name: str, *, compiled: bool) -> list[Any]:
    torch.manual_seed(0)
    history, ended, found = getattr(load(path), name)(), False, []
    program = next(history)
    if compiled:
        program = stator.compile(program, backend="eager")
    while True:
        for number in (1, 2):
            outcome = observe(program, (torch.tensor([1.5, -2.25, 3.0, 0.5]) * number,))
            found.append(written((outcome.result, outcome.error)))
        if ended:
            return found
        ended = next(history, END) is END


@pytest.mark.parametrize(("path", "name"), [one for path in FILES for one in histories(path)])
def test_a_change_is_seen(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    expected = run(path, name, compiled=False)
    stator.reset()
    assert run(path, name, compiled=True) == expected
