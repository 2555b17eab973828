"""Programs over Python's own language give in compiled code what they give in eager: results, changes of what they
were given, printed text, random numbers and exceptions.

Every function of the modules of this folder whose only parameter is `x` is a program. A module's INPUT replaces the
usual argument; with WHOLE = False its programs may break the graph.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.differential import check

from stator.base import config

FILES = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_"))
MODULES = [importlib.import_module(f"tests.programs.language.{path.stem}") for path in FILES]
INPUT = torch.arange(6.0).reshape(2, 3)


def programs(module: ModuleType) -> list[Any]:
    own = [one for one in vars(module).values() if inspect.isfunction(one) and one.__module__ == module.__name__]
    taking_x = [one for one in own if one.__code__.co_varnames[: one.__code__.co_argcount] == ("x",)]
    return [pytest.param(module, one, id=f"{module.__name__.rpartition('.')[2]}.{one.__name__}") for one in taking_x]


@pytest.mark.parametrize(("module", "program"), [one for module in MODULES for one in programs(module)])
def test_as_in_eager(module: ModuleType, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    check(program, getattr(module, "INPUT", INPUT), fullgraph=getattr(module, "WHOLE", True))
