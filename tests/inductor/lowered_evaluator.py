"""A slow reference executor of `Lowered` for tests: interprets loops, and runs library calls as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from loop_evaluator import interpret

from stator.base.errors import VerificationError
from stator.inductor.buffers import Buffer, Extern, Lowered, View
from stator.prims.layout import extent


def run(lowered: Lowered, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The graph's outputs for these inputs. Raises VerificationError when a library call breaks a promised layout."""
    return _Machine(lowered, inputs).run()


class _Machine:
    def __init__(self, lowered: Lowered, inputs: Sequence[torch.Tensor]) -> None:
        self.lowered = lowered
        self.memory: dict[str, torch.Tensor] = {}  # each buffer's elements, flat, from its element 0
        for name, value in zip(lowered.inputs, inputs, strict=True):
            self.memory[name] = flat(value)
        for buffer in lowered.buffers.values():
            if buffer.kind == "constant":
                value = buffer.value
                self.memory[buffer.name] = torch.tensor([value]) if isinstance(value, int) else flat(value)

    def run(self) -> list[Any]:
        for node in self.lowered.nodes:
            if isinstance(node, Extern):
                self.call(node)
            else:
                for name in node.outputs:
                    self.allocate(name)
                interpret(node.body, self.memory)
        return [self.value(output) if isinstance(output, str | View) else output for output in self.lowered.outputs]

    def allocate(self, name: str) -> None:
        """Poisoned memory, unless an earlier node made it. A forgotten store shows as NaN or a wild number."""
        if name in self.memory:
            return
        layout = self.lowered.buffers[name].layout
        elements = extent(layout.size, layout.stride)
        if layout.dtype.is_floating_point or layout.dtype.is_complex:
            poison: Any = float("nan")
        else:
            poison = True if layout.dtype is torch.bool else 77
        self.memory[name] = torch.full((elements,), poison, dtype=layout.dtype)

    def value(self, reference: str | View) -> torch.Tensor:
        if isinstance(reference, View):
            layout, base = reference.layout, reference.base
            return self.memory[base].as_strided(layout.size, layout.stride, self.start(base) + layout.offset)
        layout = self.lowered.buffers[reference].layout
        return self.memory[reference].as_strided(layout.size, layout.stride, self.start(reference))

    def start(self, name: str) -> int:
        return int(self.memory[name].storage_offset())

    def given(self, argument: Any) -> Any:
        if isinstance(argument, View) or (isinstance(argument, str) and argument in self.lowered.buffers):
            return self.value(argument)
        if isinstance(argument, list | tuple):
            return [self.given(item) for item in argument]
        return argument

    def call(self, extern: Extern) -> None:
        args = [self.given(argument) for argument in extern.args]
        kwargs = {name: self.given(argument) for name, argument in extern.kwargs.items()}
        if extern.style == "out":
            name = extern.outputs[0]
            assert name is not None
            self.allocate(name)
            extern.target(*args, **kwargs, out=self.value(name))
            return
        results = extern.target(*args, **kwargs)
        if extern.style == "mutates":
            return
        for name, result in zip(
            extern.outputs, results if isinstance(results, list | tuple) else [results], strict=True
        ):
            if name is not None:
                self.memory[name] = flat(self.conformed(extern, self.lowered.buffers[name], result))

    def conformed(self, extern: Extern, buffer: Buffer, result: torch.Tensor) -> torch.Tensor:
        """The result in the promised layout: a copy where the library chose other strides, as in a compiled program."""
        layout = buffer.layout
        if tuple(result.shape) != layout.size or result.dtype is not layout.dtype:
            raise VerificationError(
                f"{extern.name} gave {result.dtype} {tuple(result.shape)} "
                f"where {buffer.name} promises {layout.dtype} {layout.size}"
            )
        strides = zip(result.stride(), layout.stride, layout.size, strict=True)
        if result.numel() == 0 or all(a == b for a, b, size in strides if size != 1):
            return result
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype).copy_(result)


def flat(value: torch.Tensor) -> torch.Tensor:
    """All elements that a tensor's strides reach, as one dimension that starts at its element 0."""
    return value.as_strided((extent(value.shape, value.stride()),), (1,), value.storage_offset())
