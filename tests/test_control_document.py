"""The examples of docs/control.md run, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stator

DOCUMENT = Path(__file__).parent.parent / "docs" / "control.md"


@pytest.mark.fixed_sizes
def test_the_examples_hold() -> None:
    text = DOCUMENT.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 9
    names: dict[str, object] = {"__name__": "examples"}
    try:
        for block in blocks:
            line = text[: text.index(block)].count("\n")
            exec(compile("\n" * line + block, str(DOCUMENT), "exec"), names)
    finally:
        stator.set_stance("default")


def test_everything_public_is_documented() -> None:
    text = DOCUMENT.read_text()
    public = {
        "allow_in_graph",
        "assert_no_recompile",
        "assume_constant_result",
        "disable",
        "graph_break",
        "is_compiling",
        "set_stance",
        "substitute_in_graph",
    }
    assert public <= set(stator.__all__)
    assert not [name for name in public if f"`{name}`" not in text and f"`{name}()`" not in text]
