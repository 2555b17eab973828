"""Prints a program as Python source: `bind(rt)` looks everything up once, and returns `call(inputs...) -> tuple`.

Where sizes change between calls, `at(sizes...)` within `bind` computes what depends on them, once for each combination
of sizes, and returns their `call`. Text only; stator.runtime.host has the functions that the text calls. Nothing here
plans memory or orders steps.
"""

from __future__ import annotations

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
from stator.inductor.program.steps import (
    Allocate,
    Call,
    Free,
    HostSource,
    Launch,
    Program,
    ReturnValues,
    Reuse,
    ReuseIfUnshared,
)
from stator.prims.devices import CPU
from stator.runtime.cuda.products import DIRECT_PRODUCTS
from stator.runtime.host import OF_SIZES
from stator.shapes.conditions import Comparison, Conjunction, Disjunction
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr

from .literals import NotLiteral, literal, sequence_text
from .names import Names
from .segments import Check, DeviceStep, join_segments, segment_texts

# A kernel with no more memory than this runs for less time than releasing the interpreter lock takes
SMALL_KERNEL_BYTES = 64 << 10

_HEAD = '''\
"""One compiled graph: `bind` looks everything up once, `call` runs it. The plan behind it is in 50_program.txt.

Runs again by stator.inductor.codegen.host.load_dumped(folder), with the kernels of 60_code.cpp.
"""

import torch
from torch import device, inf, nan

from stator.runtime.memory.arena import Block, idle
from stator.runtime.host import check_size, conform
'''

_OF_NUMBERS = "from math import ceil, floor, trunc\n\nfrom stator.shapes.floats import quotient\n"
_EXPRESSIONS = (Expr, FloatExpr, Comparison, Conjunction, Disjunction)

_print_step: Registry[type, Any] = Registry("program step")


def print_host(program: Program) -> HostSource:
    """The text and the objects of a program. The text defines `KERNELS` and `bind(rt)`."""
    return _Printer(program).print()


@dataclass(slots=True)
class _Printer:
    program: Program
    bindings: list[str] = field(default_factory=list)
    size_bindings: list[str] = field(default_factory=list)  # made anew for each combination of sizes
    lines: list[str] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    bound: dict[Any, str] = field(default_factory=dict)  # key of a bound expression -> its variable
    slots: list[str] = field(default_factory=list)  # text of each arena slot
    slot_names: list[str] = field(default_factory=list)
    placed: dict[str, int] = field(default_factory=dict)  # buffer -> offset in the arena
    pieces: dict[str, int] = field(default_factory=dict)  # buffer -> number of its piece of memory
    variables: dict[str, str] = field(default_factory=dict)  # buffer -> its variable
    names: Names = field(default_factory=Names)  # of variables
    fresh: set[str] = field(default_factory=set)  # buffers allocated for this call alone
    lent: list[str] = field(default_factory=list)  # variables whose memory the next launch writes to
    needs_context: bool = False
    checks: bool = False
    size_names: dict[Symbol, str] = field(default_factory=dict)  # symbol that `at` takes -> its variable
    late_names: dict[Symbol, str] = field(default_factory=dict)  # other symbols, bound so far -> their variables
    plain_texts: dict[Any, str] = field(default_factory=dict)  # expression -> its text over these variables
    early: set[Symbol] = field(default_factory=set)  # symbols that inputs tell
    size_lines: list[str] = field(default_factory=list)  # read and compute sizes of inputs in `call`

    def print(self) -> HostSource:
        program = self.program
        arena = plan_arena(program)
        self.placed = {entry.name: entry.offset for entry in arena.placed}
        self.pieces = {name: number for number, block in enumerate(arena.blocks) for name in block.names}
        for name in (*program.buffers, *program.inputs):
            if name not in self.variables:
                self.variables[name] = self.names.new(name)
        self._name_sizes()
        for step in program.steps:
            _print_step[type(step)](self, step)
        call = self._call()
        bound = [*self._memory(arena), *self.bindings, "", *call, ""]
        if self.size_names:
            bound = [*self.bindings, "", *self._at(arena, call), "", self._sized_call(), ""]
        parts = [
            _HEAD,
            *([_OF_NUMBERS] if self.size_names or self.late_names else []),
            f"KERNELS = {sorted(program.kernels)!r}\n\n",
            "def bind(rt):",
            *(_indented(bound)),
        ]
        return HostSource("\n".join(parts), self.objects, self.constants)

    def _at(self, arena: ArenaLayout, call: list[str]) -> list[str]:
        """The function that binds a combination of sizes."""
        given = ", ".join(self.size_names.values())
        return [f"def at({given}):", *_indented([*self._memory(arena), *self.size_bindings, "", *call])]

    def _sized_call(self) -> str:
        bindings = self.program.size_bindings
        places = [bindings[symbol] for symbol in self.size_names]
        text = [f"({place.position}, {-1 if place.dim is None else place.dim})" for place in places]
        return f"return rt.for_sizes(at, {sequence_text('(', text, ')')}{', boxed=True' if self.program.boxed else ''})"

    def _memory(self, arena: ArenaLayout) -> list[str]:
        """Intermediates, and whether results of library calls have been checked."""
        checks = ["unchecked, repaired = True, set()"] if self.checks else []
        if not self.slots:
            return checks
        device = str(self.program.device)
        slots = [f"    {slot},  # {name}" for slot, name in zip(self.slots, self.slot_names, strict=True)]
        if not self.size_names:
            opening = [
                f"# {arena.bytes:,} bytes of intermediates: (byte offset, size, stride, dtype)",
                f"arena = rt.arena({device!r}, {arena.bytes}, [",
            ]
        else:
            pieces = [f"({one.start}, {one.end}, {self.plain(layout_bytes(one.layout))})" for one in arena.blocks]
            opening = [
                f"# intermediates, {arena.bytes:,} bytes in the example: (first step, last step, bytes) of each piece,",
                "# (piece, byte offset, size, stride, dtype)",
                f"arena = rt.placed_arena({device!r}, [{', '.join(pieces)}], [",
            ]
        return [*opening, *slots, "])", "token = arena.token", *checks]

    def _call(self) -> list[str]:
        """The function that runs the program."""
        program = self.program
        arguments = ", ".join(self.variables[name] for name in program.inputs)
        lines = [
            *(["nonlocal unchecked"] if self.checks else []),
            *([f"[{arguments}] = inputs", "inputs.clear()"] if program.boxed else []),
            *self._body(),
        ]
        return [
            f"def call({'inputs' if program.boxed else arguments}):",
            *_indented(lines),
            "",
            *(["call.boxed = True"] if program.boxed and not self.size_names else []),
            "return call",
        ]

    def _body(self) -> list[str]:
        lines = join_segments(self.lines, self._segment)
        result = lines.pop()  # the return comes after memory is freed
        if self.checks:
            lines.append("unchecked = repaired")  # true unless empty
        if self.needs_context:
            lines = ["with block.context:", *_indented(lines)]
        if self.slots:
            names = sequence_text("(", self.slot_names, ")")
            lines = [f"{names} = block.tensors.get(token) or arena.fit(block)", *lines]
        if self.slots or self.needs_context:
            pool, find = "idle", []
            if self.slots and self.program.device != CPU:  # the pool of the stream that the call runs on
                bound = self.bind("idle blocks", "idle_on_stream", f"rt.idle_on({str(self.program.device)!r})")
                pool, find = "pool", [f"pool = {bound}()"]
            take = ["try:", f"    block = {pool}.pop()", "except IndexError:", "    block = Block()"]
            lines = [*find, *take, *lines, f"{pool}.append(block)"]
        return [*self.size_lines, *lines, result]

    def _segment(self, steps: Sequence[DeviceStep]) -> str:
        """The line that runs several steps of a device by one call."""
        text, tensors = segment_texts(steps)
        segment = self.bind_at_sizes(("segment", id(steps[0])), "segment", text)  # each line remembers its own tensors
        return f"{segment}({', '.join(tensors)})"

    def is_settled(self, *values: Any) -> bool:
        """True if these are tensors, at addresses that seldom change: those of the arena, parameters, constants."""
        for value in values:
            if not isinstance(value, View) and not (isinstance(value, str) and value in self.program.buffers):
                return False
            base = self.buffer(value.base if isinstance(value, View) else value)
            layout = value.layout if isinstance(value, View) else base.layout
            kept = base.name in self.placed or base.name in self.program.static_inputs or base.kind == "constant"
            if not kept or self.is_late(*layout.size, *layout.stride, layout.offset):
                return False
        return True

    # --- sizes ---

    def _name_sizes(self) -> None:
        """Give the symbols of inputs variables. Sizes that depend on data are others in each call, and so may be ints
        that no layout depends on, such as the counter of a loop: `call` reads both, so that no code is bound to
        them."""
        program = self.program
        environment = program.sizes.environment
        buffers = program.buffers.values()
        layouts = [one for buffer in buffers for one in (*buffer.layout.size, *buffer.layout.stride, buffer.value)]
        known = map(program.sizes.with_sizes_of_inputs, layouts)
        bound = {symbol for one in known if isinstance(one, _EXPRESSIONS) for symbol in one.symbols}
        for symbol, binding in program.size_bindings.items():
            if environment is not None and environment.simplify(symbol) is not symbol:
                continue  # facts express it by other symbols
            self.early.add(symbol)
            if not program.sizes.is_unknown(symbol) and (binding.dim is not None or symbol in bound):
                self.size_names[symbol] = self.names.new(symbol.name)
                continue
            source = self.variables[program.inputs[binding.position]]
            if binding.dim is None:
                self.late_names[symbol] = source
                continue
            self.late_names[symbol] = self.names.new(symbol.name)
            self.size_lines.append(f"{self.late_names[symbol]} = {source}.shape[{binding.dim}]")

    def read_sizes(self, extern: Extern, names: Sequence[str]) -> None:
        """Read the symbols that the results of a call tell from the variables of the results."""
        for symbol, place in extern.binds:
            if symbol not in self.late_names and place.dim is not None:
                self.late_names[symbol] = self.names.new(symbol.name)
                self.lines.append(f"{self.late_names[symbol]} = {place.read_text(names[place.index or 0])}")

    def numbers_bound(self, extern: Extern) -> list[str]:
        """Variables for the ints that a call returns, which are symbols."""
        for symbol, place in extern.binds:
            if place.dim is None and symbol not in self.late_names:
                self.late_names[symbol] = self.names.new(symbol.name)
        return [self.late_names[symbol] for symbol, place in extern.binds if place.dim is None]

    def is_late(self, *values: Any) -> bool:
        """True if a value depends on sizes that only `call` finds out."""
        known = [self.program.sizes.with_sizes_of_inputs(value) for value in values]
        return any(isinstance(one, _EXPRESSIONS) and not one.symbols <= self.size_names.keys() for one in known)

    def plain(self, value: Any) -> str:
        """A size, or a condition, as an expression of the symbols' variables."""
        value = self.program.sizes.with_sizes_of_inputs(value)  # a later fact may have replaced a symbol
        if not isinstance(value, _EXPRESSIONS):
            return literal(value)
        text = self.plain_texts.get(value)
        if text is None:
            names = {**self.size_names, **self.late_names}
            text = str(value.substitute({symbol: Symbol(names[symbol]) for symbol in value.symbols}))
            self.plain_texts[value] = text
        return text

    def plain_sizes(self, values: Sequence[Any]) -> str:
        return sequence_text("(", [self.plain(value) for value in values], ")")

    def plain_layout(self, layout: Layout) -> str:
        return f"{self.plain_sizes(layout.size)}, {self.plain_sizes(layout.stride)}"

    def number(self, value: Any) -> str:
        """A size in `call`. Each expression is computed once."""
        value = self.program.sizes.with_sizes_of_inputs(value)  # a later fact may have replaced a symbol
        if not isinstance(value, Expr | FloatExpr) or isinstance(value, Symbol):
            return self.plain(value)
        if not self.is_late(value):
            return self.bind_at_sizes(("number", value), "size", self.plain(value))
        lines = self.size_lines if value.symbols <= self.early else self.lines
        return self._bind(lines, ("number", value), "size", self.plain(value))

    def sizes(self, values: Sequence[Any]) -> str:
        """A tuple of sizes in `call`."""
        if not any(isinstance(value, Expr) for value in values):
            return literal(tuple(values))
        if self.is_late(*values):
            return sequence_text("(", [self.number(value) for value in values], ")")
        return self.bind_at_sizes(("sizes", tuple(values)), "sizes", self.plain_sizes(values))

    def bind(self, key: Any, prefix: str, text: str) -> str:
        """The variable bound to the expression `text`; `key` identifies the expression."""
        return self._bind(self.bindings, key, prefix, text)

    def bind_at_sizes(self, key: Any, prefix: str, text: str) -> str:
        """`bind` for an expression of sizes, which may change between calls."""
        return self._bind(self.size_bindings if self.size_names else self.bindings, key, prefix, text)

    def bind_layout(self, layout: Layout, prefix: str, text: str) -> str:
        """`bind` for an object of a layout that is not late, which `text` makes."""
        return (self.bind_at_sizes if is_symbolic(layout) else self.bind)(text, prefix, text)

    def _bind(self, into: list[str], key: Any, prefix: str, text: str) -> str:
        if key not in self.bound:
            self.bound[key] = self.names.new(prefix, numbered=True)
            into.append(f"{self.bound[key]} = {text}")
        return self.bound[key]

    def buffer(self, name: str) -> Buffer:
        buffer = self.program.buffers[name]
        return self.buffer(buffer.value) if isinstance(buffer.value, str) else buffer

    def variable(self, name: str) -> str:
        """The variable that holds a buffer's tensor."""
        buffer = self.buffer(name)
        if buffer.kind == "constant" and isinstance(buffer.value, int):
            number = f"rt.number({buffer.value}, {str(buffer.layout.device)!r})"
            return self.bind(("constant", buffer.name), "number", number)
        if buffer.kind == "constant" and isinstance(buffer.value, FloatExpr):
            text = f"rt.real_number({self.plain(buffer.value)}, {str(buffer.layout.device)!r})"
            return self.bind_at_sizes(("constant", buffer.name), "number", text)
        if buffer.kind == "constant":
            self.constants[buffer.name] = buffer.value
            return self.bind(("constant", buffer.name), "constant", f"rt.constant({buffer.name!r})")
        return self.variables[buffer.name]

    def view(self, view: View) -> str:
        """An expression for a view of a buffer."""
        base, layout = self.buffer(view.base), view.layout
        if layout == base.layout:
            return self.variable(view.base)
        late = self.is_late(*layout.size, *layout.stride, layout.offset)
        if base.name in self.placed and not late:
            return self._arena_view(base.name, layout)
        variable = self.variable(view.base)
        if layout.dtype != base.layout.dtype:
            if base.name not in self.placed:
                raise VerificationError(f"a view of {view.base} changes its dtype, which only intermediates may")
            variable = f"{variable}.view({layout.dtype})"
        bound = "" if late else f"{self.plain_layout(layout)}, {self.plain(layout.offset)}"
        if base.kind == "constant" and not late:
            return self.bind_layout(layout, "constant_view", f"rt.view({variable}, {bound})")
        self.needs_context = True
        if base.name in self.program.static_inputs and not late:
            bind = self.bind_at_sizes if is_symbolic(layout) else self.bind  # each input's views are kept by themselves
            return f"{bind(('view', base.name, layout), 'view', f'rt.static_view({bound})')}({variable})"
        shape = f"{self.sizes(layout.size)}, {self.sizes(layout.stride)}"
        if base.name in self.fresh:
            return f"{self.as_strided()}({variable}, {shape}, {self.number(layout.offset)})"
        if layout.offset == 0:  # without an offset, the view begins at the base's start
            return f"{self.as_strided()}({variable}, {shape})"
        return f"{self.bind('view', 'make_view', 'rt.view')}({variable}, {shape}, {self.number(layout.offset)})"

    def as_strided(self) -> str:
        return self.bind("as_strided", "as_strided", "torch.as_strided")

    def _arena_view(self, name: str, layout: Layout) -> str:
        key = ("arena view", name, layout)
        if key not in self.bound:
            self.bound[key] = self.names.new(f"{self.variables[name]}_as", numbered=True)
            self.add_slot(self.bound[key], name, layout)
        return self.bound[key]

    def add_slot(self, variable: str, name: str, layout: Layout) -> None:
        """A tensor in the memory of an intermediate."""
        self.slot_names.append(variable)
        offset, shape = layout.offset * layout.dtype.itemsize, self.plain_layout(layout)
        if self.size_names:
            self.slots.append(f"({self.pieces[name]}, {self.plain(offset)}, {shape}, {layout.dtype})")
        else:
            self.slots.append(f"({self.plain(self.placed[name] + offset)}, {shape}, {layout.dtype})")

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
    where = f"{layout.dtype}, {str(layout.device)!r}"
    if printer.is_late(*layout.size, *layout.stride):
        allocate = printer.bind(("allocator", where), "allocate", f"rt.allocator({where})")
        printer.lines.append(f"{variable} = {allocate}({printer.sizes(layout.size)}, {printer.sizes(layout.stride)})")
        return
    text = f"rt.allocation({printer.plain_layout(layout)}, {where})"
    printer.lines.append(f"{variable} = {printer.bind_layout(layout, 'allocate', text)}()")


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
    text = f"rt.memory_reuser({printer.plain_layout(layout)}, {layout.dtype}, {printer.plain(layout_bytes(layout))})"
    take = printer.bind_layout(layout, "take_over", text)
    printer.lines += [f"{printer.variables[step.name]} = {take}({old})", f"del {old}"]


@_print_step.register(Free)
def _free(printer: _Printer, step: Free) -> None:
    if step.name not in printer.placed:
        printer.lines.append(f"del {printer.variables[step.name]}")


@_print_step.register(Launch)
def _launch(printer: _Printer, step: Launch) -> None:
    touched = sum(layout_bytes(printer.program.buffers[name].layout) for name in step.args)
    device = printer.program.buffers[step.args[-1]].layout.device
    which = f"{step.kernel!r}, {len(step.args)}" + ("" if device == CPU else f", {str(device)!r}")
    if printer.is_late(*step.sizes):
        made = printer.bind(("kernel", which), "kernel_of_sizes", f"rt.kernel_of_sizes({which})")
        kernel = f"{made}({printer.sizes(step.sizes)})"
    elif isinstance(touched, Expr) or step.sizes:
        is_known = device == CPU and not printer.is_late(touched)
        small = f", small={printer.plain(touched)} <= {SMALL_KERNEL_BYTES}" if is_known else ""
        text = f"rt.kernel({which}{small}, sizes={printer.plain_sizes(step.sizes)})"
        kernel = printer.bind_at_sizes(("kernel", text), "kernel", text)
    else:
        small = ", small=True" if device == CPU and touched <= SMALL_KERNEL_BYTES else ""
        text = f"rt.kernel({which}{small})"
        kernel = printer.bind(("kernel", text), "kernel", text)
    tensors = [printer.variable(name) for name in step.args]
    line = f"{kernel}({', '.join(tensors)})"
    settled = device != CPU and not printer.is_late(*step.sizes) and printer.is_settled(*step.args)
    printer.lines.append(DeviceStep.of(line, str(device), kernel, tensors) if settled else line)
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
    target = _target(printer, extern)
    call = f"{target}({', '.join(arguments)})"
    if extern.style == "out":
        printer.checks = True
        layout, tensors = printer.program.buffers[outputs[0]].layout, [*arguments[:-1], printer.variable(outputs[0])]
        direct = str(extern.target) in DIRECT_PRODUCTS and len(arguments) == len(extern.args) + 1
        if direct and layout.device != CPU and printer.is_settled(*extern.args, outputs[0]):
            call = DeviceStep.of(call, str(layout.device), target, tensors, ("out",))
        check = f"if unchecked: check_size({tensors[-1]}, {outputs[0]!r}, {printer.sizes(layout.size)})"
        printer.lines += [call, Check(check)]
        return
    if extern.style != "returns":
        printer.lines.append(call)
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
    printer.read_sizes(extern, names)
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
        late = printer.is_late(*layout.size, *layout.stride)
        text = f"rt.layout_check({promised}, {str(layout.device)!r}, repaired)"
        if late:
            text = f"rt.sized_layout_check({called!r}, {layout.dtype}, repaired)"
        check = printer.bind_at_sizes(("check", name), "check_layout", text)
        variable, memory = (
            printer.variables[name],
            "None" if may_alias_arguments(extern) or not printer.placed else "block.memory",
        )
        whole = f"conform({variable}, {promised}, {memory}, repaired)"
        given = f"{variable}, {shape}" if late else variable
        printer.lines.append(f"{variable} = {whole} if unchecked else {check}({given})")


@_print_step.register(ReturnValues)
def _return(printer: _Printer, step: ReturnValues) -> None:
    values = []
    for value in step.values:
        expression = printer.argument(value)
        if isinstance(value, View):
            printer.lines.append(f"{(result := printer.names.new('result', numbered=True))} = {expression}")
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
    if name in OF_SIZES:
        given = [(value if isinstance(value, View) else printer.buffer(value)).layout.size for value in extern.args]
        if not printer.is_late(*[length for size in given for length in size]):
            text = f"rt.operator_of_sizes({name!r}, {', '.join(map(printer.plain_sizes, given))})"
            return printer.bind_at_sizes(text, name.split(".")[1], text)
    into = extern.mutates if "out" in extern.kwargs else extern.outputs if extern.style == "out" else ()
    devices = [printer.program.buffers[output].layout.device for output in into if output is not None]
    if not devices:
        return printer.bind(("operator", name), name.split(".")[1], f"rt.operator({name!r})")
    text = repr(name) if devices[0] == CPU else f"{name!r}, {str(devices[0])!r}"
    return printer.bind(("operator into", text), name.split(".")[1] + "_into", f"rt.operator_into({text})")


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


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]
