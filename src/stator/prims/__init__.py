"""The operator set. Importing this package fills `stator.prims.record.records`."""

from . import decompositions, shape_rules

__all__ = ["decompositions", "shape_rules"]
