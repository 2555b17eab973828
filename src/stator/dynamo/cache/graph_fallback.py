"""The handling of an error that a compiled graph raises: if the graph has no lasting effect, the frame starts again
with the program's own code, so that the program behaves as in eager.

Runs only after an error. codegen/failures.py writes the calls; side_effect_analysis.py records the effects of a graph.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

import torch

from stator.base import counters, logs
from stator.base.errors import StatorError, UserPlace, WrongAssumption
from stator.base.signals import raised_by_signal_handler
from stator.dynamo.host.naming import class_name
from stator.dynamo.host.native_status import native
from stator.dynamo.ir.capture_result import CapturedFrame
from stator.dynamo.ir.resume import resumption_of
from stator.dynamo.ir.torch_state import autocast_nesting
from stator.graph.subgraphs.generators import default_generator

from .compiled_frames import hit_count, retire_version

# Failures in a row after which a graph is not tried again: failures of the graph alone, which persist; and failures of
# graph and program.
_MOST_ALONE, _MOST_IN_A_ROW = 2, 8


def generator_states(devices: Sequence[torch.device], *others: Any) -> list[Callable[[], object]]:
    """Functions that restore torch's random number generators of these devices, and the given generators of
    `random.Random`, `numpy.random.RandomState` or `Generator`, to their present states."""
    found: list[Callable[[], object]] = []
    for generator in (*map(default_generator, devices), *others):
        if isinstance(generator, random.Random):
            found.append(partial(random.Random.setstate, generator, random.Random.getstate(generator)))
        elif hasattr(generator, "bit_generator"):  # a numpy.random.Generator
            bits = generator.bit_generator
            found.append(partial(setattr, bits, "state", bits.state))
        else:
            found.append(partial(generator.set_state, generator.get_state()))
    return found


class GraphFailure:
    """Called by emitted code with the graph's error and, if random numbers are drawn, functions that restore the
    generators. Restores generators and torch's modes, and returns whether the frame starts again. If the error is to
    leave a resumed frame, it is raised in the frame, which may be inside of blocks."""

    def __init__(self, captured: CapturedFrame, name: str) -> None:
        """`name`: the frame's name in warnings."""
        assert captured.entry_modes is not None
        code = captured.code
        self.name = name
        self.latest = ""
        self.code: Callable[[], CodeType | None] = lambda: None  # the emitted code that calls the graph
        self.in_a_row = 0  # failed calls in a row
        self.alone = 0  # those of them in which the program's own code did not fail
        self.hit_count = 0  # hits of the version at the last failure
        self.assumed = False  # the failure was a check of an assumption about sizes
        resumption = resumption_of(code)
        self.goes_on = resumption is not None and bool(resumption.last_call)
        self.passed_on = False  # whether the frame re-raised the last error unchanged
        self.modes = captured.entry_modes
        self.repeatable = captured.side_effects.repeatable
        self.places = [] if self.repeatable else _places(captured)

    def __call__(self, error: BaseException, states: Sequence[Callable[[], object]] = ()) -> bool:
        # the number of open regions of autocast is this call's, and no guard's: the graph changed none
        replace(self.modes, autocast_nesting=autocast_nesting()).restore()
        torch.clear_autocast_cache()  # the cache holds casts of an unfinished part of the program
        self.passed_on = False
        if self._begins_anew(error, states):
            return True
        if self.goes_on:
            self.passed_on = True
            # the traceback shows the frame once, by the program's own code
            BaseException.with_traceback(error, error.__traceback__ and error.__traceback__.tb_next)
            native.raise_later(error)
        return self.goes_on

    def _begins_anew(self, error: BaseException, states: Sequence[Callable[[], object]]) -> bool:
        self.assumed = type(error) is WrongAssumption  # raised before the graph writes to any memory
        if not issubclass(type(error), Exception) or raised_by_signal_handler(error):
            return False
        if not self.assumed and _program_takes_part():
            return False
        if not self.repeatable and not self.assumed:
            BaseException.add_note(error, self._note())
            return False
        for put_back in states:
            put_back()
        counters.count("dynamo.failed_graphs")
        if isinstance(error, StatorError) and not self.assumed:  # not an error of the program's operators
            text = f"stator: a graph of {self.name} could not be run, and the call goes on eagerly: {error}"
            logs.warn_once(f"dynamo.failed_run:{self.name}", text)
        self.latest = _text(error)
        logs.log("graph_breaks", "a graph of %s failed: the frame begins anew, by itself: %s", self.name, self.latest)
        self._count()
        return True

    def _count(self) -> None:
        code = self.code()
        times = None if code is None else hit_count(code)
        if times is None:
            return
        if times > self.hit_count + 1:
            self.in_a_row = self.alone = 0
        self.in_a_row, self.hit_count = self.in_a_row + 1, times
        if self.in_a_row >= _MOST_IN_A_ROW:
            self._give_up()

    def _give_up(self) -> None:
        code = self.code()
        if code is None:
            return
        retire_version(code)
        counters.count("dynamo.graphs_given_up")
        text = f"stator: a graph of {self.name} failed {self.in_a_row} times in a row; what it was compiled for runs "
        text += f"eagerly from now on: {self.latest}"
        logs.log("graph_breaks", "%s", text)
        if not self.alone:  # otherwise a warning was given before
            logs.warn_once(f"dynamo.given_up:{self.name}", text)

    def was_the_graph_s(self) -> None:
        """The program's own code succeeded after the graph had failed, though no code of the program handles errors."""
        if self.assumed or self.passed_on:
            return
        counters.count("dynamo.failures_of_graphs_alone")
        logs.warn_once(
            f"dynamo.failed_alone:{self.name}",
            f"stator: a compiled graph of {self.name} raised an error that the program's own code, run after it, did "
            f"not raise: {self.latest}",
        )
        self.alone += 1
        if self.alone >= _MOST_ALONE:
            self._give_up()

    def _note(self) -> str:
        found = self.places
        between = f", between\n  {_shown(found[0])}\nand\n  {_shown(found[-1])}" if found else ""
        return f"stator: raised in a compiled graph of {self.name}{between}"


def _text(error: BaseException) -> str:
    """Type and message of an error, without running the program's code."""
    said = BaseException.__dict__["args"].__get__(error)
    return ": ".join([class_name(type(error)), *(one for one in said if type(one) is str)])


def _shown(place: UserPlace) -> str:
    return f"{place}\n    {linecache.getline(place.filename, place.line).strip()}"


def _places(captured: CapturedFrame) -> list[UserPlace]:
    assert captured.graph is not None
    found = []
    for node in captured.graph.graph.nodes:
        switches = node.meta.get("example_value", node) is None  # a change of a mode
        if "place" in node.meta and not switches:
            found.append(node.meta["place"])
    return found


def _program_takes_part() -> bool:
    """Whether the program's code observed the tensors saved for backward, as checkpointing does. A second run would
    show them again, and the error may be checkpointing's own, which stops its recomputation early."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
