"""LSTM, GRU and RNN: each layer is one operator, `stator::recurrent_layer`, and so is its backward.

ATen would unroll the layers over the steps of a sequence, or call oneDNN with a workspace of unknown size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload
from torch.utils._python_dispatch import _get_current_dispatch_mode

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeMode, FakeTensor, meta_of_real, specials
from stator.prims.layout import contiguous_strides, is_contiguous
from stator.prims.onednn import onednn_enabled
from stator.prims.operators.recurrent_layer import (
    LIBRARY,
    recurrent_layer,
    recurrent_layer_backward,
    runs_in_onednn,
)
from stator.prims.record import TensorMeta
from stator.shapes.environment import assume_several

from .data_dependent_functions import stand_ins
from .symbolic_composites import gru_cell

aten = torch.ops.aten
_GATES = {"lstm": 4, "gru": 3}
_FEW_STEPS = 4  # short sequences are unrolled, if ATen would: their operators fuse with those around them


class _RecurrentLayer(torch.autograd.Function):
    """`stator::recurrent_layer` with its gradient. options: kind, biases, bidirectional, exact, autocast."""

    @staticmethod
    def forward(
        ctx: Any, options: tuple[Any, ...], count: int, input: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        kind, *flags = options
        input = _row_major(input)  # as the layer reads it, forward and backward
        results = recurrent_layer(kind, input, tensors[:count], tensors[count:], *flags[:2], True, *flags[2:])
        ctx.set_materialize_grads(False)
        ctx.options, ctx.count, ctx.inputs = options, count, len(tensors) + 1
        ctx.mark_non_differentiable(*results[count + 1 :])
        ctx.save_for_backward(input, *tensors, *results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise Unsupported("double-backward", "the gradient of a recurrent layer is differentiated again")
        kind, *flags = ctx.options
        input, *tensors = ctx.saved_tensors[: ctx.inputs]
        states, weights = tensors[: ctx.count], tensors[ctx.count :]
        asked = ctx.needs_input_grad[2:]
        groups = asked[:1], asked[1 : ctx.count + 1], asked[ctx.count + 1 :]
        needed = [any(group) for group in groups]
        layer = kind, input, states, weights, *flags[:2], True, *flags[2:]
        # the kernel that computes a gradient writes it in the order that the layer reads
        arriving = [None if one is None else _row_major(one) for one in gradients[: ctx.count + 1]]
        results = ctx.saved_tensors[ctx.inputs :]
        found = iter(recurrent_layer_backward(arriving, results, needed, *layer))
        parts = [[next(found) if wanted else None for _ in group] for group, wanted in zip(groups, needed, strict=True)]
        of_inputs = [one for part in parts for one in part]
        return None, None, *[one if wanted else None for one, wanted in zip(of_inputs, asked, strict=True)]


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, if sizes above 1 need one, so that none of them is asked whether it is 1."""
    with assume_several():
        lies_so = is_contiguous(tuple(tensor.shape), tensor.stride())
    return tensor if lies_so else tensor.clone(memory_format=torch.contiguous_format)


def _whole(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.lstm` and its relatives. original: runs what is not understood."""

    def run(*args: Any, **kwargs: Any) -> Any:
        packed = len(args) > 3 and isinstance(args[3], list | tuple)
        if isinstance(args[1] if packed else kwargs.get("batch_sizes"), FakeTensor):
            # C++ reads the memory of the batch sizes without a check if the number of steps is a symbol
            raise Unsupported("data-dependent-value", f"{kind} reads the batch sizes of a packed sequence")
        eagerly = getattr(_get_current_dispatch_mode(), "eager_layers", False)
        if eagerly or kwargs or packed or len(args) != 9:
            return original(*args, **kwargs)
        states = list(args[1]) if kind == "lstm" else [args[1]]
        if not _is_understood(kind, args[0], states, args[2], args[3], args[4], args[7]):
            return original(*args)
        output, *last = _layers(kind, args[0], states, *args[2:])
        return (output, *last)

    return run


def _is_understood(
    kind: str, input: Any, states: Sequence[Any], weights: Sequence[Any], biases: bool, layers: int, bidirectional: bool
) -> bool:
    """Whether the arguments fit together; ATen reports what does not."""
    tensors = [input, *states, *weights]
    directions = layers * (2 if bidirectional else 1)
    if (
        torch._C._functorch.peek_interpreter_stack() is not None  # function transforms know ATen's operators only
        or any(one.device.type != "cpu" or not one.is_floating_point() for one in tensors)
        or (input.dim(), *[state.dim() for state in states]) != (3,) * (len(states) + 1)
        or len(weights) % directions
        or not (torch.is_autocast_enabled("cpu") or len({one.dtype for one in tensors}) == 1)
    ):
        return False
    count, gates = len(weights) // directions, _GATES.get(kind, 1)
    hidden, size = states[0].shape[2], states[-1].shape[2]
    read = input.shape[2]
    for at in range(directions):
        given = [tuple(one.shape) for one in weights[at * count :][:count]]
        sizes = [(gates * size, read), (gates * size, hidden), *[(gates * size,)] * (2 if biases else 0)]
        if given != [*sizes, (hidden, size)][:count] or count - len(sizes) not in (0, 1):
            return False
        if (at + 1) % (2 if bidirectional else 1) == 0:
            read = hidden * (2 if bidirectional else 1)
    return all(state.shape[0] == directions for state in states)


def _layers(
    kind: str,
    input: torch.Tensor,
    states: list[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[torch.Tensor]:
    """Returns the results of all steps, and the last states of all layers."""
    keep = getattr(_get_current_dispatch_mode(), "keep", None)
    exact = keep is not None and keep(aten.mkldnn_rnn_layer.default)
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    if autocast is not None and kind == "lstm" and runs_in_onednn(input, states):
        # autocast converts the operands of oneDNN's layers, but of other layers those of products alone
        states, weights = ([one.to(autocast) for one in given] for given in (states, weights))
        input = input.to(autocast)
        autocast = None
    output = input.transpose(0, 1) if batch_first else input
    directions, last = 2 if bidirectional else 1, []
    count = len(weights) // layers
    for layer in range(layers):
        own = [state[layer * directions : (layer + 1) * directions] for state in states]
        options = kind, biases, bidirectional, exact, autocast
        output, *ends = _layer(options, output, own, weights[layer * count :][:count])
        last.append(ends)
        if dropout and train and layer < layers - 1:
            output = torch.dropout(output, dropout, True)
    ends = [torch.cat(parts) if layers > 1 else parts[0] for parts in zip(*last, strict=True)]
    return [output.transpose(0, 1) if batch_first else output, *ends]


def _layer(
    options: tuple[Any, ...], input: torch.Tensor, states: list[torch.Tensor], weights: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    kind, biases, bidirectional, exact, autocast = options
    # ATen asks for the number of elements before it calls oneDNN, which fails for symbols
    asks = kind == "lstm" and input.dtype in (torch.float32, torch.bfloat16) and onednn_enabled()
    unrolls = getattr(_get_current_dispatch_mode(), "eager_layers", None) is None
    steps, *others = input.shape
    any_batch = torch.SymInt in map(type, others)
    few = type(steps) is int and steps <= _FEW_STEPS and not (any_batch and (exact or kind == "lstm"))
    if unrolls and not asks and few:
        if any_batch:
            return _unrolled(kind, input, states[0], weights, 2 if bidirectional else 1)
        first: Any = states if kind == "lstm" else states[0]
        return _composite(kind)(input, first, list(weights), biases, 1, 0.0, False, bidirectional, False)
    tensors = [input, *states, *weights]
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return _RecurrentLayer.apply(options, len(states), *tensors)[: len(states) + 1]
    return recurrent_layer(kind, input, states, weights, biases, bidirectional, False, exact, autocast)


def _unrolled(
    kind: str, input: torch.Tensor, states: torch.Tensor, weights: Sequence[torch.Tensor], directions: int
) -> Sequence[torch.Tensor]:
    """The steps of a layer as operators, for any size of a batch. ATen's own decomposition needs a constant."""
    found, last = [], []
    for at in range(directions):
        own, state = weights[at * len(weights) // directions :][: len(weights) // directions], states[at]
        steps = []
        for step in input.unbind(0)[:: -1 if at else 1]:
            if kind == "gru":
                state = gru_cell(step, state, *own)
            else:
                sums = F.linear(step, own[0], *own[2:3]) + F.linear(state, own[1], *own[3:4])
                state = sums.relu() if kind == "rnn_relu" else sums.tanh()
            steps.append(state)
        found.append(torch.stack(steps[:: -1 if at else 1]))
        last.append(state)
    return torch.cat(found, -1), torch.stack(last)


def _composite(kind: str) -> Callable[..., Any]:
    """ATen's own decomposition."""
    return functools.partial(getattr(aten, kind).input._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


def _below_autograd(kind: str) -> None:
    run = _whole(kind, _composite(kind))

    @specials.register(getattr(aten, kind).input)
    def operator(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with mode:
            return run(*args, **kwargs)


for _kind in LIBRARY:
    stand_ins.register(LIBRARY[_kind])(_whole(_kind, LIBRARY[_kind]))
    _below_autograd(_kind)


def _in_onednn(operator: OpOverload) -> None:
    @specials.register(operator)
    def layer(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not mode.eager_layers:
            raise Unsupported("recurrent-layer", "only oneDNN knows the size of what its recurrent layers save")
        layouts = _layouts_by_onednn(operator, torch.is_grad_enabled(), tuple(map(_at_sizes, args)))
        return tuple(None if layout is None else mode.make(layout) for layout in layouts)


def _at_sizes(value: Any) -> Any:
    """An argument, hashable: of a tensor its layout, in numbers."""
    if isinstance(value, FakeTensor):
        shape = tuple(value.shape)
        return TensorMeta(shape, contiguous_strides(shape), value.dtype, value.device)
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=64)
def _layouts_by_onednn(operator: OpOverload, training: bool, args: tuple[Any, ...]) -> list[TensorMeta | None]:
    """The results of oneDNN's layer or its backward at these sizes, from a call with zeros: nothing else tells the size
    of its workspace."""
    with torch._C._DisableTorchDispatch(), torch.set_grad_enabled(training):
        given = [
            torch.zeros(one.shape, dtype=one.dtype, device=one.device) if isinstance(one, TensorMeta) else one
            for one in args
        ]
        found = operator(*given)
    return [None if one is None else meta_of_real(one) for one in found]


for _operator in (aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default):
    _in_onednn(_operator)
