"""The loop-level IR: a loop body as a small frozen SSA over an index table. Data only: no analysis, no printing.

During lowering the body of a buffer is a Python closure `inner(ops, index) -> value` over an ops handler
(define-by-run). When the buffer is realised, the recording handler traces that closure into a `LoopBody`. Every later
analysis or printer is a handler, or a pass, over the same vocabulary (see `vocabulary.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stator.shapes.expr import Expr, ExprLike, Symbol


@dataclass(frozen=True, slots=True)
class Ref:
    """Result of an earlier operation of the same body, by position."""

    position: int


@dataclass(frozen=True, slots=True)
class IndexRef:
    """Entry of the body's index table."""

    position: int


Argument = Ref | IndexRef | Expr | int | float | bool | str | torch.dtype | None


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `dtype` is the dtype of its result (None for stores).

    Signatures (names are in vocabulary.py):
      load(buffer: str, IndexRef, mask: Ref|None, other: number)     masked-off lanes read nothing and give `other`
      store(buffer: str, IndexRef, value: Ref, mode: None|"add"|"max"|"min"|"mul"|"last"|"row_sum",
          mask: Ref|None)
          "add": atomic when parallel; "row_sum": the sum of all values with one index, in rows of one program
      reduce(kind: str, value: Ref) -> Ref      kind: sum prod max min any all xor_sum argmax argmin; over all
          reduction vars
      scan(kind: str, value: Ref) -> Ref        kind: sum prod max min logsumexp; over the iterations of the reduction
          loops up to this one. What depends on it runs in every iteration
      welford(value: Ref) -> use get(Ref, 0|1|2) for mean, m2 (sum of squared deviations), count
      get(Ref, int)                              component of a multi-valued result
      constant(value, dtype), index_value(IndexRef, dtype), to_dtype(Ref, dtype), bitcast(Ref, dtype)
      indirect(Ref, size: int or Expr, check: bool, wraps: bool) -> the value as an index, which index expressions
          contain as the Symbol "indirect{position}"; negatives wrap by `size` when `wraps`, values out of range (all
          negatives unless `wraps`) are an IndexError when `check`
      step(count: int) -> Ref, total(step: Ref, value: Ref) -> Ref   the value added up in a loop of its own, of `count`
          iterations one after the other; `indirect(step, count, False, False)` is their number in indices
      random(seed: Ref, stream: Ref, draw: int, IndexRef)   seed and stream: int64, equal in all iterations
      normal(bits: Ref)
      everything else: elementwise on Refs (add, mul, where, exp, ...)
    """

    name: str
    args: tuple[Argument, ...]
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True)
class LoopBody:
    """The computation of one iteration.

    vars/ranges: the parallel loops, outermost first; reduction_vars/reduction_ranges: the loops that are reduced over
    (empty for a pointwise body). Operations before the first reduce/welford run in every iteration. Operations on a
    reduction's result run once per outer iteration, after the reduction loops.
    """

    vars: tuple[Symbol, ...]
    ranges: tuple[ExprLike, ...]
    reduction_vars: tuple[Symbol, ...]
    reduction_ranges: tuple[ExprLike, ...]
    indices: tuple[Expr, ...]
    ops: tuple[Op, ...]
