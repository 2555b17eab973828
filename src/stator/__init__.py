"""stator: a compiler for PyTorch programs. `stator.compile(model)` is where to begin; see docs/architecture.md.

`import stator` is light. The first use of a public name imports the compiler.
"""

# ruff: noqa: F403, F405
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stator.public import *

__version__ = "0.1.0"

__all__ = [
    "CheckResult", "CompileError", "ConstraintViolation", "Dim", "Explanation", "FlopCount", "MemoryUse",
    "MissingToolchain", "ProgramError", "RecompileError", "ShapeError", "StatorError", "TensorSpec", "Unsupported",
    "UsageError", "allow_in_graph", "assert_no_recompile", "assume_constant_result", "check", "compile", "cover_lines",
    "decompose", "disable", "explain", "flops", "freeze", "graph_break", "is_compiling", "list_backends",
    "mark_dynamic", "mark_static", "mark_unbacked", "maybe_mark_dynamic", "memory", "register_backend", "reset",
    "set_stance", "substitute_in_graph",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'stator' has no attribute {name!r}")
    public = importlib.import_module("stator.public")
    globals().update({each: getattr(public, each) for each in __all__})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
