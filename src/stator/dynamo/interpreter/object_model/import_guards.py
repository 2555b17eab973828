"""Imports in captured code: capture runs the import, and guards rely on the module. Names of modules are read in
values/modules.py.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from typing import Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import BuiltinSource, ConstantSource, ItemSource
from stator.dynamo.values.base import CaptureContext, Value, unsupported

_IMPORT = builtins.__import__


def imported(context: CaptureContext, namespace: dict[str, Any], name: Any, names: Any = (), level: int = 0) -> Value:
    """The module of `import name`, or of `from name import names`, in a module with these globals."""
    if builtins.__import__ is not _IMPORT:
        raise unsupported("call-builtin", "an import, while the program has replaced __import__")
    context.guard(BuiltinSource("__import__"), GuardKind.IS, _IMPORT)
    package = namespace.get("__package__") or namespace.get("__name__")
    known = {"__package__": package, "__name__": namespace.get("__name__")}
    module = context.run_real(_IMPORT, (name, known, None, names, level))
    whole = importlib.util.resolve_name("." * level + name, package) if level else name
    for part in {whole, whole if names or level else whole.partition(".")[0]}:
        if part in sys.modules:
            found = ItemSource(ConstantSource("sys.modules", sys.modules), part)
            context.guard(found, GuardKind.IS, sys.modules[part])
    return context.known(module)
