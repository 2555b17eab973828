"""stator: a compiler for PyTorch programs. `stator.compile(model)` is where to begin; see docs/architecture.md."""

from stator.api import compile, reset
from stator.backends import list_backends, register_backend
from stator.base.errors import (
    CompileError,
    MissingToolchain,
    RecompileError,
    StatorError,
    Unsupported,
    UsageError,
)
from stator.control import (
    allow_in_graph,
    assert_no_recompile,
    assume_constant_result,
    disable,
    graph_break,
    set_stance,
    substitute_in_graph,
)
from stator.dynamo.host.compile_status import is_compiling
from stator.dynamo.host.debuggers import cover_lines
from stator.tools.decompose import decompose
from stator.tools.explain import Explanation, explain

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "Explanation",
    "MissingToolchain",
    "RecompileError",
    "StatorError",
    "Unsupported",
    "UsageError",
    "allow_in_graph",
    "assert_no_recompile",
    "assume_constant_result",
    "compile",
    "cover_lines",
    "decompose",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "register_backend",
    "reset",
    "set_stance",
    "substitute_in_graph",
]
