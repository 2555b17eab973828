"""One LSTM, GRU or RNN layer over all steps of a sequence: `stator::recurrent_layer` and its backward.

The forward calls ATen's operator, so the number of nodes does not depend on the number of steps.
`recurrent_gradients.py` holds the formulas of the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from stator.prims.layout import contiguous_strides
from stator.prims.onednn import HALF_WIDTH, onednn_enabled
from stator.prims.record import TensorMeta, shape_rule

from .recurrent_gradients import Given, layer_gradients

aten = torch.ops.aten
LIBRARY: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}


def call_library(
    kind: str, input: Any, states: Sequence[Any], weights: Sequence[Any], biases: bool, bidirectional: bool
) -> tuple[torch.Tensor, ...]:
    """Run ATen's layer. Returns the results of all steps, [steps, batch, directions * size], then the last states."""
    first: Any = list(states) if kind == "lstm" else states[0]
    return LIBRARY[kind](input, first, list(weights), biases, 1, 0.0, False, bidirectional, False)


def _keys_available(*names: str) -> Any:
    """A context that undoes `below_autograd` for some dispatch keys."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for name in names:
        excluded = excluded - torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return torch._C._ForceDispatchKeyGuard(included, excluded)


@contextmanager
def _library_mode(grad_mode: bool, autocast: torch.dtype | None) -> Iterator[None]:
    """The grad mode, by which ATen chooses kernels, and autocast inside of the layer."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(grad_mode)
    try:
        if autocast is None:
            yield
            return
        with _keys_available("AutocastCPU"), torch.autocast("cpu", autocast):
            yield
    finally:
        torch._C._set_grad_enabled(before)


@dataclass(slots=True)
class _Layer:
    """The arguments of the operators."""

    kind: str
    input: torch.Tensor
    states: list[torch.Tensor]
    weights: list[torch.Tensor]
    biases: bool
    bidirectional: bool
    train: bool
    exact: bool
    autocast: torch.dtype | None

    def by_onednn(self) -> bool:
        """Whether eager computes this layer by oneDNN, whose workspace the backward reads."""
        return self.kind == "lstm" and self.autocast is None and runs_in_onednn(self.input, self.states)

    def directions(self) -> Iterator[tuple[Any, ...]]:
        """Arguments of oneDNN's layer for each direction: its number, weights, first states."""
        count = 4 if self.biases else 2
        for at in range(2 if self.bidirectional else 1):
            weights = self.weights[at * count :][:count]
            yield at, (*weights, *weights)[:4], self._of_direction(self.states, at)

    def _of_direction(self, states: Sequence[Any], at: int) -> list[Any]:
        """States, or their gradients, of one direction: [1, batch, size], which oneDNN takes as [batch, size]."""
        parts = [None if one is None else one[at : at + 1] for one in states] if self.bidirectional else states
        return [None if one is None else one.contiguous() for one in parts]

    def onednn_results(self) -> list[torch.Tensor]:
        """The results of the layer, then for each direction a tensor of one element in front of oneDNN's workspace,
        because only oneDNN knows the size."""
        input, size = self.input.contiguous(), self.states[0].shape[2]
        flags = size, 1, self.biases, self.bidirectional, False, True
        with torch.enable_grad():  # otherwise ATen makes no workspace
            found = [
                aten.mkldnn_rnn_layer.default(input, *weights, *states, at == 1, [], _LSTM, *flags)
                for at, weights, states in self.directions()
            ]
        output, hidden, cells, workspace = found[0]
        if not self.bidirectional:
            return [output.contiguous(), hidden, cells, workspace[:1]]
        outputs, hidden, cells, workspaces = zip(*found, strict=True)
        return [torch.cat(outputs, 2), torch.cat(hidden), torch.cat(cells), *[one[:1] for one in workspaces]]

    def onednn_gradients(
        self, gradients: list[torch.Tensor | None], results: list[torch.Tensor], needed: list[bool]
    ) -> list[torch.Tensor]:
        """Gradients of input, states and weights, as far as they are `needed`."""
        sizes = [one.untyped_storage().nbytes() for one in results[3:]]
        if 1 in sizes:  # a saved-tensors hook made a copy
            results = self.onednn_results()
            sizes = [one.untyped_storage().nbytes() for one in results[3:]]
        input, size = self.input.contiguous(), self.states[0].shape[2]
        flags: tuple[Any, ...] = _LSTM, size, 1, self.biases, True, self.bidirectional, [], False
        found = []
        for at, weights, states in self.directions():
            output, of_output = results[0], gradients[0]
            if self.bidirectional:
                columns = slice(at * size, (at + 1) * size)
                output, of_output = output[:, :, columns], None if of_output is None else of_output[:, :, columns]
            arriving = [None if of_output is None else of_output.contiguous(), *self._of_direction(gradients[1:], at)]
            ends = self._of_direction(results[1:3], at)
            workspace = results[3 + at].as_strided((sizes[at],), (1,), 0)
            found.append(
                aten.mkldnn_rnn_layer_backward.default(
                    input, *weights, *states, output.contiguous(), *ends, *arriving, at == 1, *flags, workspace
                )
            )
        of_input, of_states, of_weights = needed
        sought = []
        if of_input:  # oneDNN returns float32
            first, *second = [_dense(part[0], input.dtype) for part in found]
            sought.append(first + second[0] if second else first)
        if of_states:
            of_each = zip(*[part[5:7] for part in found], strict=True)
            sought += [parts[0] if len(parts) == 1 else torch.cat(parts) for parts in of_each]
        if of_weights:
            sought += [one for part in found for one in part[1 : 5 if self.biases else 3]]
        return sought

    def autograd_gradients(self, gradients: list[torch.Tensor | None], needed: list[bool]) -> list[torch.Tensor]:
        """Gradients by autograd on ATen's layer, which runs again: eager's bits."""
        groups = zip(([self.input], self.states, self.weights), needed, strict=True)
        leaves = [[one.detach().requires_grad_(wanted) for one in group] for group, wanted in groups]
        with _keys_available("AutogradFunctionality", "ADInplaceOrView"):
            with _library_mode(True, self.autocast):
                results = call_library(self.kind, leaves[0][0], leaves[1], leaves[2], self.biases, self.bidirectional)
            pairs = [pair for pair in zip(results, gradients, strict=True) if pair[1] is not None]
            wanted = [one for group in leaves for one in group if one.requires_grad]
            roots, given = zip(*pairs, strict=True)
            with torch.autograd.set_multithreading_enabled(False):  # this is a part of a running backward
                return list(torch.autograd.grad(roots, wanted, given, materialize_grads=True))


_LSTM = 2  # oneDNN's number of the kind


def runs_in_onednn(input: Any, states: Sequence[Any]) -> bool:
    """Whether eager computes an LSTM that needs gradients by oneDNN; a transcription of ATen's condition."""
    return (
        (input.dtype is torch.float32 or (input.dtype is torch.bfloat16 and HALF_WIDTH[input.dtype]()))
        and onednn_enabled()
        and 0 not in input.shape
        and states[0].shape[2] == states[1].shape[2]  # no projections
    )


def run_layer(*arguments: Any) -> list[torch.Tensor]:
    """`stator::recurrent_layer`."""
    layer = _Layer(*arguments)
    if layer.train and layer.by_onednn():
        return layer.onednn_results()
    with _library_mode(False, layer.autocast):
        found = call_library(*arguments[:6])
    saved = layer.states[0].shape[0] if layer.train and layer.kind == "lstm" else 0
    return [*[one.contiguous() for one in found], *[torch.empty(1, dtype=torch.uint8) for _ in range(saved)]]


def run_layer_backward(
    gradients: list[torch.Tensor | None], results: list[torch.Tensor], needed: list[bool], *arguments: Any
) -> list[torch.Tensor]:
    """`stator::recurrent_layer_backward`."""
    layer = _Layer(*arguments)
    groups = ([layer.input], layer.states, layer.weights)
    sought = [one for group, wanted in zip(groups, needed, strict=True) if wanted for one in group]
    if layer.by_onednn():
        found = layer.onednn_gradients(gradients, results, needed)
    elif layer.exact:
        found = layer.autograd_gradients(gradients, needed)
    else:
        fields: Any = (*arguments[:6], results[0])
        with _library_mode(False, None):
            found = layer_gradients(Given(*fields), gradients, needed)
    return [_dense(one, like.dtype) for one, like in zip(found, sought, strict=True)]


def _dense(one: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return one if one.dtype is dtype and one.is_contiguous() else one.to(dtype).contiguous()


_LAYER = (
    "str kind, Tensor input, Tensor[] states, Tensor[] weights, bool biases, bool bidirectional, bool train, "
    "bool exact, ScalarType? autocast"
)
_library = torch.library.Library("stator", "FRAGMENT")
_library.define(f"recurrent_layer({_LAYER}) -> Tensor[]")
_library.define(f"recurrent_layer_backward(Tensor?[] gradients, Tensor[] results, bool[] needed, {_LAYER}) -> Tensor[]")
_library.impl("recurrent_layer", run_layer, "CompositeExplicitAutograd")
_library.impl("recurrent_layer_backward", run_layer_backward, "CompositeExplicitAutograd")

recurrent_layer = torch.ops.stator.recurrent_layer.default
recurrent_layer_backward = torch.ops.stator.recurrent_layer_backward.default


@shape_rule(recurrent_layer)
def recurrent_layer_shape(
    kind: str,
    input: Any,
    states: Any,
    weights: Any,
    biases: bool,
    bidirectional: bool,
    train: bool,
    exact: bool,
    autocast: torch.dtype | None,
) -> list[TensorMeta]:
    """Returns the results of all steps and the last states, contiguous; for an LSTM with `train` a workspace for each
    direction.

    weights: those of ATen's operator for one layer. train: a backward may follow, and reads all results. exact: it has
    eager's bits. autocast: the dtype of autocast inside of the layer.
    """
    directions = 2 if bidirectional else 1
    dtypes = [one.dtype for one in (input, *states)]
    if autocast is not None:
        dtypes = _dtypes_under_autocast(kind, tuple(dtypes), len(weights) // directions, biases, autocast)
    shapes = [(input.shape[0], input.shape[1], states[0].shape[2] * directions), *[state.shape for state in states]]
    saved = [_contiguous((1,), torch.uint8, input)] * (directions if train and kind == "lstm" else 0)
    return [*[_contiguous(shape, dtype, input) for shape, dtype in zip(shapes, dtypes, strict=True)], *saved]


def _dtypes_under_autocast(
    kind: str, dtypes: tuple[torch.dtype, ...], count: int, biases: bool, autocast: torch.dtype
) -> list[torch.dtype]:
    """The dtypes of the results. They follow from the operators of ATen's layer, so the layer runs on one element."""
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    with torch._C._DisableTorchDispatch(), _library_mode(False, autocast):
        input = torch.zeros(2, 1, 1, dtype=dtypes[0])
        projected = count % 2  # ATen compares the sizes of the states to find a projection
        states = [torch.zeros(1, 1, 1 + at * projected, dtype=dtype) for at, dtype in enumerate(dtypes[1:])]
        gates *= 1 + projected
        weights = [torch.zeros(gates, 1), torch.zeros(gates, 1)] + [torch.zeros(gates)] * (2 if biases else 0)
        weights += [torch.zeros(1, 2)] * projected
        return [result.dtype for result in call_library(kind, input, states, weights, biases, False)]


@shape_rule(recurrent_layer_backward)
def recurrent_layer_backward_shape(
    gradients: Any, results: Any, needed: Any, kind: Any, input: Any, states: Any, weights: Any, *_: Any
) -> list[TensorMeta]:
    """Returns the gradients of input, states and weights, as far as they are `needed`: three flags."""
    groups = ([input], states, weights)
    sought = [one for group, wanted in zip(groups, needed, strict=True) if wanted for one in group]
    return [_contiguous(one.shape, one.dtype, one) for one in sought]


def _contiguous(shape: Any, dtype: torch.dtype, like: Any) -> TensorMeta:
    return TensorMeta(tuple(shape), contiguous_strides(tuple(shape)), dtype, like.device)
