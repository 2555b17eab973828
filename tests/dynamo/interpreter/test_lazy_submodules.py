"""A submodule that its package imports at the first lookup, as NumPy does with numpy.random."""

from __future__ import annotations

import importlib
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.differential import Counts

import stator

PACKAGE = """
def __getattr__(name):
    if name == "part":
        import lazy_package.part as part
        return part
    raise AttributeError(name)
"""


def test_a_break_behind_the_first_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "part.py").write_text("SCALE = 3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    package: Any = importlib.import_module("lazy_package")

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * package.part.SCALE
        stator.graph_break()
        return y + 1

    compiled, counts = stator.compile(program, backend="eager"), Counts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert (counts.graphs, counts.breaks) == (2, 1)


def test_a_module_class_that_notes_what_is_read() -> None:
    read: list[str] = []

    class Noting(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            read.append(name)
            return super().__getattribute__(name)

    module = Noting("module")
    module.factor = 3  # type: ignore[attr-defined]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * module.factor  # type: ignore[attr-defined, no-any-return]

    stator.compile(program, backend="eager")(torch.ones(2))
    assert read == ["factor"]
