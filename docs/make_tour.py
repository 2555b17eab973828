"""Writes the tour at the end of docs/architecture.md: one small model through every dumped stage (`make docs`)."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import torch

import stator

HERE = Path(__file__).parent

MODEL = """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))
"""

MARK = "<!-- made by `make docs` from here on -->"

INTRODUCTION = """
## A tour: one small model from Python frame to machine code

`make docs` generates this part from the files that `STATOR_DUMP=folder` writes, so it shows the compiler of today.
The model, called under `torch.no_grad()` on a float32 tensor of shape [8, 16, 64]:

```python
{model}
```
"""

STAGES = (
    (
        "00_bytecode.txt",
        "The frame, decoded",
        "A C object takes the call of a compiled module. The module has no hooks, so that its call is a call of "
        "`forward`. The C object finds no compiled version and hands `forward` and its arguments to `dynamo`. Its "
        "bytecode is read into a version-independent list of instructions "
        "(`dynamo/bytecode/`).",
    ),
    (
        "05_captured.txt",
        "The result of symbolic execution",
        "`dynamo/capture.py` steps through the instructions with symbolic values, inlining every Python call. The "
        "result is data: the guards that must hold for this capture to be reused, where each graph input is loaded "
        "from, and how the return value is rebuilt. Here are the first guards.",
    ),
    (
        "10_graph.py",
        "The captured graph",
        "Torch calls on tensors as an FX graph, as a backend receives it. Parameters are inputs like any other tensor. "
        "The text is Python that runs again.",
    ),
    (
        "21_forward.py",
        "The functional ATen graph",
        "`aot` traces the graph on fake tensors through stator's shape rules: only ATen operators are left, nothing is "
        "mutated, every value has its shape, dtype and strides.",
    ),
    (
        "30_loops.txt",
        "Buffers and loop bodies",
        "`inductor/lower` turns operators into loops over the scalar vocabulary of `inductor/loops`, define-by-run: "
        "elementwise operators stay unevaluated closures until something needs them in memory. Layer norm became two "
        "reductions and one elementwise loop, the linear layer a library call.",
    ),
    (
        "40_schedule.txt",
        "The schedule",
        "`inductor/schedule` fuses loops that may be fused and profit from it: the three loops of layer norm are one "
        "kernel, in which the mean and the deviation never reach memory.",
    ),
    (
        "50_program.txt",
        "The program",
        "Allocations, launches and library calls in order, with the memory that dead buffers leave reused.",
    ),
    (
        "60_code.cpp",
        "Kernels",
        "C++ over stator's `vec.h`, without any header of torch. Kernels are named by their content: equal ones in "
        "other layers or other models are compiled once.",
    ),
    ("60_code.py", "The host", "The program printed as Python; the names are bound once, then `call` runs."),
    (
        "60_bytecode.txt",
        "The rewritten frame",
        "This code runs instead of the user's function when the guards hold. It calls the compiled graph and rebuilds "
        "the result. It has the signature of the original.",
    ),
)


def dump_of_the_model(folder: str) -> Path:
    """Compile the model with dumps on; returns the folder of its one compilation."""
    os.environ["STATOR_DUMP"] = folder
    source = Path(folder) / "model.py"
    source.write_text("import torch\n\n" + MODEL)
    sys.path.insert(0, folder)
    block = __import__("model").Block
    torch.manual_seed(0)
    with torch.no_grad():
        stator.compile(block().eval(), fullgraph=True)(torch.randn(8, 16, 64))
    (compilation,) = (path for path in Path(folder).iterdir() if path.is_dir() and path.name[0].isdigit())
    return compilation


def neutral(text: str, folder: str) -> str:
    """Without this machine's paths."""
    text = text.replace(folder + "/", "")
    text = re.sub(r"/\S+/site-packages/", "", text)
    return re.sub(r"(<module '\S+' from )'[^>\n]*", r"\1...", text)


def shortened(text: str, lines: int = 48) -> str:
    kept = text.rstrip().splitlines()
    return "\n".join(
        kept if len(kept) <= lines else [*kept[: lines - 2], "", f"... and {len(kept) - lines + 2} more lines"]
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compilation = dump_of_the_model(folder)
        parts = [INTRODUCTION.format(model=MODEL.strip())]
        for number, (name, title, text) in enumerate(STAGES, 1):
            body = shortened(neutral((compilation / name).read_text(), folder))
            language = {".py": "python", ".cpp": "cpp"}.get(Path(name).suffix, "text")
            parts.append(f"### {number}. {title}: `{name}`\n\n{text}\n\n```{language}\n{body}\n```\n")
    page = HERE / "architecture.md"
    written_by_hand = page.read_text().partition(MARK)[0]
    page.write_text(written_by_hand + MARK + "\n" + "\n".join(parts))


if __name__ == "__main__":
    main()
