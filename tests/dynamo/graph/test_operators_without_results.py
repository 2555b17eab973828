"""Operators of libraries that are called for what they do besides computing tensors do it in every call, in order."""

from __future__ import annotations

import pytest
import torch

import stator

SEEN: list[object] = []
_library = torch.library.Library("stator_test_effects", "FRAGMENT")
_library.define("note(Tensor x) -> ()")
_library.impl("note", lambda x: SEEN.append(x.sum().item()), "CompositeExplicitAutograd")
_library.define("tick() -> ()")
_library.impl("tick", lambda: SEEN.append("tick"), "CompositeExplicitAutograd")
_library.define("number(Tensor x) -> int")
_library.impl("number", lambda x: (SEEN.append("number"), int(x.sum()))[1], "CompositeExplicitAutograd")


@torch.library.custom_op("stator_test_effects::told", mutates_args=())
def told(x: torch.Tensor) -> None:
    SEEN.append("told")


@told.register_fake
def _(x: torch.Tensor) -> None:
    return None


def program(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch.ops.stator_test_effects.note(y)
    torch.ops.stator_test_effects.tick.default()
    told(y)
    return y + torch.ops.stator_test_effects.number(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_effects_of_operators(backend: str) -> None:
    compiled = stator.compile(program, backend=backend)
    for value in (1.0, 2.0, 1.0):
        x = torch.full((2,), value)
        SEEN.clear()
        expected = program(x)
        wanted = list(SEEN)
        SEEN.clear()
        assert torch.equal(compiled(x), expected) and wanted == SEEN


def test_where_there_must_be_no_break() -> None:
    with pytest.raises(stator.Unsupported, match=r"gives no tensor and changes none(.|\n)*call it outside"):
        stator.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
