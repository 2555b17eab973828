"""Dtypes for which ATen has no CPU kernel although stator could compute a result: raises eager's error instead.

Imported after all other shape rules, which it wraps.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import ShapeRule, record
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import common_dtype

from .operands import in_place_rule, in_place_twin, is_tensor, overloads

BOOL = frozenset((torch.bool,))
SMALL = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32))
WIDE_UNSIGNED = frozenset((torch.uint16, torch.uint32, torch.uint64))
INTEGERS = SMALL | {torch.int64} | WIDE_UNSIGNED
COMPLEX = frozenset((torch.complex64, torch.complex128))
HALF = frozenset((torch.float16, torch.bfloat16))
NO_FLOATS = BOOL | INTEGERS | COMPLEX

# Dtypes, and operators.
OF_FIRST_OPERAND = (
    (NO_FLOATS, "adaptive_max_pool2d adaptive_max_pool3d glu _prelu_kernel"),
    (BOOL | SMALL | WIDE_UNSIGNED | COMPLEX, "avg_pool2d"),
    (BOOL | SMALL | WIDE_UNSIGNED | COMPLEX | HALF, "avg_pool3d"),
    (BOOL | WIDE_UNSIGNED | COMPLEX, "max_pool2d_with_indices max_pool3d_with_indices"),
    (
        BOOL | WIDE_UNSIGNED,
        "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
        "trace",
    ),
    (INTEGERS, "im2col"),
    (
        NO_FLOATS - {torch.uint8},
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    ),
    (BOOL | INTEGERS, "lerp.Scalar lerp.Tensor"),
)
OF_ELEMENTS = (  # ATen skips these kernels for tensors without elements
    (NO_FLOATS, "max_unpool2d max_unpool3d"),
    (COMPLEX, "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats"),
    (WIDE_UNSIGNED, "pixel_shuffle pixel_unshuffle"),
    (HALF, "_cdist_forward"),
    (NO_FLOATS | HALF, "_pdist_forward"),
)
SPECIAL = """
zeta ndtri log_ndtr erfcx airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1
modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0
chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h
hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t
shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
"""
OF_ALL_OPERANDS = (
    (BOOL, "addcmul clamp.Tensor"),
    (NO_FLOATS, "smooth_l1_loss huber_loss mse_loss"),
    (HALF | COMPLEX, " ".join(f"special_{name}" for name in SPECIAL.split())),
)


def _refusing(rule: ShapeRule, table: Any, dtypes: frozenset[torch.dtype]) -> ShapeRule:
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        dtype = self.dtype
        if table is OF_ALL_OPERANDS and dtype in dtypes:
            dtype = common_dtype([self, *[argument for argument in args if is_tensor(argument)]])
        refused = dtype in dtypes and self.device.type == "cpu"
        refuse_if(refused and (table is not OF_ELEMENTS or 0 not in tuple(self.shape)))
        return rule(self, *args, **options)

    return checked


for _table in (OF_FIRST_OPERAND, OF_ELEMENTS, OF_ALL_OPERANDS):
    for _dtypes, _names in _table:
        for _target in overloads(_names):
            _rule = record(_target).shape
            assert _rule is not None, _target
            record(_target).shape = _refusing(_rule, _table, _dtypes)
            _twin = in_place_twin(_target)
            if _twin is not None and record(_twin).shape is not None:
                record(_twin).shape = in_place_rule(_refusing(_rule, _table, _dtypes))
