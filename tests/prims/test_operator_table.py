"""The generated table of operators in docs/ is what `make docs` would write now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_operators_is_up_to_date() -> None:
    page = (DOCS / "operator-table.md").read_text()
    version = torch.__version__.partition("+")[0]
    if f"with torch {version}:" not in page:
        pytest.skip("the page was made with another version of torch, which has other operators")
    spec = importlib.util.spec_from_file_location("make_operators", DOCS / "make_operators.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert page == module.table(), "run `make docs`"
