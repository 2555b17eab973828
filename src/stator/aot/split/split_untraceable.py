"""Graphs that cannot be compiled as a whole: what stands before and behind the operator that cannot be traced is
compiled, and the operator itself runs in ATen between them.

How graphs are traced and compiled is not known here. A front end that sees such an operator ends its graph before it;
this is for graphs that are handed over with one inside.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stator.base import counters, logs
from stator.base.errors import MissingToolchain, StatorError, WrongAssumption
from stator.graph.ir.graph_text import PlainGraphModule
from stator.graph.subgraphs.differentiated import GradientHook

CompileWhole = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

# Different layouts of its inputs that what stands behind an operator is compiled for; for others it runs eagerly.
MOST_VERSIONS = 8
# What a graph calls to change the state of torch that its operators run in.
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


def in_pieces(gm: fx.GraphModule, example_inputs: Sequence[Any], compile_whole: CompileWhole) -> Callable[..., Any]:
    """Compile a graph as a whole where that is possible, else around the operators that cannot be traced.

    Raises StatorError where no operator is to blame, or the graph consists of nothing else.
    """
    try:
        return compile_whole(gm, example_inputs)
    except (MissingToolchain, WrongAssumption):
        raise
    except StatorError as error:
        at = _position_of(error, gm)
        if at is None or switches_by_context(gm) or _is_differentiated_behind(gm, at):
            raise
        return _Divided(gm, at, error, compile_whole, example_inputs).run


def _position_of(error: StatorError, gm: fx.GraphModule) -> int | None:
    """Where in the graph the operator is that could not be traced; the error may name a node of a copy of the graph."""
    origin: Any = error.origin
    if not isinstance(origin, fx.Node) or not origin.op.startswith("call_") or origin.target in SETTERS:
        return None
    for at, node in enumerate(gm.graph.nodes):
        if node.name == origin.name and node.op == origin.op and node.target == origin.target:
            return at
    return None


def _is_differentiated_behind(gm: fx.GraphModule, at: int) -> bool:
    """Whether autograd's engine runs in the graph behind this node: traced by itself, it would see no history."""
    nodes = list(gm.graph.nodes)
    return looks_at_history(nodes, at) or any(node.target is torch.autograd.grad for node in nodes[at + 1 :])


def looks_at_history(nodes: Sequence[fx.Node], at: int) -> bool:
    """Whether some node does something to the history of a tensor that may have been made in another part, where the
    graph is divided at this position first: a hook behind it, or a leaf made anywhere."""
    hooks = (isinstance(getattr(node.target, "part_of_graph", None), GradientHook) for node in nodes[at:])
    return any(hooks) or any(
        (node.op == "call_method" and node.target in _OF_HISTORY) or node.kwargs.get("requires_grad") is True
        for node in nodes
    )


_OF_HISTORY = frozenset(("requires_grad_", "detach_"))


def switches_by_context(gm: fx.GraphModule) -> bool:
    """Whether the graph enters and leaves modes in other ways than by setters: those cannot be entered again."""
    entering = ("_enter_", "_exit_", "enter_", "exit_")
    return any(
        node.op == "call_function"
        and node.target not in SETTERS
        and str(getattr(node.target, "__name__", "")).startswith(entering)
        for node in gm.graph.nodes
    )


class _Divided:
    """A graph in three parts: what comes before an operator, the operator, and what comes behind it."""

    def __init__(
        self,
        gm: fx.GraphModule,
        at: int,
        error: StatorError,
        compile_whole: CompileWhole,
        example_inputs: Sequence[Any],
    ) -> None:
        nodes = list(gm.graph.nodes)
        culprit = nodes[at]
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        middle = [culprit, *[user for user in culprit.users if picks_a_part(user)]]
        before = [node for node in nodes[:at] if node.op not in ("placeholder", "get_attr")]
        after = [node for node in nodes[at + 1 :] if node not in middle and node.op != "get_attr"]
        setters = [node for node in before if node.target in SETTERS]
        self.before = GraphPiece.of(gm, before, ())
        self.middle = GraphPiece.of(gm, middle, setters)
        self.after = GraphPiece.of(gm, after, setters)
        self.rest = Versions(self.after, compile_whole)
        name = name_of(culprit)
        counters.count(f"aot_fallback:{name}")
        told = f"{name} runs in ATen between compiled parts of its graph. {str(error).splitlines()[0]}"
        logs.log("graph_breaks", "%s", told)
        logs.warn_once(f"aot:pieces:{name}", f"stator: {told}")
        self.run_before: Callable[..., Any] | None = None
        if any(node.op.startswith("call_") and node.target not in SETTERS for node in before):
            values = dict(zip(self.placeholders, example_inputs, strict=True))
            self.run_before = _compiled_or_eager(self.before, self.before.load(values), compile_whole)

    def run(self, *args: Any) -> Any:
        values: dict[fx.Node, Any] = dict(zip(self.placeholders, args, strict=True))
        with state_put_back():
            if self.run_before is not None:
                self.before.store(self.run_before(*self.before.load(values)), values)
            self.middle.store(self.middle.run(*self.middle.load(values)), values)
            arguments = self.after.load(values)
            values.clear()
            return self.rest(*arguments)


@dataclass(slots=True)
class GraphPiece:
    """Some nodes of a graph as a graph of its own.

    inputs: nodes of the whole whose values it takes, in order. outputs: those whose values it returns as a tuple; None
    for the last part, which returns what the whole returns. Python floats (`meta["gives_float"]`) come out in tensors.
    """

    module: fx.GraphModule
    inputs: list[fx.Node]
    outputs: list[fx.Node] | None

    @staticmethod
    def of(gm: fx.GraphModule, nodes: Sequence[fx.Node], setters: Sequence[fx.Node]) -> GraphPiece:
        """setters: nodes that run first, so that the part runs in the state of torch of its place in the whole."""
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
                        made.meta["number"] = True
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
        """Of its operators, as far as a line of text holds them."""
        called = [name_of(node) for node in self.module.graph.nodes if node.op.startswith("call_")]
        return ", ".join(called[:8]) + (", ..." if len(called) > 8 else "")

    def load(self, values: dict[fx.Node, Any]) -> list[Any]:
        return [values[node] for node in self.inputs]

    def store(self, results: Sequence[Any], values: dict[fx.Node, Any]) -> None:
        for node, result in zip(self.outputs or (), results, strict=True):
            values[node] = result.item() if node.meta.get("gives_float") else result

    def run(self, *args: Any) -> Any:
        """Operator by operator, in ATen."""
        return self.module.forward(*args)


def _given_out(graph: fx.Graph, node: fx.Node, copy: fx.Node) -> fx.Node:
    """What a part returns for a node of the whole: traced code has no numbers but in tensors."""
    if not node.meta.get("gives_float"):
        return copy
    made = graph.call_function(torch.scalar_tensor, (copy,), {"dtype": torch.float64, "device": torch.device("cpu")})
    made.meta.update({key: value for key, value in node.meta.items() if key == "place"})
    return made


class Versions:
    """The last part, compiled for each layout of its inputs that comes, up to a limit."""

    def __init__(self, part: GraphPiece, compile_whole: CompileWhole, most: int = MOST_VERSIONS) -> None:
        self.part, self.compile_whole, self.most = part, compile_whole, most
        self.computes = any(
            node.op.startswith("call_") and node.target not in SETTERS for node in part.module.graph.nodes
        )
        self.versions: dict[Any, Callable[..., Any]] = {}
        self.told = False

    def __call__(self, *args: Any) -> Any:
        if not self.computes:
            return self.part.run(*args)
        key = _layouts(args)
        run = None if key is None else self.versions.get(key)
        if run is None:
            if key is None or len(self.versions) >= self.most:
                counters.count("aot_pieces:eager")
                if key is not None and not self.told:
                    self.told = True
                    logs.log(
                        "recompiles",
                        "a segment of a graph was compiled for %s layouts of its inputs, and runs "
                        "operator by operator for others: %s",
                        self.most,
                        self.part.names(),
                    )
                return self.part.run(*args)
            run = self.versions[key] = _compiled_or_eager(self.part, args, self.compile_whole)
        return run(*args)


def _compiled_or_eager(part: GraphPiece, args: Sequence[Any], compile_whole: CompileWhole) -> Callable[..., Any]:
    flat, module = _with_flat_inputs(part.module, args)
    with state_put_back():
        try:
            compiled = in_pieces(module, flat, compile_whole)
        except (MissingToolchain, WrongAssumption):
            raise
        except StatorError as error:
            counters.count("aot_pieces:eager")
            logs.warn_once(f"aot:piece:{error}", f"stator: a part of a graph runs eagerly. {error}")
            return part.run
    if module is part.module:
        return compiled
    return lambda *values: compiled(*pytree.tree_leaves(list(values)))


def _with_flat_inputs(module: fx.GraphModule, args: Sequence[Any]) -> tuple[list[Any], fx.GraphModule]:
    """The inputs with tuples and lists among them taken apart, and the graph for them, in which floats may change."""
    if not any(isinstance(value, (tuple, list, float)) for value in args):
        return list(args), module
    graph = fx.Graph()
    remaining = iter(args)
    flat: list[Any] = []
    copies: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value = next(remaining)
            if not isinstance(value, (tuple, list)):
                copies[node] = graph.node_copy(node)
                if type(value) is float:
                    copies[node].meta["number"] = True
                flat.append(value)
                continue
            leaves = pytree.tree_leaves(value)
            copies[node] = _nested(value, iter([graph.placeholder(f"{node.name}_{at}") for at in range(len(leaves))]))
            flat += leaves
        elif node.op == "output":
            graph.output(fx.map_arg(node.args[0], copies.__getitem__))
        else:
            args_of_node = fx.map_arg(node.args, copies.__getitem__)
            kwargs_of_node = fx.map_arg(node.kwargs, copies.__getitem__)
            copies[node] = graph.create_node(node.op, node.target, args_of_node, kwargs_of_node, node.name)
            copies[node].meta.update(node.meta)
    made = PlainGraphModule(module, graph)
    made.meta.update(module.meta)
    return flat, made


def _nested(value: Any, leaves: Iterator[Any]) -> Any:
    """The structure of `value` with other leaves, as plain tuples and lists."""
    if isinstance(value, (tuple, list)):
        kind = list if isinstance(value, list) else tuple
        return kind([_nested(item, leaves) for item in value])
    return next(leaves)


def _layouts(args: Sequence[Any]) -> Any:
    """All that compiled code relies on of its inputs; None for inputs that it cannot take."""
    key: list[Any] = [torch.is_grad_enabled()]
    first: dict[int, int] = {}
    for position, value in enumerate(pytree.tree_leaves(list(args))):
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
                return None
            key.append(
                (
                    value.dtype,
                    value.device,
                    value.shape,
                    value.stride(),
                    value.requires_grad,
                    value.is_leaf,
                    torch._C._dispatch_keys(value).raw_repr(),
                    first.setdefault(id(value), position),
                )
            )
        elif isinstance(value, (bool, int, float, str, torch.dtype, torch.device)) or value is None:
            key.append(float if type(value) is float else (type(value), repr(value)))
        else:
            return None
    return (*key, str(pytree.tree_structure(list(args))))


def picks_a_part(node: fx.Node) -> bool:
    """Whether the node takes one of several results of an operator: that may be done at once."""
    if node.op != "call_function" or len(node.args) != 2:
        return False
    if node.target is operator.getitem:
        return type(node.args[1]) is int
    return node.target is getattr and callable(getattr(torch.Tensor, str(node.args[1]), len))


def name_of(node: fx.Node) -> str:
    return str(node.target) if node.op != "call_function" else str(getattr(node.target, "__name__", node.target))


@contextmanager
def state_put_back() -> Iterator[None]:
    """Parts leave the state of torch as it is at their end; the whole leaves it as its caller has it."""
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
