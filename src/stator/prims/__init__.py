"""The operator set. Importing this package fills `stator.prims.record.records`."""

from . import decompositions, levels, shape_rules

__all__ = ["decompositions", "levels", "shape_rules"]
