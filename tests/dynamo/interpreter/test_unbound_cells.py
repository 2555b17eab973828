"""Behind a graph break, variables that closures share stay the frame's own: what Python says of unbound ones, and what
`locals()` shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator
from stator.base import config


def said(read: Any) -> str:
    try:
        return str(read())
    except NameError as error:
        return repr(error)


def shared(x: torch.Tensor, kind: int) -> Any:
    y = x + 1

    def inner() -> Any:
        return z  # noqa: F821 (it may be deleted)

    if kind == 1:
        z = 3
        del z
    elif kind == 2:
        z = 4
    stator.graph_break()
    try:
        read = str(z)
    except NameError as error:
        read = repr(error)
    stator.graph_break()
    through_closure = said(inner)
    stator.graph_break()
    names, shown = sorted(locals()), locals().get("z")
    stator.graph_break()
    try:
        del z
        deleted = "deleted"
    except NameError as error:
        deleted = repr(error)
    return y * 2, read, through_closure, deleted, names, shown, inner.__closure__[0] is not None


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("replaced", [False, True])
def test_variables_of_closures_stay_the_frames_own(kind: int, replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", replaced)
    x = torch.arange(3.0)
    expected, compiled = shared(x, kind), stator.compile(shared, backend="eager")
    for _ in range(2):
        found = compiled(x, kind)
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)
        assert found[1:] == expected[1:]
