"""Finds attention written by hand in a functional ATen graph: softmax(Q K^T * scale + bias) V, and its gradients.

The search starts at a softmax and walks outward, to the product of its scores and to the product that reads its
weights. Every value in between has to have the readers of this form alone: a program that looks at scores or weights,
drops weights at random, or overwrites scores (masked_fill) is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from stator.prims.layout import always_equal
from stator.prims.record import TensorMeta

aten = torch.ops.aten
_RESHAPES = frozenset(
    (
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
    )
)
_PRODUCTS_BY_NUMBER = frozenset((aten.mul.Tensor, aten.mul.Scalar))
_QUOTIENTS = frozenset((aten.div.Tensor, aten.div.Scalar))


@dataclass(frozen=True, slots=True)
class Bias:
    """A tensor that is added to scores of `rank` dimensions, times `factor`."""

    node: fx.Node
    factor: float
    rank: int


@dataclass(frozen=True, slots=True)
class Scores:
    """The product of queries and keys, and what is done to it: scores = product * factor + sum of biases.

    product: of batches of matrices, `queries` and the transposed `keys`. sizes: (batch, heads) where the scores have
    four dimensions, else None.
    """

    product: fx.Node
    queries: fx.Node
    keys: fx.Node
    factor: float
    biases: tuple[Bias, ...]
    sizes: tuple[Any, Any] | None


@dataclass(frozen=True, slots=True)
class Gradients:
    """The products that compute gradients from `tangent`, the gradient of the attention's result; None where a program
    needs none. Each is a batch of matrices. keys: of the transposed keys. scores: the gradient of scores, if more than
    the products reads it, such as the gradient of a bias."""

    tangent: fx.Node
    queries: fx.Node | None
    keys: fx.Node | None
    values: fx.Node | None
    scores: fx.Node | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """result: the product of weights and values, a batch of matrices. gradients: None if no gradient is computed. safe:
    rows of scores that are all minus infinity have weights of zero, where softmax alone gives NaN."""

    scores: Scores
    result: fx.Node
    gradients: Gradients | None
    safe: bool = False

    @property
    def sides(self) -> tuple[fx.Node, fx.Node, fx.Node]:
        """Queries, transposed keys, and values, each a batch of matrices."""
        values: Any = self.result.args[1]
        return self.scores.queries, self.scores.keys, values


def find_attention(softmax: fx.Node) -> Attention | None:
    """The attention around a node `_softmax`, or None."""
    source, dim = softmax.args[0], softmax.args[1]
    meta = meta_of(softmax)
    if meta is None or len(meta.shape) not in (3, 4) or dim not in (-1, len(meta.shape) - 1):
        return None
    safe = safe_weights(softmax)
    scores = _scores(source, softmax) if safe is None else _made_of(source)
    if scores is None or not _shows(softmax, scores.product):
        return None
    readers = _readers_of_weights(softmax if safe is None else safe)
    if readers is None or _dtype(readers.result) is not _dtype(scores.product):
        return None
    if not _shows(readers.result.args[0], scores.product):
        return None
    if readers.turned is None and readers.of_scores is None:
        return Attention(scores, readers.result, None, safe is not None)
    gradients = _gradients(scores, readers)
    return None if gradients is None else Attention(scores, readers.result, gradients, safe is not None)


def meta_of(node: Any) -> TensorMeta | None:
    meta = node.meta.get("val") if isinstance(node, fx.Node) else None
    return meta if isinstance(meta, TensorMeta) else None


def _shows(node: Any, product: fx.Node) -> bool:
    """Whether the last two dimensions are those of a batch of matrices."""
    return bool(node.meta["val"].shape[-2:] == product.meta["val"].shape[-2:])


def _dtype(node: Any) -> torch.dtype | None:
    meta = meta_of(node)
    return None if meta is None else meta.dtype


# ---- forward --------------------------------------------------------------------------------------------------------


def _scores(node: Any, reader: fx.Node) -> Scores | None:
    """What `node`, which `reader` alone may read, adds to and makes of a product of matrices."""
    return _made_of(node) if isinstance(node, fx.Node) and list(node.users) == [reader] else None


def _made_of(node: Any) -> Scores | None:
    if node.target is aten.bmm.default:
        queries, keys = node.args
        return Scores(node, queries, keys, 1.0, (), None)  # type: ignore[arg-type]
    if node.target is aten.baddbmm.default:
        return _sum_with_product(node)
    if node.target is aten.add.Tensor and not node.kwargs and len(node.args) == 2:
        return _with_bias(node)
    factor = step_factor(node)
    inner = None if factor is None else _scores(node.args[0], node)
    if factor is None or inner is None:
        return None
    biases = tuple([replace(bias, factor=bias.factor * factor) for bias in inner.biases])
    shape = node.meta["val"].shape
    sizes = (shape[0], shape[1]) if len(shape) == 4 and _shows(node, inner.product) else inner.sizes
    if inner.sizes not in (None, sizes):
        return None
    return replace(inner, factor=inner.factor * factor, biases=biases, sizes=sizes)


# A number as a tensor, on the CPU and on GPUs
_ZEROS: tuple[Any, ...] = ((aten.full.default, ([], 0.0)), (aten.scalar_tensor.default, (0.0,)))


def safe_weights(softmax: fx.Node) -> fx.Node | None:
    """The weights that ATen's composite attention makes of a softmax, with zeros in rows that see nothing; or None."""
    source: Any = softmax.args[0]
    where = _sole_reader(softmax)
    if where is None or where.target is not aten.where.self or where.args[2] is not softmax:
        return None
    hidden, zero, _ = where.args
    if not isinstance(hidden, fx.Node) or hidden.target is not aten.all.dim:
        return None
    test: Any = hidden.args[0]
    plain = (
        test.target is aten.eq.Scalar
        and test.args == (source, -torch.inf)
        and hidden.args[1:] in ((-1, True), (len(softmax.meta["val"].shape) - 1, True))
        and isinstance(zero, fx.Node)
        and (zero.target, zero.args) in _ZEROS
        and set(source.users) == {test, softmax}
        and list(test.users) == [hidden]
        and list(hidden.users) == [where]
    )
    return where if plain else None


def _sum_with_product(node: fx.Node) -> Scores | None:
    bias, queries, keys = node.args[:3]
    beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    if len(node.args) != 3 or not isinstance(beta, int | float) or not isinstance(alpha, int | float):
        return None
    biases = (Bias(bias, float(beta), 3),) if beta else ()  # type: ignore[arg-type]
    return Scores(node, queries, keys, float(alpha), biases, None)  # type: ignore[arg-type]


def _with_bias(total: fx.Node) -> Scores | None:
    shape = total.meta["val"].shape
    for part, bias in (total.args, reversed(total.args)):
        of_part = meta_of(part)
        if not isinstance(bias, fx.Node) or of_part is None or of_part.shape != shape or part is bias:
            continue
        inner = _scores(part, total)
        if inner is not None and _shows(total, inner.product):
            return replace(inner, biases=(*inner.biases, Bias(bias, 1.0, len(shape))))
    return None


KEPT, TURNED = "kept", "turned"


def order_of(node: fx.Node) -> str | None:
    """The order of the elements of a view: KEPT, or TURNED where the last two dimensions change places, both apart from
    dimensions of size one. None for other orders, and other nodes."""
    if node.target in _RESHAPES:
        return KEPT
    source = meta_of(node.args[0]) if node.args else None
    if source is None or node.target not in (aten.permute.default, aten.transpose.int):
        return None
    dims = list(range(len(source.shape)))
    if node.target is aten.permute.default:
        dims = [int(dim) % len(dims) for dim in node.args[1]]  # type: ignore
    else:
        one, other = [int(dim) % len(dims) for dim in node.args[1:]]  # type: ignore
        dims[one], dims[other] = other, one
    moved = [dim for dim in dims if not always_equal(source.shape[dim], 1)]
    if moved == sorted(moved):
        return KEPT
    return TURNED if [*moved[:-2], *moved[:-3:-1]] == sorted(moved) else None


def step_factor(node: fx.Node) -> float | None:
    """The number by which a node multiplies its first argument: 1 where it shows equal elements in equal order, and
    for casts between the dtypes of products and float32. None for other nodes."""
    source, meta = meta_of(node.args[0]) if node.args else None, meta_of(node)
    if source is None or meta is None:
        return None
    if order_of(node) is KEPT:
        return 1.0
    if node.target is aten._to_copy.default:
        return 1.0 if _is_cast(node) and meta.dtype in FLOATS and source.dtype in FLOATS else None
    number = node.args[1] if len(node.args) == 2 and not node.kwargs else None
    if not isinstance(number, int | float) or isinstance(number, bool) or source.dtype is not meta.dtype:
        return None
    if node.target in _PRODUCTS_BY_NUMBER:
        return float(number)
    return 1.0 / number if node.target in _QUOTIENTS and number else None


def _is_cast(node: fx.Node) -> bool:
    source, meta = meta_of(node.args[0]), meta_of(node)
    plain = node.target is aten._to_copy.default and set(node.kwargs) <= {"dtype", "layout", "device"}
    return plain and source is not None and meta is not None and source.device == meta.device


FLOATS = frozenset((torch.float32, torch.bfloat16, torch.float16))


@dataclass(frozen=True, slots=True)
class _WeightReaders:
    """result: the product with values. turned: the transposed weights, which the gradient of the values reads.
    of_weights, of_scores: the gradients in front of and behind the derivative of the softmax, and a reader of the
    first."""

    result: fx.Node
    turned: fx.Node | None
    of_weights: Any = None
    of_scores: fx.Node | None = None
    reader: fx.Node | None = None


def _readers_of_weights(softmax: fx.Node) -> _WeightReaders | None:
    others = [user for user in softmax.users if user.target is not aten.mul.Tensor]
    derivative = [user for user in softmax.users if user.target is aten.mul.Tensor]
    widened = [user for user in others if _is_cast(user) and all(one.target is aten.mul.Tensor for one in user.users)]
    weights = softmax
    if widened and not derivative and len(widened) == 1:
        (weights,) = widened
        others.remove(weights)
        derivative = list(weights.users)
    node = softmax
    while len(others) == 1 and step_factor(others[0]) == 1.0:
        (node,) = others
        others = list(node.users)
    product = [one for one in others if one.target is aten.bmm.default and one.args[0] is node is not one.args[1]]
    turned = [one for one in others if one.target is aten.transpose.int]
    if len(product) != 1 or len(turned) > 1 or len(others) != len(product) + len(turned):
        return None
    found = _WeightReaders(product[0], next(iter(turned), None))
    return _with_derivative(found, weights, derivative) if derivative else found


def _with_derivative(found: _WeightReaders, weights: fx.Node, products: list[fx.Node]) -> _WeightReaders | None:
    """The derivative of softmax: g * w - w * sum(g * w), of which `products` are the two that read the weights w."""
    if len(products) != 2 or any(one.kwargs for one in products):
        return None
    for weighted, scaled in (products, products[::-1]):
        total, difference = _other(scaled, weights), _sole_reader(scaled)
        gradient = _other(weighted, weights)
        if (
            isinstance(total, fx.Node)
            and total.target is aten.sum.dim_IntList
            and _sums_rows(total, weighted)
            and list(total.users) == [scaled]
            and difference is not None
            and difference.target is aten.sub.Tensor
            and difference.args == (weighted, scaled)
            and not difference.kwargs
            and set(weighted.users) == {total, difference}
        ):
            return replace(found, of_weights=gradient, of_scores=difference, reader=weighted)
    return None


def _other(product: fx.Node, factor: fx.Node) -> Any:
    """The other factor of a product; None for a square."""
    one, other = product.args
    return other if one is factor is not other else one if other is factor is not one else None


def _sums_rows(total: fx.Node, source: fx.Node) -> bool:
    rank = len(source.meta["val"].shape)
    return total.args in ((source, [-1], True), (source, [rank - 1], True)) and not total.kwargs


# ---- backward -------------------------------------------------------------------------------------------------------


def _gradients(scores: Scores, readers: _WeightReaders) -> Gradients | None:
    tangents: list[Any] = []
    values = of_queries = of_keys = of_scores = None
    if readers.turned is not None:
        values = _sole_reader(readers.turned)
        if values is None or values.target is not aten.bmm.default or values.args[0] is not readers.turned:
            return None
        if not _is_transposed(readers.turned, readers.result.args[0]):
            return None
        tangents.append(values.args[1])
    if readers.of_scores is not None and readers.reader is not None:
        product = _behind_steps(readers.of_weights, readers.reader)
        if product is None or not _is_transposed(product.args[1], readers.result.args[1]):
            return None
        tangents.append(product.args[0])
        products = _gradients_of_product(readers.of_scores, scores)
        if products is None:
            return None
        of_queries, of_keys, of_scores = products
    first = tangents[0]
    if any(one is not first for one in tangents) or _dtype(first) is not _dtype(readers.result):
        return None
    return Gradients(first, of_queries, of_keys, values, of_scores)


def _sole_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _behind_steps(node: Any, reader: fx.Node) -> fx.Node | None:
    """The product of matrices that `node` shows, as other matrices or in another dtype."""
    while isinstance(node, fx.Node) and list(node.users) == [reader]:
        if node.target is aten.bmm.default:
            return node
        if step_factor(node) != 1.0:
            return None
        node, reader = node.args[0], node
    return None


_Products = tuple[fx.Node | None, fx.Node | None, fx.Node | None]


def _gradients_of_product(node: fx.Node, scores: Scores) -> _Products | None:
    """The products with keys and with queries that read the gradient of the scores, `node`, and that gradient if others
    read it."""
    start, factor, shown = node, 1.0, None
    while (reader := _next_step(node)) is not None:
        if len(node.users) > 1:
            if shown is not None or factor != 1.0:
                return None
            shown = node
        step = step_factor(reader)
        assert step is not None
        node, factor = reader, factor * step
    if shown is None and not any(user.target is aten.bmm.default for user in node.users):
        return None, None, start
    if abs(factor - scores.factor) > 1e-12 * abs(scores.factor):
        return None
    queries, keys = scores.queries, scores.keys
    of_queries = of_keys = None
    for user in node.users:
        if user.target is not aten.bmm.default or user.args[0] is user.args[1]:
            return None
        if user.args[0] is node and of_queries is None and _is_transposed(user.args[1], keys):
            of_queries = user
        elif user.args[1] is node and of_keys is None and _is_transposed(user.args[0], queries):
            of_keys = user
        else:
            return None
    return of_queries, of_keys, shown


def _next_step(node: fx.Node) -> fx.Node | None:
    """The reader through which a gradient reaches products, by steps."""
    steps = [user for user in node.users if step_factor(user) is not None]
    if len(node.users) == 1:
        return steps[0] if steps else None
    ways = [user for user in steps if _reaches_products(user)]
    return ways[0] if len(ways) == 1 else None


def _reaches_products(node: fx.Node) -> bool:
    while len(node.users) == 1 and step_factor(reader := next(iter(node.users))) is not None:
        node = reader
    return bool(node.users) and all(user.target is aten.bmm.default for user in node.users)


def _is_transposed(node: Any, source: Any) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.target is aten.transpose.int
        and node.args[0] is source
        and set(node.args[1:]) in ({1, 2}, {-1, -2})
    )


def softmaxes(graph: fx.Graph) -> Iterator[fx.Node]:
    yield from [node for node in graph.nodes if node.target is aten._softmax.default]
