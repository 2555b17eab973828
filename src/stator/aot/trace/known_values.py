"""Values that an earlier run of a program computed, in place of computing them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from stator.graph.ir.aten_graph import copy_with_strides
from stator.graph.ir.cleanup import call_key, is_pure, same_layout
from stator.graph.ir.memory import memory_root
from stator.graph.ir.size_bindings import evaluated
from stator.prims.record import TensorMeta
from stator.shapes.expr import Symbol


@dataclass(frozen=True, slots=True)
class KnownValues:
    """Values of nodes of a functional graph, for a program that runs this graph again, among other things.

    graph: its first `input_count` placeholders have the values of the program's first inputs. nodes: their values are
    the program's inputs from position `first` on, with any strides. sizes: the values of the graph's symbols.
    """

    graph: fx.Graph
    input_count: int
    nodes: tuple[fx.Node, ...]
    first: int
    sizes: Mapping[Symbol, int]

    def use(self, program: fx.Graph) -> None:
        """Let the graph of the program read these inputs where it computes the values again. Results and the memory of
        results are still computed: a result is no input."""
        inputs = _placeholders(program)
        output = program.output_node()
        results = {memory_root(one) for one in output.all_input_nodes}
        twins = self._twins(program)
        for node, given in zip(self.nodes, inputs[self.first :], strict=False):
            known, twin = given, twins.get(node)
            if twin is not None and twin not in results:
                if known.meta["val"].stride != twin.meta["val"].stride:
                    with program.inserting_after(inputs[-1]):
                        known = copy_with_strides(program, known, twin.meta["val"])
                twin.replace_all_uses_with(known, propagate_meta=False)

    def _twins(self, program: fx.Graph) -> dict[fx.Node, fx.Node]:
        """Nodes of the graph, with the nodes of the program that compute the same from the same inputs."""
        made = {
            call_key(node.target, node.args, node.kwargs): node
            for node in reversed(program.nodes)
            if node.op == "call_function"
        }
        count = self.input_count
        twins = dict(zip(_placeholders(self.graph)[:count], _placeholders(program)[:count], strict=True))
        for node in self.graph.nodes:
            if node.op == "call_function" and is_pure(node) and twins.keys() >= set(node.all_input_nodes):
                args, kwargs = fx.map_arg((node.args, node.kwargs), twins.__getitem__)
                key = call_key(node.target, *evaluated((args, kwargs), self.sizes))
                twin = None if key is None else made.get(key)
                if twin is not None and _is_like(twin, node, self.sizes):
                    twins[node] = twin
        return twins


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _is_like(twin: fx.Node, node: fx.Node, sizes: Mapping[Symbol, int]) -> bool:
    """Whether the values have equal layouts; also for several results, which their readers compare."""
    one, other = twin.meta["val"], node.meta["val"]
    if type(one) is not TensorMeta or type(other) is not TensorMeta:
        return type(one) is type(other)
    return same_layout(one, evaluated(other, sizes))
