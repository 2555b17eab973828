"""The fx.Graph that holds functional ATen operators. Its nodes may have symbolic numbers among their arguments."""

from __future__ import annotations

from typing import Any

from torch import fx


class AtenGraph(fx.Graph):
    """A graph whose nodes get their arguments after they are made: torch.fx searches the arguments of new nodes for
    symbolic numbers, to warn of them, which takes longer than all else."""

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
