"""What variables that closures share hold at the first call goes with that call: compiled code keeps none of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import stator
from stator.base import config


@stator.disable
def pause() -> None:
    """A call that capture does not follow."""


class _Noted:
    pass


def _of_the_frame(noted: _Noted) -> Callable[[], Any]:
    def changes() -> Any:
        nonlocal noted
        pause()
        noted = noted
        return noted

    pause()

    def made(x: int = 1) -> tuple[Any, int]:
        return noted, x

    pause()
    return changes() and made


def _of_a_function_inside(noted: _Noted) -> Callable[[], Any]:
    def inside() -> Callable[[], Any]:
        nonlocal noted
        pause()
        noted = noted
        made = lambda: noted  # noqa: E731
        pause()
        return made

    return inside()


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("function", [_of_the_frame, _of_a_function_inside])
def test_cells_go_with_their_call(
    function: Callable[[_Noted], Callable[[], Any]], replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", replaced)
    stator.reset()
    compiled = stator.compile(function, backend="eager")
    ends = []
    for _ in range(3):
        noted: Any = _Noted()
        ends.append(weakref.ref(noted))
        made = compiled(noted)
        assert ends[-1]() is not None
        del noted, made
        gc.collect()
        assert ends[-1]() is None
