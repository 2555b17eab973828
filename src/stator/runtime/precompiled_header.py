"""The header of all kernels, parsed in advance: parsing it is two fifths of the time of compiling a small kernel.

The compiler takes a precompiled header only if its flags and version are those that made it, else it parses. Nothing
here knows kernels.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import time
from pathlib import Path

from stator.base.signals import raised_by_signal_handler

from .kernel_cache import KernelCache
from .toolchain import CSRC, Toolchain, compiler_environment, digest

# To parse in advance costs as much as it saves in four units, so that a process with few kernels does not do it.
UNITS_BEFORE = 4
_UNUSED_SECONDS = 30 * 24 * 3600
_TIMEOUT_SECONDS = 60


@functools.cache
def headers_digest() -> str:
    texts = [path.name.encode() + b"\0" + path.read_bytes() for path in sorted(CSRC.glob("vec*.h"))]
    return digest(b"\0".join(texts))


class PrecompiledHeader:
    """The precompiled header of one cache, for one toolchain at a time.

    The caller holds the lock of builds. Other processes may replace or remove the file at any time.
    """

    def __init__(self, cache: KernelCache) -> None:
        self._folder = cache.notes / "headers"
        self._units = 0
        self._given_up = False

    def folder(self, chain: Toolchain, units: int) -> Path | None:
        """Return the folder that a build of so many units includes from, or None if the header is to be parsed."""
        if self._given_up or "clang" in chain.version:  # Clang wants it named on the command line
            return None
        folder = self._folder / digest(f"{chain.key}\0{headers_digest()}")
        if (folder / "vec.h.gch").exists():
            return folder
        self._units += units
        if self._units <= UNITS_BEFORE or not self._make(chain, folder):
            return None
        return folder

    def give_up(self, folder: Path) -> None:
        """Parse from now on in this process, and remove a header that may be damaged."""
        self._given_up = True
        shutil.rmtree(folder, ignore_errors=True)

    def _make(self, chain: Toolchain, folder: Path) -> bool:
        new = folder / f".{os.getpid()}.gch"
        command = [*chain.command, *chain.flags, "-x", "c++-header", str(CSRC / "vec.h"), "-o", str(new)]
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            subprocess.run(
                command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS, env=compiler_environment(folder)
            )
            os.replace(new, folder / "vec.h.gch")
        except (OSError, subprocess.SubprocessError) as error:  # kernels are compiled all the same
            self.give_up(folder)
            if raised_by_signal_handler(error):
                raise
            return False
        self._remove_unused(folder)
        return True

    def _remove_unused(self, kept: Path) -> None:
        """Remove headers of other compilers and versions that were made long ago."""
        for folder in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if folder != kept and time.time() - folder.stat().st_mtime > _UNUSED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
