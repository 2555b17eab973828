"""Dtypes for which ATen has no CPU kernel although stator could compute a result: raises eager's error instead.

Imported after all other shape rules, which it wraps.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import ShapeRule, record
from stator.prims.type_promotion import common_dtype

from .operands import in_place_rule, in_place_twin, is_tensor, not_implemented_for, overloads

BOOL = frozenset((torch.bool,))
SMALL = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32))
WIDE_UNSIGNED = frozenset((torch.uint16, torch.uint32, torch.uint64))
INTEGERS = SMALL | {torch.int64} | WIDE_UNSIGNED
COMPLEX = frozenset((torch.complex64, torch.complex128))
HALF = frozenset((torch.float16, torch.bfloat16))
NO_FLOATS = BOOL | INTEGERS | COMPLEX

# ATen's name of the kernel, the dtypes, and the operators.
OF_FIRST_OPERAND = (
    ("adaptive_max_pool2d", NO_FLOATS, "adaptive_max_pool2d"),
    ("adaptive_max_pool3d_cpu", NO_FLOATS, "adaptive_max_pool3d"),
    ("avg_pool2d", BOOL | SMALL | WIDE_UNSIGNED | COMPLEX, "avg_pool2d"),
    ("avg_pool3d_out_frame", BOOL | SMALL | WIDE_UNSIGNED | COMPLEX | HALF, "avg_pool3d"),
    ("max_pool2d", BOOL | WIDE_UNSIGNED | COMPLEX, "max_pool2d_with_indices"),
    ("max_pool3d", BOOL | WIDE_UNSIGNED | COMPLEX, "max_pool3d_with_indices"),
    ("max_unpool2d", NO_FLOATS, "max_unpool2d"),
    ("max_unpool3d", NO_FLOATS, "max_unpool3d"),
    ("reflection_pad1d", BOOL | WIDE_UNSIGNED, "reflection_pad1d"),
    ("reflection_pad2d", BOOL | WIDE_UNSIGNED, "reflection_pad2d"),
    ("reflection_pad3d", BOOL | WIDE_UNSIGNED, "reflection_pad3d"),
    ("replication_pad1d", BOOL | WIDE_UNSIGNED, "replication_pad1d"),
    ("replication_pad2d", BOOL | WIDE_UNSIGNED, "replication_pad2d"),
    ("replication_pad3d", BOOL | WIDE_UNSIGNED, "replication_pad3d"),
    ("im2col_out_cpu", INTEGERS, "im2col"),
    (
        "compute_indices_weights_nearest",
        NO_FLOATS - {torch.uint8},
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    ),
    ("glu_cpu", NO_FLOATS, "glu"),
    ("prelu_cpu", NO_FLOATS, "_prelu_kernel"),
    ("batch_norm", COMPLEX, "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats"),
    ("lerp_kernel_scalar", BOOL | INTEGERS, "lerp.Scalar"),
    ("lerp_kernel_tensor", BOOL | INTEGERS, "lerp.Tensor"),
    ("trace", BOOL | WIDE_UNSIGNED, "trace"),
    ("pixel_shuffle", WIDE_UNSIGNED, "pixel_shuffle"),
    ("pixel_unshuffle", WIDE_UNSIGNED, "pixel_unshuffle"),
    ("cdist", HALF, "_cdist_forward"),
    ("pdist", NO_FLOATS | HALF, "_pdist_forward"),
)
NOT_ASKED_OF_NOTHING = frozenset(  # operators whose kernels ATen skips for tensors without elements
    ("max_unpool2d", "max_unpool3d", "batch_norm", "pixel_shuffle", "pixel_unshuffle", "cdist", "pdist")
)
SPECIAL = """
zeta ndtri log_ndtr erfcx airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1
modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0
chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h
hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t
shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
"""
OF_ALL_OPERANDS = (
    ("addcmul_cpu_out", BOOL, "addcmul"),
    ("clamp_cpu", BOOL, "clamp.Tensor"),
    ("smooth_l1_cpu", NO_FLOATS, "smooth_l1_loss"),
    ("huber_cpu", NO_FLOATS, "huber_loss"),
    ("mse_cpu", NO_FLOATS, "mse_loss"),
    *[(f"{name}_cpu", HALF | COMPLEX, f"special_{name}") for name in SPECIAL.split()],
)


def _refusing(rule: ShapeRule, kernel: str, dtypes: frozenset[torch.dtype], of_all: bool) -> ShapeRule:
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        dtype = self.dtype
        if of_all and dtype in dtypes:
            dtype = common_dtype([self, *[argument for argument in args if is_tensor(argument)]])
        refused = dtype in dtypes and self.device.type == "cpu"
        if refused and (kernel not in NOT_ASKED_OF_NOTHING or 0 not in tuple(self.shape)):
            raise not_implemented_for(kernel, dtype)
        return rule(self, *args, **options)

    return checked


for _table, _of_all in ((OF_FIRST_OPERAND, False), (OF_ALL_OPERANDS, True)):
    for _kernel, _dtypes, _names in _table:
        for _target in overloads(_names):
            _rule = record(_target).shape
            assert _rule is not None, _target
            record(_target).shape = _refusing(_rule, _kernel, _dtypes, _of_all)
            _twin = in_place_twin(_target)
            if _twin is not None and record(_twin).shape is not None:
                record(_twin).shape = in_place_rule(_refusing(_rule, _kernel, _dtypes, _of_all))
