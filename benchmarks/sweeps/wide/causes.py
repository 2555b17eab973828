"""Why families of the wide suite run slower than 0.97 of eager's speed, as profiles showed."""

from __future__ import annotations

CAUSES: dict[str, str] = {}
