"""Modules of Triton text: parameters, signature and launch around printed statements; a combination's kernel, which
divides its programs among its parts. printer.py prints the statements."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stator.inductor.buffers import Buffer
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule.groups import Combination, Group
from stator.shapes.expr import Expr

from .prelude import HEAD, helpers_for
from .types import pointer_type

CONSTANTS = ("XBLOCK", "RBLOCK", "INDEX")
NUMBER = "number"  # the argument of a part that is the program's number among the programs of this part


@dataclass(frozen=True, slots=True)
class PrintedPart:
    """The statements of a group. blocks: values of the kernel's constants. grid: the text of the number of programs;
    programs: the number, where no size is an argument. index: the text of the type of indices. sizes: the names of size
    arguments by their values. stages: of the compiler's pipeline, by default its own."""

    text: str
    blocks: Mapping[str, int]
    warps: int
    grid: str
    programs: int | None
    index: str
    sizes: Mapping[Expr, str]
    stages: int | None = None


def pointer_names(group: Group | Combination) -> dict[str, str]:
    names = {name: f"in{at}" for at, name in enumerate(group.reads)}
    return names | {name: f"out{at}" for at, name in enumerate(group.writes)}


def print_module(group: Group, part: PrintedPart, buffers: Mapping[str, Buffer]) -> KernelSource:
    """A kernel of one group."""
    sizes = tuple(part.sizes.values())
    types = _pointer_types(group, buffers) | dict.fromkeys(sizes, "i32")
    fixed = f"(do_not_specialize={list(sizes)!r})" if sizes else ""
    launch = f"def launch({', '.join(sizes)}):\n    return ({part.grid},), {part.index}\n"
    shape = _shape(part.blocks, part.warps, part.stages)
    return _module(group.name, "", fixed, part.text, types, part.blocks, shape, launch, tuple(part.sizes))


def print_combination(
    combination: Combination, parts: Sequence[PrintedPart], buffers: Mapping[str, Buffer]
) -> KernelSource:
    """A kernel whose first programs run the first part, the next programs the second, and so on. Parts of equal text
    are one piece of code that chooses its pointers."""
    pointers = pointer_names(combination)
    kinds: dict[tuple[str, tuple[int, ...], int], _Kind] = {}
    for group, part in zip(combination.parts, parts, strict=True):
        assert part.programs is not None and not part.sizes
        own = ", ".join([*pointer_names(group).values(), *(f"{name}: tl.constexpr" for name in CONSTANTS)])
        text = f"({NUMBER}, {own}):\n{part.text}\n"
        kind = kinds.setdefault(
            (text, tuple(part.blocks.values()), part.programs), _Kind(f"part{len(kinds)}", part, [])
        )
        kind.pointers.append([pointers[name] for name in (*group.reads, *group.writes)])
    functions = "".join(f"\n\n@triton.jit\ndef {kind.name}{key[0]}" for key, kind in kinds.items())
    lines = ["    program = tl.program_id(0)"]
    first = 0
    for kind in kinds.values():
        behind = first + kind.programs
        lines.append(f"    {'if' if first == 0 else 'elif'} program < {behind}:")
        lines += [f"        {line}" for line in kind.call(first)]
        first = behind
    types = _pointer_types(combination, buffers)
    index = "tl.int64" if any("int64" in part.index for part in parts) else "tl.int32"
    launch = f"def launch():\n    return ({first},), {index}\n"
    shape = _shape({}, max(part.warps for part in parts), None)
    return _module(combination.name, functions, "", "\n".join(lines), types, {}, shape, launch, ())


@dataclass(frozen=True, slots=True)
class _Kind:
    """Equal parts. pointers: the arguments of each."""

    name: str
    part: PrintedPart
    pointers: list[list[str]]

    @property
    def programs(self) -> int:
        assert self.part.programs is not None
        return self.part.programs * len(self.pointers)

    def call(self, first: int) -> list[str]:
        """Statements of programs from `first` on."""
        number = f"(program - {first})" if first else "program"
        arguments = self.pointers[0]
        lines = []
        if len(self.pointers) > 1:
            lines = [f"which = {number} // {self.part.programs}"]
            number = f"{number} % {self.part.programs}"
            arguments = [f"pointer{at}" for at in range(len(arguments))]
            for name, *choices in zip(arguments, *self.pointers, strict=True):
                chosen = choices[0]
                for at, choice in enumerate(choices[1:], 1):
                    if choice != chosen or at > 1:
                        lines.append(f"{name} = tl.where(which == {at}, {choice}, {chosen})")
                        chosen = name
                if chosen != name:
                    lines.append(f"{name} = {chosen}")
        constants = ", ".join([*map(str, self.part.blocks.values()), "INDEX"])
        return [*lines, f"{self.name}({number}, {', '.join(arguments)}, {constants})"]


def _pointer_types(group: Group | Combination, buffers: Mapping[str, Buffer]) -> dict[str, str]:
    return {pointer: pointer_type(buffers[name].layout.dtype) for name, pointer in pointer_names(group).items()}


def _shape(blocks: Mapping[str, int], warps: int, stages: int | None) -> list[str]:
    """Statements that tell what the kernel is compiled with."""
    pipeline = [] if stages is None else [f"STAGES = {stages}"]
    return [f"BLOCKS = {dict(blocks)!r}", f"WARPS = {warps}", *pipeline]


def _module(
    name: str,
    functions: str,
    fixed: str,
    text: str,
    types: dict[str, str],
    blocks: Mapping[str, int],
    shape: Sequence[str],
    launch: str,
    sizes: tuple[Expr, ...],
) -> KernelSource:
    constants = (*blocks, "INDEX")
    parameters = ", ".join([*types, *(f"{constant}: tl.constexpr" for constant in constants)])
    function = f"({parameters}):\n{text}\n"
    tail = "\n".join([
        f"SIGNATURE = {types | dict.fromkeys(constants, 'constexpr')!r}",
        *shape,
        "\n",
        launch,
    ])  # fmt: skip
    symbol = f"kernel_{hashlib.sha256((functions + function + tail).encode()).hexdigest()[:16]}"
    helpers = helpers_for(functions + function)
    module = f"{HEAD}{helpers}{functions}\n\n@triton.jit{fixed}\ndef {symbol}{function}\n\n{tail}"
    return KernelSource(name, symbol, module, "triton", sizes)
