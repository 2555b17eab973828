"""Joins the lines of a host program that run kernels and products of a GPU in a row into calls of segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .literals import literal, sequence_text


class DeviceStep(str):
    """A line that launches on a device, on tensors that lie where they lay in the call before, and allocates nothing.

    It calls `target` with the expressions `tensors`; `names` are the names of the last ones.
    """

    __slots__ = ("device", "names", "target", "tensors")

    device: str
    target: str
    tensors: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, line: str, device: str, target: str, tensors: Sequence[str], names: tuple[str, ...] = ()) -> DeviceStep:
        step = cls(line)
        step.device, step.target, step.tensors, step.names = device, target, tuple(tensors), names
        return step


class Check(str):
    """A line that may run later than the step before it."""

    __slots__ = ()


def join_segments(lines: Sequence[str], segment: Callable[[Sequence[DeviceStep]], str]) -> list[str]:
    """Return the lines, with one line from `segment` for the steps of a device that follow each other."""
    joined: list[str] = []
    steps: list[DeviceStep] = []
    checks: list[str] = []

    def close() -> None:
        joined.extend([segment(steps)] if len(steps) > 1 else steps)
        joined.extend(checks)
        steps.clear()
        checks.clear()

    for line in lines:
        if isinstance(line, Check) and steps:
            checks.append(line)
            continue
        if not isinstance(line, DeviceStep) or (steps and steps[0].device != line.device):
            close()
        if isinstance(line, DeviceStep):
            steps.append(line)
        else:
            joined.append(line)
    close()
    return joined


def segment_texts(steps: Sequence[DeviceStep]) -> tuple[str, list[str]]:
    """The expression that makes the callable of a segment, and the tensors that it is called with."""
    tensors = list(dict.fromkeys(tensor for step in steps for tensor in step.tensors))
    rows = [
        f"({one.target}, {literal(tuple(tensors.index(tensor) for tensor in one.tensors))}, {one.names!r})"
        for one in steps
    ]
    return f"rt.segment({steps[0].device!r}, {len(tensors)}, {sequence_text('(', rows, ')')})", tensors
