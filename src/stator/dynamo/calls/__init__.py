"""What known functions do when called, one file per origin. Importing this package registers all handlers."""

from . import (
    autograd_engine,
    autograd_function,
    builtin_functions,
    cells,
    checkpoint,
    collections_functions,
    compilation,
    functional_transforms,
    gradient_hooks,
    lazy_conjugates,
    operators,
    optimizers,
    python_classes,
    replaced_stack,
    standard_library,
    torch_functions,
)

__all__ = [
    "autograd_engine",
    "autograd_function",
    "builtin_functions",
    "cells",
    "checkpoint",
    "collections_functions",
    "compilation",
    "functional_transforms",
    "gradient_hooks",
    "lazy_conjugates",
    "operators",
    "optimizers",
    "python_classes",
    "replaced_stack",
    "standard_library",
    "torch_functions",
]
