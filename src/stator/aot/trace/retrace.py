"""A program that can be traced again after its inputs are gone: for other tangents, or to differentiate it twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stator.graph.fake.fake_mode import FakeMode
from stator.graph.functionalization.functionalize import Keep
from stator.graph.ir.captured_tensors import owned_tensors_replaced
from stator.graph.ir.size_bindings import evaluated
from stator.graph.ir.traced import Fresh, ViewOfInput, ViewOfOutput
from stator.graph.operators.attention_settings import attention_settings, under_attention_settings
from stator.graph.tracing.symbolic_inputs import unknown_sizes
from stator.shapes.expr import Symbol

from .batched_grads import outside_batching
from .inference import Rewrite
from .joint import Joint, trace_joint
from .known_values import KnownValues
from .output_autograd_nodes import gradients_between

NO_SIZES: Mapping[Symbol, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TorchState:
    """The state of torch that operators of a program depend on. Each trace of a program runs in equal state."""

    grad_mode: bool
    default_dtype: torch.dtype
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # device, whether autocast is on, and its dtype
    attention: tuple[Any, ...]  # which attention kernel ATen chooses, together with `deterministic`
    deterministic: tuple[bool, bool]  # whether torch asks for deterministic algorithms, and only warns

    @staticmethod
    def current() -> TorchState:
        autocast = tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
        )
        return TorchState(
            torch.is_grad_enabled(), torch.get_default_dtype(), autocast, attention_settings(), _determinism()
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        now = torch.get_default_dtype()
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.grad_mode))
            stack.enter_context(under_attention_settings(self.attention))
            for device, enabled, dtype in self.autocast:
                if (enabled, dtype) != (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)):
                    stack.enter_context(torch.autocast(device, dtype, enabled))
            if (wanted := self.deterministic) != (present := _determinism()):
                stack.callback(_set_determinism, *present)
                _set_determinism(*wanted)
            # The default dtype is process-wide: set it only where the program has changed it since.
            if now is not self.default_dtype:
                stack.callback(torch.set_default_dtype, now)
                torch.set_default_dtype(self.default_dtype)
            yield


def _determinism() -> tuple[bool, bool]:
    return torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()


def _set_determinism(mode: bool, warn_only: bool) -> None:
    torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)


class RetraceableProgram:
    """A function, fake tensors in place of its inputs, and the state of torch that it runs in.

    example_inputs: may be fakes with symbolic sizes, and symbolic ints. captured: tensors that the function reaches by
    itself. merge_equal: whether a tensor given twice is one input. known: values that traces do not compute again.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        example_inputs: Sequence[Any],
        captured: Sequence[torch.Tensor],
        keep: Keep,
        rewrite: Rewrite | None = None,
        known: KnownValues | None = None,
    ) -> None:
        mode = FakeMode()
        self.function = function
        self.inputs = [mode.from_real(value) if isinstance(value, torch.Tensor) else value for value in example_inputs]
        mode.forget()
        self.unknown = unknown_sizes(function, self.inputs)
        self.captured = tuple(captured)
        self.keep = keep
        self.rewrite = rewrite
        self.merge_equal = False
        self.known = known
        self.torch_state = TorchState.current()

    def trace(
        self,
        wanted: Sequence[int] | None = None,
        targets: Sequence[int] | None = None,
        stops: Sequence[int] = (),
        by: frozenset[int] | None = None,
    ) -> Joint:
        """The joint graph, with tangents for the forward values `wanted` (None: all), and gradients of the primals (of
        `by` alone, if given) or of the forward values `targets`. stops: see `output_autograd_nodes.gradients_between`.
        """
        with self.torch_state.restored(), outside_batching():
            joint = trace_joint(
                self.function,
                self.inputs,
                keep=self.keep,
                captured=self.captured,
                merge_equal=self.merge_equal,
                wanted=wanted,
                targets=targets,
                stops=stops,
                by=by,
                unknown=self.unknown,
            )
            if self.rewrite is not None:
                self.rewrite(joint.graph)
        if self.known is not None:
            self.known.use(joint.graph.graph)
        return joint

    def gradients(
        self,
        joint: Joint,
        positions: Sequence[int],
        targets: Sequence[int] | None = None,
        stops: Sequence[int] = (),
        by: frozenset[int] | None = None,
        shown: Sequence[int] = (),
        handles: Mapping[int, torch.Tensor] | None = None,
        sizes: Mapping[Symbol, int] = NO_SIZES,
    ) -> Callable[..., tuple[torch.Tensor | None, ...]]:
        """The backward as a function that can be differentiated again.

        It takes the primals (inputs, then captured tensors), then tangents of the forward values at `positions`, and
        ignores what comes behind these. It returns the gradients of the primals that require grad (of `by` alone, if
        given) or of the forward values `targets`, None where the values do not depend on them; then the forward values
        `shown`. stops: forward values where gradients stop, see `output_autograd_nodes.gradients_between`. handles: the
        result of `self.handles` for these primals, if already known. sizes: the values of symbols.
        """
        given_handles = handles
        count = sum(isinstance(value, torch.Tensor) for value in self.inputs) + len(self.captured)

        def gradients_of(*arguments: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            primals, tangents = arguments[:count], arguments[count : count + len(positions)]
            handles = self.handles(joint, primals, sizes) if given_handles is None else given_handles
            given = {id(handles[position]): tangent for position, tangent in zip(positions, tangents, strict=True)}
            with torch.enable_grad():
                roots = [handles[position] for position in positions]
                sought = [one for at, one in enumerate(primals) if one.requires_grad and (by is None or at in by)]
                if targets is not None:
                    sought = [handles[position] for position in targets]
                ends = [(handles[position], given.get(id(handles[position]))) for position in stops]
                found = gradients_between(roots, tangents, sought, ends, create_graph=True)
                computed: list[Any] = [handles[position] for position in shown]
                return *found, *computed

        return gradients_of

    def handles(
        self, joint: Joint, primals: Sequence[torch.Tensor], sizes: Mapping[Symbol, int]
    ) -> dict[int, torch.Tensor]:
        """Run the program again, in its own state of torch, on copies of what it writes to. Returns the tensors behind
        its forward values by position; views among the outputs are counted behind these."""
        with self.torch_state.restored():
            return self._handles(joint, primals, sizes)

    def _handles(
        self, joint: Joint, primals: Sequence[torch.Tensor], sizes: Mapping[Symbol, int]
    ) -> dict[int, torch.Tensor]:
        traced = joint.traced
        written = {index for index, _ in traced.mutated}
        placed = [primal.clone() if index in written else primal for index, primal in enumerate(primals)]
        for change in traced.layouts:
            placed[change.index] = torch.ops.aten.alias.default(placed[change.index])
        remaining = iter(placed)
        arguments = [
            next(remaining) if isinstance(value, torch.Tensor) else evaluated(value, sizes) for value in self.inputs
        ]
        owned = dict(zip(map(id, self.captured), remaining, strict=True))
        handles: dict[int, torch.Tensor] = {}
        with owned_tensors_replaced(self.function, owned):
            result = self.function(*arguments)
        for at, (leaf, output) in enumerate(zip(pytree.tree_leaves(result), traced.outputs, strict=True)):
            if isinstance(output, Fresh):
                handles[output.position] = leaf
            elif isinstance(output, (ViewOfOutput, ViewOfInput)) and leaf.grad_fn is not None:
                handles[joint.value_count + at] = leaf
                if isinstance(output, ViewOfOutput):
                    of_base = bool(output.geometry.steps) and leaf._is_view()
                    handles.setdefault(output.position, leaf._base if of_base else leaf)
        for index, position in traced.mutated:
            handles.setdefault(position, placed[index])
        return handles


def alias_primals(primals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Aliases of the primals, for autograd separate tensors. Gradients by an alias contain nothing that flows through
    other primals, and call none of their hooks."""
    with torch.enable_grad():
        return [torch.ops.aten.alias.default(primal) if primal.requires_grad else primal for primal in primals]
