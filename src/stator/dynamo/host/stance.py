"""What happens where something would have to be compiled, as the program chose: the stance, and blocks in which nothing
may be compiled again. Both belong to the context (contextvars): a thread or task of its own has its own.

Only "force_eager" is looked at in C, at every call; the rest matters to the cache alone (compiled_frames.py).
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


def current_stance() -> str:
    return _stance.get()


def set_stance(stance: str) -> Token[str]:
    """Choose in this context. Raises UsageError for a name that is none."""
    if stance not in STANCES:
        raise UsageError(f"unknown stance {stance!r}; known stances: {', '.join(STANCES)}")
    if stance == FORCE_EAGER:
        if _native is not None:
            _native.watch_stance()  # from now on every call looks at the variable
        return _stance.set(FORCE_EAGER)  # this very object is what C compares with
    return _stance.set(stance)


def reset_stance(token: Token[str]) -> None:
    """Back to what it was; in another context than the one it was set in, to the value it had."""
    try:
        _stance.reset(token)
    except ValueError:
        set_stance("default" if token.old_value is Token.MISSING else token.old_value)


class AssertNoRecompile:
    """The block that `stator.assert_no_recompile()` gives."""

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
        if found is not None and kind is None:  # raised where it happened, and caught by somebody in the block
            raise found


def refuse_recompile(frame: str, reasons: Sequence[str]) -> None:
    """Raise RecompileError where a block asserts that nothing is compiled again."""
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
