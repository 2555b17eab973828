"""Prints a program as Python source: `bind(rt)` looks everything up once, and returns `call(inputs...) -> tuple`.

Text only; stator.runtime.host has the functions that the text calls. Nothing here plans memory or orders steps.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.errors import VerificationError
from stator.base.registry import Registry
from stator.inductor.buffers import Buffer, Extern, Layout, View
from stator.inductor.program.aliases import layout_bytes, may_alias_arguments
from stator.inductor.program.arena import ArenaLayout, plan_arena
from stator.inductor.program.steps import Allocate, Call, Free, Launch, Program, ReturnValues, Reuse, ReuseIfUnshared
from stator.shapes.conditions import Comparison, Conjunction, Disjunction
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr

from .literals import NotLiteral, literal, sequence_text

# A kernel with no more memory than this runs for less time than releasing the interpreter lock takes
SMALL_KERNEL_BYTES = 64 << 10

_HEAD = '''\
"""One compiled graph: `bind` looks everything up once, `call` runs it. The plan behind it is in 50_program.txt.

Runs again by stator.inductor.codegen.host.load_dumped(folder), with the kernels of 60_code.cpp.
"""

import torch
from torch import device, inf, nan

from stator.runtime.arena import Block, idle
from stator.runtime.host import check_size, conform
'''

# Words of the printed text that cannot name a buffer's variable
_RESERVED = frozenset(
    (
        *("rt", "torch", "device", "inf", "nan", "complex", "Block", "idle", "check_size", "conform", "KERNELS"),
        *(
            "bind",
            "call",
            "arena",
            "token",
            "block",
            "unchecked",
            "repaired",
            "inputs",
            "checked",
            "pieces",
            "tensors",
            *("floor", "ceil", "trunc", "min", "max", "float", "bool"),
            *keyword.kwlist,
        ),
    )
)

_EXPRESSIONS = (Expr, FloatExpr, Comparison, Conjunction, Disjunction)

_print_step: Registry[type, Any] = Registry("program step")


@dataclass(frozen=True, slots=True)
class HostSource:
    """text: the Python source; objects: the values that the text refers to by name through `rt.object`."""

    text: str
    objects: dict[str, Any]


def print_host(program: Program) -> HostSource:
    """The text and the objects of a program. The text defines `KERNELS` and `bind(rt)`."""
    return _Printer(program).print()


@dataclass(slots=True)
class _Printer:
    program: Program
    bindings: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    bound: dict[Any, str] = field(default_factory=dict)  # key of a bound expression -> its variable
    slots: list[str] = field(default_factory=list)  # text of each arena slot
    slot_names: list[str] = field(default_factory=list)
    placed: dict[str, int] = field(default_factory=dict)  # buffer -> offset in the arena
    pieces: dict[str, int] = field(default_factory=dict)  # buffer -> number of its piece of memory
    variables: dict[str, str] = field(default_factory=dict)  # buffer -> its variable
    taken: set[str] = field(default_factory=set)  # variables in use
    numbers: dict[str, int] = field(default_factory=dict)  # the next number of each numbered variable
    fresh: set[str] = field(default_factory=set)  # buffers allocated for this call alone
    lent: list[str] = field(default_factory=list)  # variables whose memory the next launch writes to
    needs_context: bool = False
    checks: bool = False
    size_names: dict[Symbol, str] = field(default_factory=dict)  # symbol with a hint -> its variable
    unknown_names: dict[Symbol, str] = field(default_factory=dict)  # other symbols, bound so far -> their variables
    early: set[Symbol] = field(default_factory=set)  # symbols that inputs tell
    numbers_of_call: dict[Any, str] = field(default_factory=dict)  # expression -> its variable
    size_lines: list[str] = field(default_factory=list)  # read and compute sizes

    def print(self) -> HostSource:
        program = self.program
        arena = plan_arena(program)
        self.placed = {entry.name: entry.offset for entry in arena.placed}
        self.pieces = {name: number for number, block in enumerate(arena.blocks) for name in block.names}
        for name in (*program.buffers, *program.inputs):
            if name not in self.variables:
                self.variables[name] = self.new_variable(name)
        self._read_sizes()
        for step in program.steps:
            _print_step[type(step)](self, step)
        body = self._body()
        arguments = ", ".join(self.variables[name] for name in program.inputs)
        parts = [
            _HEAD,
            *(["from math import ceil, floor, trunc\n"] if self.size_names or self.unknown_names else []),
            f"KERNELS = {sorted(program.kernels)!r}\n\n",
            "def bind(rt):",
            *(self._sized_arena_lines(arena) if self.size_names else self._arena_lines(arena.bytes)),
            *(self._check_lines() if self.checks else []),
            *(f"    {line}" for line in self.bindings),
            "",
            f"    def call({'inputs' if program.boxed else arguments}):",
            *(["        nonlocal unchecked"] if self.checks and not self.size_names else []),
            *([f"        [{arguments}] = inputs", "        inputs.clear()"] if program.boxed else []),
            *(f"        {line}" for line in body),
            "",
            *(["    call.boxed = True"] if program.boxed else []),
            "    return call",
            "",
        ]
        return HostSource("\n".join(parts), self.objects)

    # --- pieces of the text ---

    def _arena_lines(self, size: int) -> list[str]:
        if not self.slots:
            return []
        return [
            f"    # {size:,} bytes of intermediates: (byte offset, size, stride, dtype)",
            f"    arena = rt.arena({size}, [",
            *(f"        {slot},  # {name}" for slot, name in zip(self.slots, self.slot_names, strict=True)),
            "    ])",
            "    token = arena.token",
        ]

    def _sized_arena_lines(self, arena: ArenaLayout) -> list[str]:
        """Memory for sizes that are known when the program runs."""
        if not self.slots:
            return []
        given = ", ".join(self.size_names.values())
        pieces = [f"({b.start}, {b.end}, {self.plain(layout_bytes(b.layout))})" for b in arena.blocks]
        return [
            f"    # intermediates, {arena.bytes:,} bytes in the example: (first step, last step, bytes)",
            f"    def pieces({given}):",
            f"        return [{', '.join(pieces)}]",
            "",
            f"    def tensors({given}):  # (piece, byte offset, size, stride, dtype)",
            "        return [",
            *(f"            {slot},  # {name}" for slot, name in zip(self.slots, self.slot_names, strict=True)),
            "        ]",
            "",
            "    arena = rt.sized_arena(pieces, tensors)",
            "    token = arena.token",
        ]

    def _check_lines(self) -> list[str]:
        if self.size_names:
            return ["    checked, repaired = rt.seen_sizes(), set()"]
        return ["    unchecked, repaired = True, set()"]

    def _body(self) -> list[str]:
        lines = list(self.lines)
        result = lines.pop()  # the return comes after memory is freed
        given = "".join(f"{name}, " for name in self.size_names.values())
        if self.checks and self.size_names:
            lines.insert(0, f"unchecked = bool(repaired) or ({given}) not in checked")
            lines.append(f"checked.add(({given}))")
        elif self.checks:
            lines.append("unchecked = repaired")  # true unless empty
        if self.needs_context:
            lines = ["with block.context:", *(f"    {line}" for line in lines)]
        if self.slots:
            names = sequence_text("(", self.slot_names, ")")
            key, given = (f"(token, {given})", f", {given[:-2]}") if self.size_names else ("token", "")
            lines = [f"{names} = block.tensors.get({key}) or arena.fit(block{given})", *lines]
        if self.slots or self.needs_context:
            take = ["try:", "    block = idle.pop()", "except IndexError:", "    block = Block()"]
            lines = [*take, *lines, "idle.append(block)"]
        return [*self.size_lines, *lines, result]

    # --- sizes ---

    def _read_sizes(self) -> None:
        """Give each symbol a variable, and read it from the inputs."""
        program = self.program
        environment = program.sizes.environment
        for symbol, binding in program.size_bindings.items():
            if environment is not None and environment.simplify(symbol) is not symbol:
                continue  # facts express it by other symbols
            source = self.variables[program.inputs[binding.position]]
            names = self.unknown_names if program.sizes.is_unknown(symbol) else self.size_names
            self.early.add(symbol)
            if binding.dim is None:
                names[symbol] = source
                continue
            names[symbol] = self.new_variable(symbol.name)
            self.size_lines.append(f"{names[symbol]} = {source}.shape[{binding.dim}]")

    def bind_sizes(self, extern: Extern, names: Sequence[str]) -> None:
        """Read the symbols that the results of a call tell from the variables of the results."""
        for symbol, place in extern.binds:
            if symbol not in self.unknown_names and place.dim is not None:
                self.unknown_names[symbol] = self.new_variable(symbol.name)
                self.lines.append(f"{self.unknown_names[symbol]} = {names[place.index or 0]}.shape[{place.dim}]")

    def numbers_bound(self, extern: Extern) -> list[str]:
        """Variables for the ints that a call returns, which are symbols."""
        for symbol, place in extern.binds:
            if place.dim is None and symbol not in self.unknown_names:
                self.unknown_names[symbol] = self.new_variable(symbol.name)
        return [self.unknown_names[symbol] for symbol, place in extern.binds if place.dim is None]

    def plain(self, value: Any) -> str:
        """A size, or a condition, as an expression of the symbols' variables."""
        value = self.program.sizes.with_sizes_of_inputs(value)  # a later fact may have replaced a symbol
        if not isinstance(value, _EXPRESSIONS):
            return literal(value)
        names = {**self.size_names, **self.unknown_names}
        return str(value.substitute({symbol: Symbol(names[symbol]) for symbol in value.symbols}))

    def number(self, value: Any) -> str:
        """A size in `call`. Each expression is computed once."""
        value = self.program.sizes.expression(value)
        if not isinstance(value, Expr | FloatExpr) or isinstance(value, Symbol):
            return self.plain(value)
        if value not in self.numbers_of_call:
            self.numbers_of_call[value] = self.new_variable("size", numbered=True)
            lines = self.size_lines if value.symbols <= self.early else self.lines
            lines.append(f"{self.numbers_of_call[value]} = {self.plain(value)}")
        return self.numbers_of_call[value]

    def sizes(self, values: Sequence[Any]) -> str:
        """A tuple of sizes in `call`."""
        return sequence_text("(", [self.number(value) for value in values], ")")

    def bind(self, key: Any, prefix: str, text: str) -> str:
        """The variable bound to the expression `text`; `key` identifies the expression."""
        if key not in self.bound:
            self.bound[key] = self.new_variable(prefix, numbered=True)
            self.bindings.append(f"{self.bound[key]} = {text}")
        return self.bound[key]

    def new_variable(self, name: str, numbered: bool = False) -> str:
        text = re.sub(r"\W", "_", name, flags=re.ASCII)
        if text in _RESERVED:
            text += "_"
        if not text.isidentifier():
            text = "_" + text
        if not numbered and text not in self.taken:
            self.taken.add(text)
            return text
        number = self.numbers.get(text, 0)
        while f"{text}_{number}" in self.taken:
            number += 1
        self.numbers[text] = number + 1
        self.taken.add(f"{text}_{number}")
        return f"{text}_{number}"

    def buffer(self, name: str) -> Buffer:
        buffer = self.program.buffers[name]
        return self.buffer(buffer.value) if isinstance(buffer.value, str) else buffer

    def variable(self, name: str) -> str:
        """The variable that holds a buffer's tensor."""
        buffer = self.buffer(name)
        if buffer.kind == "constant" and isinstance(buffer.value, int):
            number = f"rt.number({buffer.value}, {str(buffer.layout.device)!r})"
            return self.bind(("constant", buffer.name), "number", number)
        if buffer.kind == "constant":
            return self.bind(("constant", buffer.name), "constant", f"rt.constant({buffer.name!r})")
        return self.variables[buffer.name]

    def view(self, view: View) -> str:
        """An expression for a view of a buffer."""
        base, layout = self.buffer(view.base), view.layout
        if layout == base.layout:
            return self.variable(view.base)
        if base.name in self.placed:
            return self._arena_view(base.name, layout)
        if layout.dtype != base.layout.dtype:
            raise VerificationError(f"a view of {view.base} changes its dtype, which only intermediates may")
        shape = f"{self.sizes(layout.size)}, {self.sizes(layout.stride)}, {self.number(layout.offset)}"
        variable = self.variable(view.base)
        if is_symbolic(layout):
            self.needs_context = True
            if base.name in self.fresh:
                return f"{self.as_strided()}({variable}, {shape})"
            return f"{self.bind('view', 'make_view', 'rt.view')}({variable}, {shape})"
        if base.kind == "constant":
            return self.bind(("view", base.name, layout), "constant_view", f"rt.view({variable}, {shape})")
        self.needs_context = True
        if base.name in self.program.static_inputs:
            return f"{self.bind(('view', base.name, layout), 'view', f'rt.static_view({shape})')}({variable})"
        if base.name in self.fresh:
            return f"{self.as_strided()}({variable}, {shape})"
        if layout.offset == 0:  # without an offset, the view begins at the base's start
            return f"{self.as_strided()}({variable}, {literal(layout.size)}, {literal(layout.stride)})"
        return f"{self.bind('view', 'make_view', 'rt.view')}({variable}, {shape})"

    def as_strided(self) -> str:
        return self.bind("as_strided", "as_strided", "torch.as_strided")

    def _arena_view(self, name: str, layout: Layout) -> str:
        key = ("arena view", name, layout)
        if key not in self.bound:
            self.bound[key] = self.new_variable(f"{self.variables[name]}_as", numbered=True)
            self.add_slot(self.bound[key], name, layout)
        return self.bound[key]

    def add_slot(self, variable: str, name: str, layout: Layout) -> None:
        """A tensor in the memory of an intermediate."""
        self.slot_names.append(variable)
        offset = layout.offset * layout.dtype.itemsize
        if self.size_names:
            size, stride = (
                sequence_text("(", [self.plain(one) for one in part], ")") for part in (layout.size, layout.stride)
            )
            self.slots.append(f"({self.pieces[name]}, {self.plain(offset)}, {size}, {stride}, {layout.dtype})")
            return
        offset = self.placed[name] + offset
        self.slots.append(f"({offset}, {literal(layout.size)}, {literal(layout.stride)}, {layout.dtype})")

    def argument(self, value: Any) -> str:
        """An expression for one argument of a library call, or one returned value."""
        if isinstance(value, str) and value in self.program.buffers:
            return self.variable(value)
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, tuple) and type(value) is tuple:
            return sequence_text("(", [self.argument(item) for item in value], ")")
        if isinstance(value, list):
            return sequence_text("[", [self.argument(item) for item in value], "]")
        if isinstance(value, Expr | FloatExpr):
            return self.number(value)
        if isinstance(value, _EXPRESSIONS):
            return self.plain(value)
        try:
            return literal(value)
        except NotLiteral:
            return self.object(value)

    def object(self, value: Any) -> str:
        name = f"object_{len(self.objects)}"
        for known, other in self.objects.items():
            if other is value:
                name = known
        self.objects[name] = value
        return self.bind(("object", name), "object", f"rt.object({name!r})")


@_print_step.register(Allocate)
def _allocate(printer: _Printer, step: Allocate) -> None:
    variable = printer.variables[step.name]
    if step.layout.offset != 0:
        raise VerificationError(f"{step.name} is allocated at an offset")
    if step.name in printer.placed:
        printer.add_slot(variable, step.name, step.layout)
        return
    printer.fresh.add(step.name)
    layout = step.layout
    if is_symbolic(layout):
        where = f"{layout.dtype}, {str(layout.device)!r}"
        allocate = printer.bind(("allocator", where), "allocate", f"rt.allocator({where})")
        printer.lines.append(f"{variable} = {allocate}({printer.sizes(layout.size)}, {printer.sizes(layout.stride)})")
        return
    shape = f"{literal(layout.size)}, {literal(layout.stride)}"
    if is_dense(layout):
        like = printer.bind(
            ("template", layout), "template", f"rt.template({shape}, {layout.dtype}, {str(layout.device)!r})"
        )
        function = printer.bind("empty_like", "empty_like", "torch._C._VariableFunctions.empty_like")
        printer.lines.append(f"{variable} = {function}({like})")
    else:
        where = f"dtype={layout.dtype}, device={str(layout.device)!r}"
        printer.lines.append(f"{variable} = torch.empty_strided({shape}, {where})")


@_print_step.register(Reuse)
def _reuse(printer: _Printer, step: Reuse) -> None:
    if step.name in printer.placed:
        printer.add_slot(printer.variables[step.name], step.name, step.layout)
        return
    # outside of the arena: view the old tensor's memory under the new layout
    new, old, layout = printer.variables[step.name], printer.variables[step.old], step.layout
    printer.fresh.add(step.name)
    printer.lent.append(old)
    before = printer.program.buffers[step.old].layout
    if layout == before:
        printer.lines.append(f"{new} = {old}")
        return
    printer.needs_context = True
    if layout.dtype != before.dtype:
        old = f"{old}.view({layout.dtype})"
    shape = f"{printer.sizes(layout.size)}, {printer.sizes(layout.stride)}, {printer.number(layout.offset)}"
    printer.lines.append(f"{new} = {printer.as_strided()}({old}, {shape})")


@_print_step.register(ReuseIfUnshared)
def _take_over(printer: _Printer, step: ReuseIfUnshared) -> None:
    printer.needs_context = True
    printer.fresh.add(step.name)
    layout, old = step.layout, printer.variables[step.old]
    shape = f"{literal(layout.size)}, {literal(layout.stride)}, {layout.dtype}, {layout_bytes(layout)}"
    take = printer.bind(("take", layout), "take_over", f"rt.memory_reuser({shape})")
    printer.lines += [f"{printer.variables[step.name]} = {take}({old})", f"del {old}"]


@_print_step.register(Free)
def _free(printer: _Printer, step: Free) -> None:
    if step.name not in printer.placed:
        printer.lines.append(f"del {printer.variables[step.name]}")


@_print_step.register(Launch)
def _launch(printer: _Printer, step: Launch) -> None:
    touched = sum(layout_bytes(printer.program.buffers[name].layout) for name in step.args)
    small = isinstance(touched, int) and touched <= SMALL_KERNEL_BYTES
    sizes = f", sizes={len(step.sizes)}" if step.sizes else ""
    kernel = printer.bind(
        ("kernel", step.kernel, small),
        "kernel",
        f"rt.kernel({step.kernel!r}, {len(step.args)}{', small=True' if small else ''}{sizes})",
    )
    arguments = [printer.variable(name) for name in step.args] + [printer.number(size) for size in step.sizes]
    printer.lines.append(f"{kernel}({', '.join(arguments)})")
    if printer.lent:
        printer.lines.append(f"del {', '.join(printer.lent)}")
        printer.lent.clear()


@_print_step.register(Call)
def _call(printer: _Printer, step: Call) -> None:
    extern = step.extern
    printer.needs_context = True
    arguments = [printer.argument(value) for value in extern.args]
    defaults = _defaults(extern)
    arguments += [
        f"{key}={printer.argument(value)}"
        for key, value in extern.kwargs.items()
        if not (key in defaults and type(value) is type(defaults[key]) and value == defaults[key])
    ]
    if extern.style == "out":
        outputs = [name for name in extern.outputs if name is not None]
        if len(outputs) != 1:
            raise VerificationError(f"{extern.name} writes into {len(outputs)} outputs; only one can be passed as out=")
        arguments.append(f"out={printer.variable(outputs[0])}")
    call = f"{_target(printer, extern)}({', '.join(arguments)})"
    if extern.style != "returns":
        printer.lines.append(call)
        if extern.style == "out":
            printer.checks = True
            size = printer.sizes(printer.program.buffers[outputs[0]].layout.size)
            printer.lines.append(f"if unchecked: check_size({printer.variable(outputs[0])}, {outputs[0]!r}, {size})")
        return
    outputs = [name for name in extern.outputs if name is not None]
    names = [printer.variables[name] if name is not None else "_" for name in extern.outputs]
    if not outputs:
        numbers = printer.numbers_bound(extern)
        if numbers:
            one = extern.binds[0][1].index is None
            call = f"{numbers[0] if one else sequence_text('(', numbers, ')')} = {call}"
        printer.lines.append(call)
        return
    several = len(names) > 1 or _returns_sequence(extern)
    printer.lines.append(f"{sequence_text('(', names, ')') if several else names[0]} = {call}")
    printer.bind_sizes(extern, names)
    for at, name in enumerate(extern.outputs):
        if name is None:
            continue
        layout = printer.program.buffers[name].layout
        own = extern.promised[at] if extern.promised else None
        if own is not None:
            layout = replace(layout, size=own[0], stride=own[1])
        printer.checks = True
        called = f"{name} of {extern.target}" if isinstance(extern.target, OpOverload) else name
        shape = f"{printer.sizes(layout.size)}, {printer.sizes(layout.stride)}"
        promised = f"{called!r}, {shape}, {layout.dtype}"
        check = printer.new_variable("check_layout", numbered=True)
        if is_symbolic(layout):
            printer.bindings.append(f"{check} = rt.sized_layout_check({called!r}, {layout.dtype}, repaired)")
        else:
            printer.bindings.append(f"{check} = rt.layout_check({promised}, {str(layout.device)!r}, repaired)")
        variable, memory = (
            printer.variables[name],
            "None" if may_alias_arguments(extern) or not printer.placed else "block.memory",
        )
        whole = f"conform({variable}, {promised}, {memory}, repaired)"
        given = f", {shape}" if is_symbolic(layout) else ""
        printer.lines.append(f"{variable} = {whole} if unchecked else {check}({variable}{given})")


@_print_step.register(ReturnValues)
def _return(printer: _Printer, step: ReturnValues) -> None:
    values = []
    for value in step.values:
        expression = printer.argument(value)
        if isinstance(value, View):
            printer.lines.append(f"{(result := printer.new_variable('result', numbered=True))} = {expression}")
            expression = result
        elif isinstance(value, str) and value in printer.program.buffers:
            # the receiver may change a constant
            expression += ".clone()" if printer.buffer(value).kind == "constant" else ""
        values.append(expression)
    printer.lines.append(f"return {sequence_text('(', values, ')')}")


def _target(printer: _Printer, extern: Extern) -> str:
    """The variable bound to the callee."""
    target = extern.target
    if not isinstance(target, torch._ops.OpOverload):
        return printer.object(target)
    name = str(target)
    finder = "operator_into" if extern.style == "out" else "operator"
    prefix = name.split(".")[1] + ("_into" if extern.style == "out" else "")
    return printer.bind((finder, name), prefix, f"rt.{finder}({name!r})")


def _defaults(extern: Extern) -> dict[str, Any]:
    """Keyword arguments that the printed call may omit because they equal the operator's defaults."""
    schema = getattr(extern.target, "_schema", None)
    if schema is None:
        return {}
    return {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}


def _returns_sequence(extern: Extern) -> bool:
    """True if a call with one output still returns a tuple or list around it."""
    schema = getattr(extern.target, "_schema", None)
    return schema is not None and (len(schema.returns) > 1 or str(schema.returns[0].type) == "List[Tensor]")


def is_symbolic(layout: Layout) -> bool:
    return any(isinstance(value, Expr) for value in (*layout.size, *layout.stride, layout.offset))


def is_dense(layout: Layout) -> bool:
    """True if the strides belong to some order of the dimensions without gaps, which empty_like preserves."""
    expected = 1
    for stride, size in sorted(zip(layout.stride, layout.size, strict=True)):
        if size == 1:
            continue
        if stride != expected or size == 0:
            return False
        expected *= size
    return True
