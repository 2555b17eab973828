"""stator: a compiler for PyTorch programs. `stator.compile(model)` is where to begin; see docs/architecture.md."""

import gc

_collecting = gc.isenabled()
gc.disable()  # a full collection in the middle would walk all of torch's objects: half of the time this import takes
try:
    from stator.api import compile, disable, reset
    from stator.backends import list_backends, register_backend
    from stator.base.errors import CompileError, MissingToolchain, StatorError, Unsupported, UsageError
    from stator.dynamo.status import is_compiling
    from stator.tools.decompose import decompose
    from stator.tools.explain import Explanation, explain
finally:
    if _collecting:
        gc.enable()
    del gc, _collecting

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "Explanation",
    "MissingToolchain",
    "StatorError",
    "Unsupported",
    "UsageError",
    "compile",
    "decompose",
    "disable",
    "explain",
    "is_compiling",
    "list_backends",
    "register_backend",
    "reset",
]
