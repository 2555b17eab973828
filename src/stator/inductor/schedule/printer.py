"""Prints a schedule (40_schedule.txt)."""

from __future__ import annotations

from stator.inductor.buffers import Extern
from stator.inductor.loops.printer import print_body

from .groups import Attention, AttentionGroup, Combination, ConvolutionGroup, Group, ProductGroup, Products, Schedule


def print_schedule(schedule: Schedule) -> str:
    lines = []
    groups = sum(not isinstance(step, Extern) for step in schedule.steps)
    nodes = sum(len(step.members) for step in schedule.steps if not isinstance(step, Extern))
    lines.append(f"# {groups} kernels from {nodes} loop nodes, {len(schedule.steps) - groups} library calls")
    for step in schedule.steps:
        if isinstance(step, Extern):
            lines.append(_extern(step))
        elif isinstance(step, Combination):
            lines.append(f"\ncombination {step.name} of {', '.join(part.name for part in step.parts)}")
            lines += [_group(part) for part in step.parts]
        else:
            lines.append(_group(step))
    return "\n".join(lines) + "\n"


def _extern(step: Extern) -> str:
    args = ", ".join([*map(str, step.args), *(f"{key}={value}" for key, value in step.kwargs.items())])
    return f"\ncall {', '.join(map(str, step.outputs))} = {step.name}({args})"


def _group(group: Group) -> str:
    head = f"\nkernel {group.name} over {list(group.ranges)}"
    if group.inner_ranges:
        head += f", rows of {list(group.inner_ranges)}"
    lines = [head, f"  reads {', '.join(group.reads)}", f"  writes {', '.join(group.writes)}"]
    if group.internal:
        lines.append(f"  internal {', '.join(sorted(group.internal))}")
    if isinstance(group, ProductGroup):
        lines += _products(group.products)
    if isinstance(group, AttentionGroup):
        lines.append(_attention(group.attention))
    if isinstance(group, ConvolutionGroup):
        lines.append(f"  {group.convolution} of {group.images.base} by {group.weight.base}")
    for member in group.members:
        lines.append(f"  # {', '.join(member.outputs)} from {', '.join(member.origins) or 'unknown'}")
        lines.append(print_body(member.body, "  "))
    return "\n".join(lines)


def _products(products: Products) -> list[str]:
    """The products of a group, before the loops that read their sums."""
    shape = f"{products.batch} x {products.rows} x {products.depth}"
    lines = [f"  products of {products.left.buffer} ({shape}), {products.tile}"]
    if products.ends is not None:
        along = "the depth" if products.ends.along_depth else "rows"
        lines.append(f"  {products.ends.count} groups of {along}, which end at {products.ends.place.buffer}")
    if products.windows is not None:
        lines.append(f"  whose rows are windows: {products.windows}")
    for part in products.parts:
        for name, right in zip(part.sums, part.rights, strict=True):
            lines.append(f"  {name}: by {right.buffer}, {part.columns} columns")
    return lines


def _attention(attention: Attention) -> str:
    shape = f"{attention.batch} x {attention.rows} x {attention.count} keys"
    return f"  attention ({shape}, depth {attention.depth}, width {attention.width}), {attention.tile}"
