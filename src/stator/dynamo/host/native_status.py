"""The availability of the C extension. Without it stator warns once, and programs run eagerly."""

from __future__ import annotations

import sysconfig
from typing import Any

from stator.base import logs

native: Any  # the extension module, or None
problem: str | None
try:
    from stator.dynamo import _native

    native, problem = _native, None
except ImportError as error:
    native, problem = None, str(error)


def available() -> bool:
    return native is not None


def warn_if_missing() -> None:
    """Warn once per process that the extension is missing."""
    if native is None:
        logs.warn_once(
            "native.missing",
            f"stator's C extension is not usable ({problem}), so everything runs eagerly. Install a C compiler (gcc) "
            f"and the headers of Python {sysconfig.get_python_version()}, then install stator again.",
        )
