"""A graph as Python text that runs again: one line per node with its type, under comments naming the user's lines.

Works for ATen graphs and for graphs of torch calls; it only reads graphs.
"""

from __future__ import annotations

import linecache
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.base.errors import UserPlace
from stator.base.registry import Registry

from .fake.fake_mode import FakeTensor
from .ir.aten_graph import graphs_of_callable
from .ir.format import format_meta
from .ir.size_bindings import ResultPlace, size_bindings, symbols_of_graph
from .subgraphs.subgraph_ops import subgraph_of


def print_graph(gm: fx.GraphModule, *, name: str = "forward", title: str = "") -> str:
    """Return Python source with one function `name` that takes the placeholders and returns the outputs.

    Tensors read by get_attr come from a module-level dict `constants`, to be filled before the call; a comment
    describes each. The dict also holds, by node name, functions made of graphs (custom backwards, hooks, transforms),
    whose graphs are printed first. Execute the text with `load_graph`.
    """
    printer = _Printer()
    functions = [_function(printer, part, f"{name}_{of}") for of, part in _parts(gm).items()]
    functions.append(_function(printer, gm, name))
    lines = [
        f'"""{title or gm._get_name()}: {_summary(gm)}"""',
        "",
        "import operator",
        *(["from math import ceil, floor, trunc"] if symbols_of_graph(gm.graph) else []),
        "",
        "import torch",
        *(["", "from stator.shapes.floats import quotient"] if "quotient(" in str(functions) else []),
        *printer.imports(),
    ]
    lines += ["", "constants = {}"]
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            lines.append(f"# constants[{str(node.target)!r}]: {_type_of(node)}")
        elif hasattr(node.target, "graph_callable"):
            kind = type(node.target.graph_callable).__name__
            lines.append(f"# constants[{node.name!r}]: {kind} of the graphs {name}_{node.name}_...")
    for function in functions:
        lines += ["", "", *function]
    return "\n".join([*lines, ""])


def _function(printer: _Printer, gm: fx.GraphModule, name: str) -> list[str]:
    body = [line for node in gm.graph.nodes for line in printer.node(node)]
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    arguments = [f"    {node.name},  # {_type_of(node)}" for node in placeholders]
    return [f"def {name}(", *arguments, "):", *(f"    {line}" for line in (*_sizes(gm, placeholders), *body))]


def _sizes(gm: fx.GraphModule, placeholders: Sequence[fx.Node]) -> Iterator[str]:
    """Yield a line for each symbol that is no input itself."""
    for symbol, binding in size_bindings(gm.graph).items():
        source = placeholders[binding.position].name
        value = source if binding.dim is None else f"{source}.shape[{binding.dim}]"
        if value != str(symbol):
            yield f"{symbol} = {value}"


def _parts(gm: fx.GraphModule) -> dict[str, fx.GraphModule]:
    """Return the graphs inside of nodes, such as those of custom autograd functions, hooks and transforms."""
    found: dict[str, fx.GraphModule] = {}
    for node in gm.graph.nodes:
        for role, graph in inner_graphs(node).items():
            found[f"{node.name}_{role}"] = graph
            found |= {f"{node.name}_{role}_{inner}": part for inner, part in _parts(graph).items()}
    return found


def inner_graphs(node: fx.Node) -> dict[str, fx.GraphModule]:
    """Return the graphs inside of a node, by role; none for most nodes."""
    part = subgraph_of(node)
    if part is not None:
        return {str(position): graph for position, graph in enumerate(part.graphs)}
    return graphs_of_callable(node)


def load_graph(text: str, constants: Mapping[str, Any] | None = None, *, name: str = "forward") -> Any:
    """Execute printed text and return its function. `constants` fills the text's dict of constants."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "<printed graph>", "exec"), namespace)
    namespace["constants"].update(constants or {})
    return namespace[name]


def _summary(gm: fx.GraphModule) -> str:
    operations = sum(node.op.startswith("call_") for node in gm.graph.nodes)
    inputs = sum(node.op == "placeholder" for node in gm.graph.nodes)
    return f"{inputs} inputs, {operations} operations"


def _type_of(node: fx.Node) -> str:
    """Describe a node's value for a comment; empty if nothing is known."""
    if "val" in node.meta:
        return format_meta(node.meta["val"])
    example = node.meta.get("example_value")
    if isinstance(example, FakeTensor):
        return format_meta(example.meta)
    return type(example).__name__ if example is not None else ""


# The modules whose import defines the operators of a namespace.
_DEFINED_BY = {"stator": "stator.prims", "stator_parts": "stator.graph.subgraphs.subgraph_ops"}


class _Printer:
    """Prints nodes as lines; remembers the last named line of the user, and the functions that need a name."""

    def __init__(self) -> None:
        self.place: UserPlace | None = None
        self.functions: dict[str, Any] = {}

    def imports(self) -> list[str]:
        modules = {text.rpartition(".")[0] for text in self.functions.values() if "." in text}
        roots = {
            module for module in modules if module.partition(".")[0] not in ("torch", "operator", "builtins", "math")
        }
        roots |= {module for module in modules if module == "math"}
        return [f"import {module}" for module in sorted(roots)]

    def node(self, node: fx.Node) -> list[str]:
        lines = self.place_lines(node)
        text = printers[node.op](self, node)
        if text is None:
            return lines
        kind = _type_of(node) if node.op != "output" else ""
        sizes = [f"{symbol} = {_read(node.name, place)}" for symbol, place in node.meta.get("binds", {}).items()]
        return [*lines, f"{text}  # {kind}" if kind else text, *sizes]

    def place_lines(self, node: fx.Node) -> list[str]:
        place = node.meta.get("place")
        if place is None or place == self.place or node.op in ("placeholder", "output"):
            return []
        self.place = place
        source = linecache.getline(place.filename, place.line).strip()
        return [f"# {place.filename}:{place.line} in {place.function}{': ' + source if source else ''}"]

    def call(self, function: str, node: fx.Node, args: tuple[Any, ...]) -> str:
        parts = [self.value(arg) for arg in args]
        parts += [f"{key}={self.value(value)}" for key, value in node.kwargs.items()]
        return f"{node.name} = {function}({', '.join(parts)})"

    def function(self, target: Any) -> str:
        if isinstance(target, OpOverload):
            if target.namespace in _DEFINED_BY:
                self.functions[f"torch.ops.{target.namespace}"] = f"{_DEFINED_BY[target.namespace]}.{target.namespace}"
            return f"torch.ops.{target}"
        module = getattr(target, "__module__", None) or ""
        text = fx.node._get_qualified_name(target)
        if module in ("_operator", "operator") or text.startswith("_operator."):
            text = f"operator.{target.__name__}"
        self.functions[text] = text
        return text.removeprefix("builtins.")

    def value(self, value: Any) -> str:
        """Return an argument as source text."""
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, list):
            return f"[{', '.join(self.value(item) for item in value)}]"
        if isinstance(value, tuple):
            inner = ", ".join(self.value(item) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self.value(item)}' for key, item in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f"float({str(value)!r})"
        if callable(value) and not isinstance(value, type):
            return self.function(value)
        return repr(value)


def _read(results: str, place: ResultPlace) -> str:
    return place.read_text(results if place.index is None else f"{results}[{place.index}]")


printers: Registry[str, Any] = Registry("node kind")


@printers.register("call_function")
def _call_function(printer: _Printer, node: fx.Node) -> str:
    if node.target is operator.getitem and isinstance(node.args[1], int):
        return f"{node.name} = {printer.value(node.args[0])}[{node.args[1]}]"
    if hasattr(node.target, "graph_callable"):
        return printer.call(f"constants[{node.name!r}]", node, node.args)
    return printer.call(printer.function(node.target), node, node.args)


printers.add_all(
    {
        "placeholder": lambda printer, node: None,
        "get_attr": lambda printer, node: f"{node.name} = constants[{str(node.target)!r}]",
        "call_method": lambda printer, node: printer.call(
            f"{printer.value(node.args[0])}.{node.target}", node, node.args[1:]
        ),
        "call_module": lambda printer, node: printer.call(f"constants[{str(node.target)!r}]", node, node.args),
        "output": lambda printer, node: f"return {printer.value(node.args[0])}",
    }
)
