"""Shape rules of `*_copy` operators, contiguous copies of views, and of views that eager declares unaliased."""

from __future__ import annotations

from typing import Any

from stator.prims.layout import contiguous_strides
from stator.prims.record import ShapeRule, TensorMeta, records, shape_rule

from . import views as _views
from .operands import overload

COPIES = """
    expand permute transpose.int t unsqueeze squeeze squeeze.dim squeeze.dims slice.Tensor select.int diagonal
    unfold view as_strided alias detach unbind.int split.Tensor split_with_sizes view.dtype view_as_real view_as_complex
"""

UNSAFE = {"unsafe_split.Tensor": "split.Tensor", "unsafe_split_with_sizes": "split_with_sizes"}


def copied(rule: ShapeRule) -> ShapeRule:
    def copy_rule(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        return [_own(meta) for meta in result] if isinstance(result, list) else _own(result)

    return copy_rule


def _own(meta: TensorMeta) -> TensorMeta:
    return TensorMeta(meta.shape, contiguous_strides(meta.shape), meta.dtype, meta.device)


def _register() -> None:
    for name in COPIES.split():
        base, _, variant = name.partition(".")
        target, source = overload(f"{base}_copy.{variant}" if variant else f"{base}_copy"), overload(name)
        if target is not None and source is not None and target not in records:
            rule = _views.reshape if name == "view" else records[source].shape
            if rule is None:
                raise ValueError(f"{source} has no shape rule to copy")
            shape_rule(target, tags=("index",))(copied(rule))
    for unsafe, safe in UNSAFE.items():
        target, source = overload(unsafe), overload(safe)
        if target is not None and source is not None:
            rule = records[source].shape
            if rule is None:
                raise ValueError(f"{source} has no shape rule")
            shape_rule(target, tags=("view",))(rule)


_register()
