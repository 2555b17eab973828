"""What known functions do when called, one file per origin. Importing this package registers all handlers."""

from . import (
    builtin_functions,
    cells,
    collections_functions,
    compilation,
    operators,
    optimizers,
    python_classes,
    replaced_stack,
    standard_library,
    torch_functions,
)

__all__ = [
    "builtin_functions",
    "cells",
    "collections_functions",
    "compilation",
    "operators",
    "optimizers",
    "python_classes",
    "replaced_stack",
    "standard_library",
    "torch_functions",
]
