"""Frozen modules: compiled modules for inference, whose parameters and buffers are constants of the compiled code.

The constants are made by the option `freezing`; here are the rules for callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from stator.base.errors import UsageError
from stator.compiled_module import compile_module, is_compiled_with
from stator.dynamo.callables import original_of
from stator.dynamo.frame_compiler import FrameCompiler

Call = Callable[..., Any]


def freeze_module(module: torch.nn.Module, make_compiler: Callable[[], FrameCompiler]) -> torch.nn.Module:
    """`module`, compiled, for calls without gradients. The compilers have the option `freezing`. Raises UsageError for
    a module in training mode."""
    _check_mode(original_of(module))
    return compile_module(module, make_compiler, _for_inference)


def is_frozen(module: torch.nn.Module) -> bool:
    return is_compiled_with(module, _for_inference)


def _for_inference(module: torch.nn.Module, call: Call) -> Call:
    """The call of a frozen module: without gradients, in evaluation mode."""

    def infer(*args: Any, **kwargs: Any) -> Any:
        if module.training and not _is_exported(module):
            _check_mode(module)
        if torch.is_grad_enabled():
            _check_gradients(args, kwargs.values())
        with torch.no_grad():
            return call(*args, **kwargs)

    return infer


def _check_mode(module: torch.nn.Module) -> None:
    exported = {inner for part in module.modules() if _is_exported(part) for inner in part.modules()}
    for name, part in module.named_modules():
        if part.training and part not in exported and not _is_quantized(type(part)):
            raise UsageError(
                f"a frozen module computes in evaluation mode, but {name or type(part).__qualname__} is in training "
                "mode; call .eval() first, or use stator.compile to train"
            )


def _is_exported(module: torch.nn.Module) -> bool:
    """Whether torch.export made the module. Its graph was made in one mode, and `eval` of such a module raises."""
    return isinstance(module, torch.fx.GraphModule) and "eval" in vars(module)


def _is_quantized(cls: type[torch.nn.Module]) -> bool:
    """Whether quantization puts such layers into an evaluated model. They say that they train, and never read it."""
    return cls.__module__.startswith("torch.ao.nn.") and "training" not in cls.forward.__code__.co_names


def _check_gradients(args: Iterable[Any], named: Iterable[Any]) -> None:
    for value in (*args, *named):
        for leaf in (value,) if isinstance(value, torch.Tensor) else tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                raise UsageError(
                    "a frozen module computes no gradients, but an input requires grad; detach it, call under "
                    "torch.no_grad(), or use stator.compile to get gradients"
                )
