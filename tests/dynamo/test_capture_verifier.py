"""The verifier of captures: each rule refuses a real capture that was corrupted in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import stator
from stator.base.config import Options
from stator.base.errors import VerificationError
from stator.dynamo import frame_compiler
from stator.dynamo.backend import Settings
from stator.dynamo.capture import capture
from stator.dynamo.frame_compiler import FrameCompiler
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import CellSource, ConstantSource, ItemSource, LocalSource
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, Retry
from stator.dynamo.ir.capture_result import Break, CapturedFrame, Return
from stator.dynamo.ir.capture_verifier import verify
from stator.dynamo.ir.reconstruct_ir import (
    ConstantRecipe,
    Effect,
    FrameCell,
    GraphOutput,
    Load,
    NewList,
    NewTuple,
    call_effect,
)
from stator.dynamo.values.constants import ConstantValue

X = torch.arange(3.0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)


def whole(x: torch.Tensor, model: Model, found: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    y = model.linear(x)
    found.append(y)
    return y + 1, y * 2


def broken(x: torch.Tensor, scale: float) -> torch.Tensor:
    y = x * 2

    def close() -> torch.Tensor:
        return y

    stator.graph_break()
    return close() * scale


def returned() -> CapturedFrame:
    return capture(whole, {"x": X, "model": Model(), "found": []})


def left() -> CapturedFrame:
    assumptions = CaptureAssumptions()
    while True:
        try:
            return capture(broken, {"x": X, "scale": 2.0}, assumptions)
        except Retry as retry:
            assert retry.assumptions.adds_to(assumptions)
            assumptions = retry.assumptions


def value_of(captured: CapturedFrame) -> NewTuple:
    assert isinstance(captured.exit, Return) and isinstance(captured.exit.value, NewTuple)
    return captured.exit.value


def break_of(captured: CapturedFrame) -> Break:
    assert isinstance(captured.exit, Break)
    return captured.exit


@pytest.mark.parametrize("make", [returned, left])
def test_real_captures_are_right(make: Callable[[], CapturedFrame]) -> None:
    verify(make())


def refused(captured: CapturedFrame, why: str) -> None:
    with pytest.raises(VerificationError, match=why):
        verify(captured)


# ---- the graph ----


def test_inputs_are_the_placeholders_in_order() -> None:
    captured = returned()
    captured.inputs.reverse()
    refused(captured, "and its inputs are")


def test_an_input_too_few() -> None:
    captured = returned()
    captured.inputs.pop()
    refused(captured, "and its inputs are")


def test_an_output_that_is_not_there() -> None:
    captured = returned()
    value_of(captured).items[0] = GraphOutput(7)
    refused(captured, "output 7 is used, and the graph has 3")


def test_an_output_that_nobody_uses() -> None:
    captured = returned()
    value_of(captured).items.pop()
    refused(captured, "output 1 of the graph is not used|output 2 of the graph is not used")


def test_an_output_without_a_graph() -> None:
    captured = returned()
    captured.graph = None
    refused(captured, "a graph that is not there")


def test_an_input_that_is_made_of_an_output() -> None:
    captured = returned()
    captured.inputs[0] = replace(captured.inputs[0], recipe=GraphOutput(0))
    refused(captured, "what the graph needs is made of its outputs")


def test_a_draw_that_is_made_of_an_output() -> None:
    captured = returned()
    captured.draws.append(NewList([GraphOutput(0)]))
    refused(captured, "what the graph needs is made of its outputs")


# ---- recipes ----


def test_a_parameter_that_the_frame_has_not() -> None:
    captured = returned()
    value_of(captured).items.append(Load(LocalSource("z")))
    refused(captured, "it reads z, which is no parameter")


def test_a_variable_that_is_no_parameter() -> None:
    captured = returned()
    value_of(captured).items.append(Load(LocalSource("y")))
    refused(captured, "it reads y, which is no parameter")


def test_a_cell_that_the_function_has_not() -> None:
    captured = returned()
    value_of(captured).items.append(Load(CellSource("z")))
    refused(captured, "the cell z, which the function has not")


def test_a_cell_that_the_frame_has_not() -> None:
    captured = returned()
    captured.effects.append(Effect(FrameCell("z")))
    refused(captured, "the cell z, which the frame has not")


def test_what_is_read_through_something_unguarded() -> None:
    captured = returned()
    item = ItemSource(ItemSource(LocalSource("found"), 4), 0)
    captured.effects.append(Effect(Load(item)))
    refused(captured, r"it reads found\[4\], which no guard is about")
    captured.guards.append(Guard(ItemSource(LocalSource("found"), 4), GuardKind.TYPE, list))
    verify(captured)


def test_an_object_that_is_a_part_of_itself() -> None:
    captured = returned()
    value = value_of(captured)
    value.items.append(NewTuple([value]))
    refused(captured, "a NewTuple is a part of itself")


def test_a_list_may_be_a_part_of_itself() -> None:
    captured = returned()
    items = NewList([])
    items.items.append(NewTuple([items]))
    value_of(captured).items.append(items)
    verify(captured)


def test_effects_of_a_frame_that_runs_as_it_is() -> None:
    captured = returned()
    captured.runs_original = True
    refused(captured, "the frame's own code runs, and there are effects")


# ---- guards ----


def test_guards_that_contradict_one_another() -> None:
    captured = returned()
    captured.guards.append(Guard(LocalSource("found"), GuardKind.TYPE, tuple))
    refused(captured, "cannot both hold")


def test_numbers_that_are_equal_are_not_one() -> None:
    captured = left()
    source = LocalSource("scale")
    captured.guards += [Guard(source, GuardKind.EQUALS, 1), Guard(source, GuardKind.EQUALS, 1.0)]
    refused(captured, "cannot both hold")


def test_a_guard_on_a_constant() -> None:
    captured = returned()
    captured.guards.append(Guard(ConstantSource("X", X), GuardKind.IS, X))
    refused(captured, "a guard on the constant X says nothing")


def test_a_guard_on_what_the_frame_has_not() -> None:
    captured = returned()
    captured.guards.append(Guard(LocalSource("z"), GuardKind.TYPE, int))
    refused(captured, "it reads z, which is no parameter")


# ---- the exit ----


def test_an_instruction_that_is_not_there() -> None:
    captured = left()
    captured.exit = replace(break_of(captured), index=10_000)
    refused(captured, "the frame stops before instruction 10000")


def test_a_stack_that_is_too_deep() -> None:
    captured = left()
    exit_ = break_of(captured)
    captured.exit = replace(exit_, stack=(*exit_.stack, ConstantRecipe(1)))
    refused(captured, "before instruction .*, which finds")


def test_a_stack_that_is_not_deep_enough() -> None:
    captured = left()
    exit_ = break_of(captured)
    captured.exit = replace(exit_, stack=exit_.stack[1:])
    refused(captured, "before instruction .*, which finds")


def test_a_variable_that_the_code_has_not() -> None:
    captured = left()
    exit_ = break_of(captured)
    captured.exit = replace(exit_, locals={**exit_.locals, "z": ConstantRecipe(1)})
    refused(captured, "z is no variable of the frame")


def test_a_variable_that_is_lost() -> None:
    captured = left()
    exit_ = break_of(captured)
    assert "close" in exit_.locals
    captured.exit = replace(exit_, locals={name: one for name, one in exit_.locals.items() if name != "close"})
    refused(captured, "close is read behind the break, and is left unbound")


def test_a_handler_that_is_not_on_the_stack() -> None:
    captured = left()
    captured.exit = replace(break_of(captured), handlers=((50, ConstantRecipe(None)),))
    refused(captured, "a handler keeps its exception at 50")


def test_more_handlers_at_entry_than_there_are() -> None:
    captured = left()
    captured.exit = replace(break_of(captured), handlers_kept=1)
    refused(captured, "1 handlers were running at entry, and 0 run now")


# ---- nothing of the capture is left ----


def test_a_value_of_the_capture() -> None:
    captured = returned()
    captured.effects.append(call_effect(list.append, Load(LocalSource("found")), ConstantRecipe(ConstantValue(1))))
    refused(captured, "it holds a ConstantValue")


def test_a_value_in_a_guard() -> None:
    captured = returned()
    captured.guards.append(Guard(LocalSource("x"), GuardKind.IS, ConstantValue(1)))
    refused(captured, "it holds a ConstantValue")


def test_a_fake_tensor() -> None:
    captured = returned()
    assert captured.graph is not None
    fake = next(iter(captured.graph.graph.nodes)).meta["example_value"]
    captured.inputs[0] = replace(captured.inputs[0], example=fake)
    refused(captured, "it holds a FakeTensor")


# ---- when it runs ----


def test_the_option_has_each_capture_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CapturedFrame] = []
    monkeypatch.setattr(frame_compiler, "verify", seen.append)
    for options in (Options(verify=True), Options()):
        compiler = FrameCompiler(Settings(lambda graph, inputs: graph.forward, options=options))
        assert torch.equal(compiler.entry(lambda x: x + 1)(X), X + 1)
    assert [type(one) for one in seen] == [CapturedFrame]
