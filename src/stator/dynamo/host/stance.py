"""The stance, by which a program chooses what happens when something has to be compiled, and blocks that forbid
recompilation. Both are context variables, so each thread and task has its own.

C code checks only "force_eager", at every call; the cache (compiled_frames.py) checks the other stances.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from types import TracebackType

from stator.base.errors import RecompileError, UsageError

from .native_status import native as _native

STANCES = {
    "default": "compile what is called, again when guards fail",
    "force_eager": "run everything eagerly; compiled code is kept",
    "eager_on_recompile": "use what is compiled; where nothing fits, run eagerly",
    "fail_on_recompile": "use what is compiled; where nothing fits, raise",
}

_stance: ContextVar[str] = ContextVar("stator_stance", default="default")
_watching: ContextVar[tuple[AssertNoRecompile, ...]] = ContextVar("stator_assert_no_recompile", default=())

FORCE_EAGER = "force_eager"
if _native is not None:
    _native.set_stance_variable(_stance, FORCE_EAGER)


def set_stance(stance: str) -> Token[str]:
    """Set the stance in this context. Raises UsageError for an unknown name."""
    if stance not in STANCES:
        raise UsageError(f"unknown stance {stance!r}; known stances: {', '.join(STANCES)}")
    if stance == FORCE_EAGER:
        if _native is not None:
            _native.watch_stance()  # from now on every call reads the variable
        return _stance.set(FORCE_EAGER)  # C compares by identity with this object
    return _stance.set(stance)


def reset_stance(token: Token[str]) -> None:
    """Restore the stance before `token`; in another context than the token's, set the stance that the token
    remembers."""
    try:
        _stance.reset(token)
    except ValueError:
        set_stance("default" if token.old_value is Token.MISSING else token.old_value)


class AssertNoRecompile:
    """The context manager of `stator.assert_no_recompile()`."""

    def __init__(self) -> None:
        self.error: RecompileError | None = None

    def __enter__(self) -> AssertNoRecompile:
        _watching.set((*_watching.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _watching.set(tuple(block for block in _watching.get() if block is not self))
        found, self.error = self.error, None
        if found is not None and kind is None:  # it was raised at the recompilation, and the program caught it
            raise found


def refuse_recompile(frame: str, reasons: Sequence[str]) -> None:
    """Raise RecompileError inside a block that forbids recompilation."""
    blocks = _watching.get()
    if blocks:
        error = RecompileError(frame, reasons, "stator.assert_no_recompile()")
        for block in blocks:
            block.error = block.error or error
        raise error


def may_compile(frame: str, reasons: Sequence[str]) -> bool:
    """Whether a frame that no compiled version fits may be compiled now. Raises RecompileError under
    "fail_on_recompile"."""
    stance = _stance.get()
    if stance == "fail_on_recompile":
        raise RecompileError(frame, reasons, "the stance 'fail_on_recompile'")
    return stance == "default"
