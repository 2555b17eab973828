"""Pieces of a graph as graphs of their own, each compiled once per layout of its inputs.
split_graph.py decides where a graph is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.base import counters, logs
from stator.base.errors import MissingToolchain, StatorError, WrongAssumption
from stator.graph.ir.aten_graph import PlainGraphModule
from stator.runtime.launch import layouts

CompileWhole = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

# Functions that a graph calls to change the state of torch that its operators run in.
SETTERS = frozenset(
    (
        torch._C._set_grad_enabled,
        torch.set_autocast_enabled,
        torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled,
        torch.clear_autocast_cache,
    )
)
_DEVICES = ("cpu", "cuda")


@dataclass(slots=True)
class GraphPiece:
    """Some nodes of a graph as a graph of its own.

    inputs: nodes of the whole graph whose values the piece takes, in order. outputs: nodes whose values it returns as a
    tuple; None for the last piece, which returns the results of the whole. Python floats (`meta["gives_float"]`) leave
    a piece as tensors.
    """

    module: fx.GraphModule
    inputs: list[fx.Node]
    outputs: list[fx.Node] | None

    @staticmethod
    def of(gm: fx.GraphModule, nodes: Sequence[fx.Node], setters: Sequence[fx.Node]) -> GraphPiece:
        """setters: nodes that run first and bring torch into the state that the piece has within the whole graph."""
        own = set(nodes)
        graph = fx.Graph()
        inputs: list[fx.Node] = []
        copies: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            for used in node.all_input_nodes:
                if used not in own and used not in copies and used.op != "get_attr":
                    copies[used] = made = graph.placeholder(used.name)
                    made.meta.update({key: value for key, value in used.meta.items() if key != "number"})
                    if used.op == "placeholder" and used.meta.get("number"):
                        made.meta["number"] = used.meta["number"]
                    inputs.append(used)
        for setter in setters:
            graph.node_copy(setter)
        outputs: list[fx.Node] | None = []
        for node in nodes:
            for used in node.all_input_nodes:
                if used.op == "get_attr" and used not in copies:
                    copies[used] = graph.node_copy(used)
            if node.op == "output":
                graph.output(fx.map_arg(node.args[0], copies.__getitem__))
                outputs = None
            else:
                copies[node] = graph.node_copy(node, copies.__getitem__)
                if outputs is not None and any(user not in own for user in node.users):
                    outputs.append(node)
        if outputs is not None:
            graph.output(tuple([_given_out(graph, node, copies[node]) for node in outputs]))
        module = PlainGraphModule(gm, graph)
        module.meta.update(gm.meta)
        return GraphPiece(module, inputs, outputs)

    def names(self) -> str:
        """The names of its first operators."""
        called = [name_of(node) for node in self.module.graph.nodes if node.op.startswith("call_")]
        return ", ".join(called[:8]) + (", ..." if len(called) > 8 else "")

    def load(self, values: dict[fx.Node, Any]) -> list[Any]:
        return [values[node] for node in self.inputs]

    def store(self, results: Sequence[Any], values: dict[fx.Node, Any]) -> None:
        for node, result in zip(self.outputs or (), results, strict=True):
            values[node] = result.item() if node.meta.get("gives_float") else result

    def run(self, *args: Any) -> Any:
        """Run operator by operator, in ATen."""
        return self.module.forward(*args)


def _given_out(graph: fx.Graph, node: fx.Node, copy: fx.Node) -> fx.Node:
    """The result that a piece returns for a node of the whole: traced code has numbers only in tensors."""
    if not node.meta.get("gives_float"):
        return copy
    made = graph.call_function(torch.scalar_tensor, (copy,), {"dtype": torch.float64, "device": torch.device("cpu")})
    made.meta.update({key: value for key, value in node.meta.items() if key == "place"})
    return made


class PieceVersions:
    """A piece, compiled for each layout of its inputs, up to a limit."""

    def __init__(self, part: GraphPiece, compile_part: CompileWhole, most: int) -> None:
        self.part, self.compile_part, self.most = part, compile_part, most
        self.computes = any(map(computes, part.module.graph.nodes))
        self.versions: dict[Any, Callable[..., Any]] = {}
        self.limit_logged = False

    def __call__(self, *args: Any) -> Any:
        return self.version_for(args)(*args)

    def version_for(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The compiled piece for inputs of this layout."""
        if not self.computes:
            return self.part.run
        key = _layouts(args)
        found = self.versions.get(key)
        if found is not None:
            return found
        if key is not None and len(self.versions) < self.most:
            found = self.versions[key] = _compiled_or_eager(self.part, args, self.compile_part)
            return found
        counters.count("aot_split:eager")
        if key is not None and not self.limit_logged:
            self.limit_logged = True
            logs.log(
                "recompiles",
                "a piece of a graph was compiled for %s layouts of its inputs, and runs operator by operator for "
                "others: %s",
                self.most,
                self.part.names(),
            )
        return self.part.run


def _compiled_or_eager(part: GraphPiece, args: Sequence[Any], compile_part: CompileWhole) -> Callable[..., Any]:
    for placeholder, value in zip(part.module.graph.find_nodes(op="placeholder"), args, strict=True):
        if type(value) is float:
            placeholder.meta.setdefault("number", True)  # it may change
    with state_put_back():
        try:
            return compile_part(part.module, args)
        except (MissingToolchain, WrongAssumption):
            raise
        except StatorError as error:
            counters.count("aot_split:eager")
            logs.warn_once(f"aot:split:{error}", f"stator: a part of a graph runs eagerly. {error}")
            return part.run


def _layouts(args: Sequence[Any]) -> Any:
    """All facts of the inputs that compiled code relies on; None for inputs that cannot be compiled."""
    tensors: list[torch.Tensor] = []
    key: list[Any] = [torch.is_grad_enabled()]
    for value in args:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if value.layout is not torch.strided:
                return None
            tensors.append(value)
            key.append((value.dtype, value.device, value.shape, value.requires_grad, value.is_leaf))
        elif kind is float:
            key.append(kind)
        elif value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
            key.append((kind, repr(value)))
        else:
            return None
    key.append(layouts(tensors))
    if len(set(map(id, tensors))) < len(tensors):
        first: dict[int, int] = {}
        key.append(tuple([first.setdefault(id(tensor), at) for at, tensor in enumerate(tensors)]))
    return tuple(key)


def computes(node: fx.Node) -> bool:
    return node.op.startswith("call_") and node.target not in SETTERS


def name_of(node: fx.Node) -> str:
    return str(node.target) if node.op != "call_function" else str(getattr(node.target, "__name__", node.target))


@contextmanager
def state_put_back() -> Iterator[None]:
    """Restore torch's state at the end: pieces leave the state of their last node."""
    grad_mode = torch.is_grad_enabled()
    autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    cached = torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad_mode)
        for device, enabled, dtype in autocast:
            if torch.is_autocast_enabled(device) is not enabled:
                torch.set_autocast_enabled(device, enabled)
            if torch.get_autocast_dtype(device) is not dtype:
                torch.set_autocast_dtype(device, dtype)
        if torch.is_autocast_cache_enabled() is not cached:
            torch.set_autocast_cache_enabled(cached)
