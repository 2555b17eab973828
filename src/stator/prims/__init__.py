"""The operator set. Importing this package fills `stator.prims.record.records`."""

from . import shape_rules

__all__ = ["shape_rules"]
