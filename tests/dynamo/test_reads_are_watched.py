"""What captured code has read is watched: each program reads something, which is changed between calls, and the next
call has to see it, as in eager: results, errors and their texts.

A reader of the files `reads_of_*.py` gives a program, which takes a tensor, and the changes, made one after the other.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stator
from stator.base import config

_FILES = sorted(Path(__file__).parent.glob("reads_of_*.py"))


def load(path: Path) -> Any:
    """Anew: readers change what their module holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for what annotations name
    spec.loader.exec_module(module)
    return module


READERS = [pytest.param(path, name, id=name) for path in _FILES for name in load(path).READERS]


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, repr(value.tolist()))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(item) for item in value])
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return (type(value).__name__, re.sub("0x[0-9a-f]+", "", repr(value)))


def outcome(program: Any, at: int) -> Any:
    try:
        return plain(program(torch.tensor([1.5, -2.25, 3.0, 0.5]) * at))
    except Exception as error:
        return (type(error).__qualname__, str(error))


def run(path: Path, name: str, *, compiled: bool) -> list[Any]:
    program, changes = load(path).READERS[name]()
    if compiled:
        program = stator.compile(program, backend="eager")
    outcomes = [outcome(program, 1), outcome(program, 2)]
    for change in changes:
        change()
        outcomes += [outcome(program, 3), outcome(program, 4)]
    return outcomes


@pytest.mark.parametrize(("path", "name"), READERS)
def test_a_change_is_seen(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    expected = run(path, name, compiled=False)
    stator.reset()
    assert run(path, name, compiled=True) == expected
