"""What known functions do when called, one file per origin. Importing this package registers all handlers."""

from .autograd_calls import autograd_engine, autograd_function, checkpoint, functional_transforms, module_backward_hooks
from .numpy_calls import numpy_functions, numpy_tensors
from .optimizer_calls import optimizer_numbers, optimizer_state, optimizers
from .python_calls import (
    breaking_calls,
    builtin_functions,
    cached_functions,
    cells,
    collections_functions,
    copying,
    nested_resume_calls,
    operators,
    print_and_logging,
    python_classes,
    random_numbers,
    signatures,
    standard_library,
)
from .torch_calls import (
    backend_flags,
    data_assertions,
    device_contexts,
    distributed_calls,
    distributions,
    function_modes,
    higher_order_operators,
    parameters,
    tensor_parts,
    tensor_subclasses,
    torch_functions,
    typed_tensors,
)
