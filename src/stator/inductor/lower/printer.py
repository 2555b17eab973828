"""Prints lowered graphs: buffers with their layouts, loop bodies and library calls in order (30_loops.txt)."""

from __future__ import annotations

from stator.inductor.buffers import Buffer, Extern, Layout, Loops, Lowered, View
from stator.inductor.loops.printer import dtype_name, print_body


def print_lowered(lowered: Lowered) -> str:
    """Print one block per node, headed by the buffers that it fills and its graph nodes."""
    given = [lowered.buffers[name] for name in lowered.inputs if name in lowered.buffers]
    given += [buffer for buffer in lowered.buffers.values() if buffer.kind == "constant"]
    blocks = ["\n".join(f"{buffer.kind} {_buffer(buffer)}" for buffer in given)]
    blocks += [_node(node, lowered) for node in lowered.nodes]
    blocks.append("return " + ", ".join(_argument(value) for value in lowered.outputs))
    return "\n\n".join(blocks) + "\n"


def _node(node: Loops | Extern, lowered: Lowered) -> str:
    outputs = ", ".join("_" if name is None else _buffer(lowered.buffers[name]) for name in node.outputs)
    head = f"# {', '.join(node.origins)}\n" if node.origins else ""
    if isinstance(node, Loops):
        return f"{head}{outputs} =\n{print_body(node.body, '    ')}".rstrip()
    args = [_argument(arg) for arg in node.args] + [f"{key}={_argument(value)}" for key, value in node.kwargs.items()]
    return f"{head}{outputs} = {node.name}({', '.join(args)})  # {node.style}"


def _buffer(buffer: Buffer) -> str:
    return f"{buffer.name}: {_layout(buffer.layout)}"


def _layout(layout: Layout) -> str:
    offset = f" offset {layout.offset}" if layout.offset != 0 else ""
    return f"{dtype_name(layout.dtype)}{list(layout.size)} strides {list(layout.stride)}{offset}"


def _argument(value: object) -> str:
    if isinstance(value, View):
        return f"view({value.base}: {_layout(value.layout)})"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_argument(item) for item in value) + "]"
    return str(value)
