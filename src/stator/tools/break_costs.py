"""Estimates what each graph break of one call cost; docs/graph-breaks.md says how."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import fx

from stator.base.errors import UserPlace
from stator.dynamo.backend import Backend, Settings
from stator.dynamo.cache.compiled_frames import Install
from stator.dynamo.frame_compiler import FrameCompiler, Hook
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions
from stator.dynamo.ir.capture_result import Break, BreakReason, CapturedFrame
from stator.dynamo.ir.resume import ResumePoint

# Seconds for leaving compiled code and entering the continuation, with two values carried over, on one core of a server
SECONDS_A_PASS = 5e-6
# Bytes a second at which tensors between two graphs are written, and read again
BANDWIDTH = 10e9


@dataclass(slots=True)
class BreakCost:
    """One place that ended graphs.

    passes: how often the program came by. native_seconds: time in the call there, without code inside it that was
    captured, compiled or broken itself. carried_bytes: of tensors that graphs wrote for the code behind the break, over
    all passes.
    """

    reason: BreakReason
    passes: int = 0
    native_seconds: float = 0.0
    carried_bytes: int = 0

    @property
    def seconds(self) -> float:
        """The estimate."""
        return self.native_seconds + self.passes * SECONDS_A_PASS + 2 * self.carried_bytes / BANDWIDTH

    def __str__(self) -> str:
        times = "once" if self.passes == 1 else f"{self.passes} times"
        parts = [f"passed {times}", f"{_duration(self.native_seconds)} in native calls"]
        if self.carried_bytes:
            parts.append(f"{self.carried_bytes:,} bytes carried over")
        return f"about {_duration(self.seconds)}: {', '.join(parts)}"


class BreakCostCompiler(FrameCompiler):
    """Compiles frames, and notes the costs of their breaks while the compiled code runs."""

    def __init__(
        self, backend: Backend, on_captured: Callable[[CapturedFrame], None], dynamic: bool | None = None
    ) -> None:
        self._costs: dict[tuple[str, UserPlace], BreakCost] = {}
        self._seconds_apart = 0.0  # seconds so far outside of the native code of the current call
        super().__init__(Settings(self._timed(backend), on_captured=on_captured, dynamic=dynamic))

    def costs(self) -> list[BreakCost]:
        """The costs, the highest first."""
        return sorted(self._costs.values(), key=lambda cost: -cost.seconds)

    def compile_frame(
        self, function: FunctionType, bound: Mapping[str, Any], assumptions: CaptureAssumptions, install: Install
    ) -> Any:
        began = time.perf_counter()
        try:
            return super().compile_frame(function, bound, assumptions, install)
        finally:
            self._seconds_apart += time.perf_counter() - began

    def dispatch_at(self, captured: CapturedFrame) -> Callable[[Any], Any]:
        dispatch = super().dispatch_at(captured)
        if not isinstance(captured.exit, Break):
            return dispatch
        cost = self._cost(captured.exit.reason)

        def timed(callee: Any, *args: Any, **kwargs: Any) -> Any:
            began, apart = time.perf_counter(), self._seconds_apart
            try:
                return callee(*args, **kwargs)
            finally:
                took = time.perf_counter() - began - (self._seconds_apart - apart)
                cost.native_seconds += took
                self._seconds_apart += took

        return lambda callee: partial(timed, dispatch(callee))

    def hook_at(self, captured: CapturedFrame) -> Hook:
        """Time spent while the hook is on is native, except for code that is compiled there."""
        turn_on, turn_off = super().hook_at(captured)
        if not isinstance(captured.exit, Break):
            return turn_on, turn_off
        cost = self._cost(captured.exit.reason)
        begun: list[tuple[float, float]] = []

        def on() -> None:
            begun.append((time.perf_counter(), self._seconds_apart))
            turn_on()

        def off() -> None:
            turn_off()
            began, apart = begun.pop()
            took = time.perf_counter() - began - (self._seconds_apart - apart)
            cost.native_seconds += took
            self._seconds_apart += took

        return on, off

    def continuation(self, captured: CapturedFrame, point: ResumePoint) -> Any:
        return self._counted(captured, super().continuation(captured, point))

    def joined_continuation(self, captured: CapturedFrame, point: ResumePoint) -> Any:
        return self._counted(captured, super().joined_continuation(captured, point))

    def _counted(self, captured: CapturedFrame, goes_on: Callable[..., Any]) -> Callable[..., Any]:
        assert isinstance(captured.exit, Break)
        cost = self._cost(captured.exit.reason)
        carried = _bytes_of_outputs(captured.graph)

        def counted(*values: Any) -> Any:
            cost.passes += 1
            cost.carried_bytes += carried
            return goes_on(*values)

        return counted

    def _timed(self, backend: Backend) -> Backend:
        """The backend, with graphs that do not count as native code."""

        def compile_timed(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            compiled = backend(gm, example_inputs)

            def run(*args: Any) -> Any:
                began = time.perf_counter()
                try:
                    return compiled(*args)
                finally:
                    self._seconds_apart += time.perf_counter() - began

            return run

        return compile_timed

    def _cost(self, reason: BreakReason) -> BreakCost:
        return self._costs.setdefault((reason.kind, reason.place), BreakCost(reason))


def _bytes_of_outputs(graph: fx.GraphModule | None) -> int:
    if graph is None:
        return 0
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    examples = [node.meta.get("example_value") for node in output.args[0] if isinstance(node, fx.Node)]
    # sizes that only the run can tell are not counted
    return sum(_elements(one.numel()) * one.element_size() for one in examples if isinstance(one, torch.Tensor))


def _elements(count: int | torch.SymInt) -> int:
    """A number of elements in the example; 0 if data decide it."""
    if type(count) is int:
        return count
    node = count.node  # type: ignore[union-attr]
    return int(node.hint) if node.has_hint() else 0


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
