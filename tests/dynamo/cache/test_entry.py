"""make_entry over real tensors and modules; what happens without the C extension."""

import subprocess
import sys
import warnings

import torch
from driving import driven

from stator.base import logs
from stator.base.config import Options
from stator.dynamo.cache import entry as entry_module
from stator.dynamo.cache.entry import CompiledFrame, cache_of, make_entry
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import FunctionSource, LocalSource
from stator.dynamo.guards.tensor_guards import read_global_state, tensor_guard
from stator.dynamo.host import native_status


def scale(x, by=2.0):
    """Multiplies."""
    return x * by


class Compiler:
    def __init__(self):
        self.shapes = []

    def __call__(self, function, bound):
        self.shapes.append(tuple(bound["x"].shape))
        guards = [
            Guard(LocalSource("x"), GuardKind.TENSOR, tensor_guard(bound["x"])),
            Guard(LocalSource("by"), GuardKind.EQUALS, bound["by"]),
            Guard(FunctionSource(), GuardKind.GLOBAL_STATE, read_global_state()),
        ]
        return CompiledFrame(guards, function.__code__.replace(co_consts=(*function.__code__.co_consts, "compiled")))


def test_one_version_for_each_shape():
    compiler = Compiler()
    compiled = make_entry(scale, driven(compiler), Options())
    generator = torch.Generator().manual_seed(0)
    for shape in [(3,), (4,), (3,), (4,), (2, 2)]:
        x = torch.randn(shape, generator=generator)
        assert torch.equal(compiled(x), x * 2.0)
    assert compiler.shapes == [(3,), (4,), (2, 2)]
    assert sum(version.hits for version in cache_of(compiled).versions) == 2


def test_grad_mode_and_defaults_are_part_of_the_guards():
    compiler = Compiler()
    compiled = make_entry(scale, driven(compiler), Options())
    x = torch.ones(3)
    compiled(x)
    with torch.no_grad():
        compiled(x)
    compiled(x, by=3.0)
    compiled(x)
    assert len(compiler.shapes) == 3


def test_without_the_extension_there_is_one_message_and_the_program_runs(monkeypatch):
    monkeypatch.setattr(native_status, "native", None)
    monkeypatch.setattr(native_status, "problem", "No module named 'stator.dynamo._native'")
    monkeypatch.setattr(entry_module, "_native", None)
    logs.forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = [make_entry(scale, driven(Compiler()), Options()) for _ in range(3)]
    assert [torch.equal(function(torch.ones(2)), torch.full((2,), 2.0)) for function in compiled] == [True] * 3
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "C extension" in text and "eagerly" in text and "gcc" in text


_FIRST_IN_A_CHECKPOINT = """
import torch, stator

saved = []
compiled = stator.compile(lambda t: t.sin() * 2, backend="eager")
with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
    compiled(torch.ones(4, requires_grad=True))
print(len(saved))
"""


def test_nothing_of_the_first_compilation_of_a_process_is_shown_to_hooks_for_saved_tensors() -> None:
    """The readers of tensors try themselves out then; a checkpoint would count what they save."""
    ended = subprocess.run(
        [sys.executable, "-c", _FIRST_IN_A_CHECKPOINT], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.split() == ["1"]
