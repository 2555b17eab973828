"""Results of shape rules on symbolic sizes are remembered for all that a rule may look at."""

from __future__ import annotations

from typing import Any

import torch

from stator.graph.fake.symbolic_rules import by_rule
from stator.prims.onednn import onednn_enabled
from stator.shapes.environment import Environment
from stator.shapes.sym_node import to_sym_int


def test_a_result_depends_on_the_setting_of_the_backend() -> None:
    environment = Environment()
    size = to_sym_int(environment, environment.size("size", 6))

    def rule(size: Any) -> tuple[Any, bool]:
        return size, onednn_enabled()

    before = by_rule(rule, (size,), {})
    enabled = torch._C._get_mkldnn_enabled()
    try:
        torch._C._set_mkldnn_enabled(not enabled)
        changed = by_rule(rule, (size,), {})
    finally:
        torch._C._set_mkldnn_enabled(enabled)
    assert changed[1] is not before[1]
    assert by_rule(rule, (size,), {}) is before
