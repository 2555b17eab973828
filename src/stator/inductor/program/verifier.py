"""Checks a program: no use before a buffer exists or after it is gone, and no memory shared by two live buffers."""

from __future__ import annotations

from stator.base.errors import VerificationError
from stator.inductor.buffers import Buffer

from .aliases import buffers_in, layout_bytes, typical_bytes
from .arena import ArenaLayout, plan_arena
from .steps import Allocate, Call, Free, Launch, Program, ReturnValues, Reuse, ReuseIfUnshared, Step


def verify_program(program: Program) -> None:
    """Raise VerificationError with the step that breaks a rule."""
    state = _State(program)
    for position, step in enumerate(program.steps):
        state.check(position, step)
    if not program.steps or not isinstance(program.steps[-1], ReturnValues):
        raise VerificationError("a program must end by returning its values")
    verify_arena(program, plan_arena(program))


def verify_arena(program: Program, layout: ArenaLayout) -> None:
    """Raise VerificationError when two live buffers overlap in the arena, or a buffer does not fit in the arena."""
    placed = {
        entry.name: (entry.offset, entry.offset + typical_bytes(entry.layout, program.sizes)) for entry in layout.placed
    }
    alive: set[str] = set()
    for position, step in enumerate(program.steps):
        if isinstance(step, (Allocate, Reuse)) and step.name in placed:
            if isinstance(step, Reuse):
                alive.discard(step.old)
            start, end = placed[step.name]
            if end > layout.bytes:
                raise VerificationError(f"step {position}: {step.name} lies behind the end of the arena")
            for other in alive:
                if start < placed[other][1] and placed[other][0] < end:
                    raise VerificationError(f"step {position}: {step.name} overlaps {other}, which is alive")
            alive.add(step.name)
        elif isinstance(step, Free):
            alive.discard(step.name)


class _State:
    """The live buffers during the walk over the steps."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.alive = {name for name, buffer in program.buffers.items() if _is_given(buffer)}
        self.lent: set[str] = set()  # memory just reused: the next launch may still read the old buffer
        self.allocated: set[str] = set()

    def check(self, position: int, step: Step) -> None:
        try:
            if isinstance(step, Allocate):
                self._begin(step.name)
            elif isinstance(step, Reuse):
                self._take_over(step)
            elif isinstance(step, ReuseIfUnshared):
                self._replace(step)
            elif isinstance(step, Free):
                self._use(step.name)
                self.alive.discard(step.name)
            elif isinstance(step, Launch):
                self._launch(step)
            elif isinstance(step, Call):
                self._call(step)
            else:
                for name in buffers_in(step.values, self.program.buffers):
                    self._use(name)
        except VerificationError as error:
            raise VerificationError(f"step {position} ({type(step).__name__}): {error}") from None
        if isinstance(step, (Launch, Call)):
            self.lent.clear()

    def _begin(self, name: str) -> None:
        if name not in self.program.buffers:
            raise VerificationError(f"{name} is not a buffer")
        if name in self.alive:
            raise VerificationError(f"{name} has memory already")
        self.alive.add(name)
        self.allocated.add(name)

    def _take_over(self, step: Reuse) -> None:
        if step.old not in self.allocated:
            raise VerificationError(f"{step.old} is not this program's to give away")
        if step.old in self.program.escaping or (step.name in self.program.escaping and not self._is_whole(step)):
            raise VerificationError(f"{step.name} takes over {step.old}, but the caller gets to see one of them")
        self._use_alive(step.old)
        self.alive.discard(step.old)
        self.lent.add(step.old)
        self.allocated.discard(step.old)
        if not self._fits(step, step.old) and not self._fits_original_block(step):
            raise VerificationError(f"{step.name} needs more bytes than {step.old} has")
        self._begin(step.name)

    def _replace(self, step: ReuseIfUnshared) -> None:
        old = self.program.buffers[step.old]
        ours = old.kind == "computed" or (old.kind == "input" and self.program.boxed)
        if not ours or step.old in self.program.escaping or isinstance(old.value, str):
            raise VerificationError(f"{step.old} is not this program's to give away")
        if layout_bytes(old.layout) != layout_bytes(step.layout):
            raise VerificationError(f"{step.name} does not have the size of {step.old}")
        self._use_alive(step.old)
        self.alive.discard(step.old)
        self._begin(step.name)

    def _is_whole(self, step: Reuse) -> bool:
        """True if `old` has memory of its own, outside of the arena, and exactly the layout that `name` needs."""
        before = self.program.buffers[step.old].layout
        return self.program.is_on_heap(before) and before == step.layout

    def _fits(self, step: Reuse, name: str) -> bool:
        need, given = layout_bytes(step.layout), layout_bytes(self.program.buffers[name].layout)
        return self.program.sizes.known("<=", need, given)

    def _fits_original_block(self, step: Reuse) -> bool:
        """True if the block behind `old`, which an earlier and larger buffer may have begun, is large enough."""
        parents = {reuse.name: reuse.old for reuse in self.program.steps if isinstance(reuse, Reuse)}
        name: str | None = step.old
        while name is not None:
            if self._fits(step, name):
                return True
            name = parents.get(name)
        return False

    def _use_alive(self, name: str) -> None:
        if name not in self.alive:
            raise VerificationError(f"{name} is used but has no memory (any more)")

    def _use(self, name: str) -> None:
        if name not in self.alive and name not in self.lent:
            raise VerificationError(f"{name} is used but has no memory (any more)")

    def _launch(self, step: Launch) -> None:
        if step.kernel not in self.program.kernels:
            raise VerificationError(f"there is no kernel {step.kernel}")
        for name in step.args:
            self._use(name)

    def _call(self, step: Call) -> None:
        extern = step.extern
        for name in (*buffers_in((extern.args, extern.kwargs), self.program.buffers), *extern.mutates):
            self._use(name)
        for output in extern.outputs:
            if output is not None and extern.style == "returns":
                self._begin(output)
                self.allocated.discard(output)
            elif output is not None and extern.style == "out":
                self._use(output)


def _is_given(buffer: Buffer) -> bool:
    return buffer.kind != "computed" or isinstance(buffer.value, str)
