"""Shape rules of orthogonal polynomials: elementwise in point and degree."""

from __future__ import annotations

from stator.prims.record import shape_rule
from stator.prims.type_promotion import Kind

from .elementwise import binary
from .operands import overloads

POLYNOMIALS = """
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
    legendre_polynomial_p
"""

for _name in POLYNOMIALS.split():
    _names = " ".join(f"special_{_name}{overload}" for overload in ("", ".x_scalar", ".n_scalar"))
    shape_rule(*overloads(_names), tags=("pointwise",))(binary(Kind.INT_TO_FLOAT))
