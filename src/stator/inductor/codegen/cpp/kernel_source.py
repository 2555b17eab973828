"""Turns a group into a self-contained kernel, named by a hash of its text. ABI: runtime/kernel_abi.md."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from stator.base.config import Options
from stator.base.errors import CompileError
from stator.inductor.buffers import Buffer
from stator.inductor.codegen.kernel import Kernel, merge
from stator.inductor.codegen.sampled_means import sample_means
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule.groups import ConvolutionGroup, Group
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge
from stator.shapes.expr import ExprLike

from .columns import ColumnEmitter
from .convolutions import print_convolution
from .indices import CppIndexPrinter
from .moved_halves import move_halves
from .types import LANES, memory_type
from .vectorize import choose_order

_DEFAULT = Options()


def print_kernel(
    group: Group,
    buffers: Mapping[str, Buffer],
    options: Options = _DEFAULT,
    knowledge: SizeKnowledge = NUMBERS_ONLY,
) -> KernelSource:
    """C++ text of a group. Groups that differ only in names give identical text. Raises CompileError for operations
    that C++ kernels cannot compute."""
    if isinstance(group, ConvolutionGroup):
        return _convolution(group, buffers, knowledge)
    for member in group.members:
        for op in member.body.ops:
            if op.dtype is not None:
                memory_type(op.dtype)
    kernel = merge(group, buffers, knowledge, CppIndexPrinter, not options.exact_rounding)
    if 0 in kernel.sizes[kernel.outer :]:
        raise CompileError("inductor", "a reduction over no elements reached code generation")
    pointers = {name: f"in{at}" for at, name in enumerate(group.reads)}
    pointers |= {name: f"out{at}" for at, name in enumerate(group.writes)}
    # an input that is written in place is one pointer, so that the compiler knows that reads and writes alias
    in_place = {buffers[name].value: name for name in group.writes if isinstance(buffers[name].value, str)}
    pointers |= {name: pointers[in_place[name]] for name in group.reads if name in in_place}
    integers = move_halves(kernel, pointers, buffers)
    order = choose_order(kernel, options.vectorize)
    sample_means(kernel, order.vector, 4 * LANES)
    emitter = ColumnEmitter(kernel, order, pointers, buffers)
    # An empty loop must print nothing: values hoisted out of it would be loaded anyway.
    body = [] if 0 in kernel.sizes else emitter.emit()
    aliased = _aliased(group, buffers, in_place)
    lines = _pointers(group, buffers, pointers, {*aliased}, in_place, integers)
    error = f"(int64_t *)pointers[{len(group.reads) + len(group.writes)}]"
    if emitter.uses_error:
        lines.append(f"    int64_t *error = {error};")
    lines += body
    threads = emitter.threads
    leave = [*_report_empty_dimensions(kernel, error), *_leave_empty_loops(kernel)] if body else []
    names = kernel.indices.arguments.names  # of all sizes that the text above reads
    sizes = _sizes(names.values())
    if threads is not None and body:
        lines = _region(threads, sizes, lines)
    parameters = "void *const *pointers, int64_t const *sizes" if names else "void *const *pointers"
    return _source(group, [f"({parameters}) {{", *sizes, *leave, *lines, "}", ""], tuple(names))


def _sizes(names: Iterable[str]) -> list[str]:
    return [f"    const int64_t {name} = sizes[{at}];" for at, name in enumerate(names)]


def _region(threads: str, sizes: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Text that runs in several threads. Pointers and sizes are declared inside, so that they are known not to alias:
    a store of a vector might change what the region captured, which each turn of a loop would read again."""
    return [f"    in_parallel({threads}, [=] {{", *[f"    {line}" for line in (*sizes, *lines)], "    });"]


def _source(group: Group, lines: Sequence[str], sizes: tuple[ExprLike, ...]) -> KernelSource:
    text = "\n".join(lines)
    symbol = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return KernelSource(group.name, symbol, f'extern "C" void {symbol}{text}', "cpp", sizes)


def _pointers(
    group: Group,
    buffers: Mapping[str, Buffer],
    pointers: Mapping[str, str],
    aliased: Collection[str],
    in_place: Collection[str] = (),
    integers: Collection[str] = (),
) -> list[str]:
    lines = []
    for at, name in enumerate((*group.reads, *group.writes)):
        written = at >= len(group.reads)
        if not written and (name in group.writes or name in in_place):
            continue
        constness = "" if written else "const "
        restrict = "" if name in aliased else " __restrict__"
        kind = memory_type(torch.int16 if pointers[name] in integers else buffers[name].layout.dtype)
        lines.append(f"    {constness}{kind} *{restrict} {pointers[name]} = ({constness}{kind} *)pointers[{at}];")
    return lines


def _convolution(group: ConvolutionGroup, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge) -> KernelSource:
    printed = print_convolution(group, buffers, knowledge)
    names = printed.kernel.indices.arguments.names
    sizes = _sizes((*names.values(), *printed.sizes))
    body = [*_pointers(group, buffers, printed.pointers, ()), *[f"    {line}" for line in printed.statements]]
    lines = _region("threads_for(work)", sizes, body)
    head = "(void *const *pointers, int64_t const *sizes) {"
    source = _source(group, [head, *sizes, *lines, "}", ""], (*names, *printed.sizes.values()))
    return replace(source, source=f"{printed.header}{source.source}")


def _leave_empty_loops(kernel: Kernel) -> Iterator[str]:
    """Text that leaves the kernel where a loop may be empty for some sizes."""
    for loop in range(kernel.outer):
        if _may_be_empty(kernel, kernel.sizes[loop]):
            yield f"    if ({kernel.size(loop)} <= 0) return;"


def _report_empty_dimensions(kernel: Kernel, error: str) -> Iterator[str]:
    """Text that reports an index into a dimension without elements, and leaves: the tensor may have no memory to read.
    Eager reports it even where the result has no elements, because another dimension has none."""
    found: dict[str, None] = {}
    for value in kernel.values:
        if value.name == "indirect" and value.args[2] and _may_be_empty(kernel, value.args[1]):
            loops = [loop for loop in range(len(kernel.loops)) if value.loops & (1 << loop)]
            runs = [f"{kernel.size(loop)} > 0" for loop in loops if _may_be_empty(kernel, kernel.sizes[loop])]
            found[" && ".join([f"{kernel.text(value.args[1])} <= 0", *runs])] = None
    for condition in found:
        yield f"    if ({condition}) return report_index(0, 0, {error});"


def _may_be_empty(kernel: Kernel, size: ExprLike) -> bool:
    return not kernel.knowledge.known(">", size, 0)


def _aliased(group: Group, buffers: Mapping[str, Buffer], in_place: Mapping[str, str]) -> set[str]:
    """Arguments that share their memory with another pointer, because of mutation in place."""
    owners: dict[str, set[str]] = {}
    for name in {*group.reads, *group.writes}:
        buffer = buffers[name]
        owner = buffer.value if buffer.kind == "computed" and isinstance(buffer.value, str) else name
        owners.setdefault(owner, set()).add(in_place.get(name, name))
    shared = {name for names in owners.values() if len(names) > 1 for name in names}
    return shared | (set(group.reads) & set(group.writes))
