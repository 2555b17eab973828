"""Types of the C extension; what the parts do is documented in csrc/."""

from typing import Any

def __getattr__(name: str) -> Any: ...
