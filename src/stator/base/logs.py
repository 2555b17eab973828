"""Named log artifacts, turned on by STATOR_LOG=name,name or `enable()`; and warnings that appear once.

An artifact is one kind of compiler output. All go to the standard logger "stator.<name>".
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings

from .errors import UsageError

ARTIFACTS = {
    "graph_breaks": "why and where a graph ended early",
    "recompiles": "which guard failed, and with which values",
    "guards": "the guard tree of each compiled frame",
    "bytecode": "the original and the rewritten bytecode",
    "graph": "the captured and the lowered FX graphs",
    "schedule": "the fused groups",
    "code": "the generated source",
    "cuda_graphs": "what is recorded as a CUDA graph, and what is not",
    "autotune": "what max-autotune timed, and what it chose",
    "timing": "seconds spent in each stage",
}

_enabled: set[str] = set()
_warned: set[str] = set()


def enable(*names: str) -> None:
    """Turn artifacts on; "all" means every one. Raises UsageError, listing the known names, for an unknown name."""
    for name in names:
        if name != "all" and name not in ARTIFACTS:
            raise UsageError(f"unknown log artifact {name!r}; known: all, {', '.join(sorted(ARTIFACTS))}")
        _enabled.update(ARTIFACTS if name == "all" else (name,))
    logger = logging.getLogger("stator")
    if _enabled and not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def enabled(name: str) -> bool:
    return name in _enabled


def log(name: str, message: str, *args: object) -> None:
    """Log to an artifact if it is on. `message` is a %-format; build expensive text only under `enabled(name)`."""
    if name in _enabled:
        logging.getLogger(f"stator.{name}").info(message, *args)


def warn_once(key: str, message: str) -> None:
    """Issue a RuntimeWarning, at the program's line, the first time `key` is met in this process (or since
    `forget_warnings`)."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, RuntimeWarning, stacklevel=_level_of_program())


def _level_of_program() -> int:
    """How far above the caller the innermost frame is that belongs neither to stator nor to torch's call of a
    module."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _NOT_OF_PROGRAM.match(str(frame.f_globals.get("__name__"))):
        level, frame = level + 1, frame.f_back
    return level


_NOT_OF_PROGRAM = re.compile(r"stator(\.|$)|torch\.nn\.modules\.module$")


def forget_warnings() -> None:
    _warned.clear()


def _enable_from_environment() -> None:
    names = [name.strip() for name in os.environ.get("STATOR_LOG", "").split(",") if name.strip()]
    try:
        enable(*names)
    except UsageError as error:
        warnings.warn(f"STATOR_LOG: {error}", RuntimeWarning, stacklevel=2)


_enable_from_environment()
