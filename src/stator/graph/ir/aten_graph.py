"""The fx.Graph that holds functional ATen operators, and graph modules that free their generated Python text: torch.fx
keeps the text of every graph, for tracebacks, as long as the process lives."""

from __future__ import annotations

import linecache
import weakref
from typing import Any

import torch
from torch import fx
from torch.fx import graph_module
from torch.fx._lazy_graph_module import _LazyGraphModule

from stator.prims.record import TensorMeta


class AtenGraph(fx.Graph):
    """Nodes may have symbolic numbers among their arguments, which they get after they are made: torch.fx searches the
    arguments of new nodes for symbolic numbers, to warn of them, which takes longer than all else."""

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        node: fx.Node = super().create_node(op, target, None, None, name, type_expr)
        if args:
            node.args = args
        if kwargs:
            node.kwargs = kwargs
        return node


def graphs_of_callable(node: fx.Node) -> dict[str, fx.GraphModule]:
    """The graphs that the callable of a node runs, by role; none for most nodes."""
    target = getattr(node.target, "graph_callable", None)
    return target.graphs() if hasattr(type(target), "graphs") else {}  # type: ignore[union-attr]


def copy_with_strides(graph: fx.Graph, source: fx.Node, wanted: TensorMeta) -> fx.Node:
    """Add a copy of `source`, in fresh memory with the strides of `wanted`."""
    options: dict[str, Any] = {"dtype": wanted.dtype, "device": wanted.device}
    sizes = list(wanted.shape), list(wanted.stride)
    empty = graph.call_function(torch.ops.aten.empty_strided.default, sizes, options)
    with graph.inserting_after(empty):
        copied = graph.call_function(torch.ops.aten.copy.default, (empty, source))
    empty.meta["val"] = copied.meta["val"] = TensorMeta(wanted.shape, wanted.stride, wanted.dtype, wanted.device)
    return copied


_KEY = "<eval_with_key>"  # file name prefix of torch.fx's generated code


def _forget(key: str) -> None:
    graph_module._loader.eval_cache.pop(key, None)
    linecache.cache.pop(key, None)


def forget_text_with(module: fx.GraphModule) -> None:
    """Free the text of the module's current code together with that code, which may outlive the module."""
    forward = type(module).__dict__.get("forward")
    code = getattr(forward, "__code__", None)
    if code is not None and code.co_filename.startswith(_KEY):
        weakref.finalize(forward, _forget, code.co_filename).atexit = False


class LazyGraphModule(_LazyGraphModule):
    """A graph module that generates its Python code on demand."""

    def _real_recompile(self) -> Any:
        made = super()._real_recompile()
        forget_text_with(self)
        return made


class PlainGraphModule(fx.GraphModule):
    """A graph module that generates its Python code at once, like torch's own."""

    def recompile(self) -> Any:
        made = super().recompile()
        forget_text_with(self)
        return made
