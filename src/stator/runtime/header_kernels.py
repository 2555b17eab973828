"""Functions of the headers in `csrc/` that are kernels as they stand, compiled to be called from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import build, launch


@dataclass(frozen=True, slots=True)
class _Text:
    header: str
    function: str

    @property
    def symbol(self) -> str:
        return f"{self.function}_kernel"

    @property
    def source(self) -> str:
        call = f"{self.function}(pointers)"
        return f'#include "{self.header}"\nextern "C" void {self.symbol}(void *const *pointers) {{ {call}; }}\n'


def header_kernels(header: str, pointers: Mapping[str, int]) -> dict[str, Callable[..., None]]:
    """The functions of a header that take so many tensors each, by name; all of them are compiled together.

    Raises MissingToolchain without a working compiler, CompileError when one does not compile.
    """
    texts = {function: _Text(header, function) for function in pointers}
    addresses = build.build_kernels(list(texts.values()))
    return {
        function: launch.make_kernel(addresses[text.symbol], pointers[function], text.symbol)
        for function, text in texts.items()
    }
