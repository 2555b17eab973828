"""`stator.compile`, `disable`, `reset`, `is_compiling`: forms of calls, and messages for wrong use."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from tests.counting_backend import CountingBackend

import stator
from stator.base import logs

SOURCE = Path(stator.__file__).parent.parent


def scale(x: torch.Tensor, by: float = 2.0, *, add: float = 0.0) -> torch.Tensor:
    """Scales."""
    return x * by + add


def test_function() -> None:
    backend = CountingBackend()
    compiled = stator.compile(scale, backend=backend)
    x = torch.randn(3)
    assert torch.equal(compiled(x), scale(x))
    assert torch.equal(compiled(x, 3.0, add=1.0), scale(x, 3.0, add=1.0))
    assert torch.equal(compiled(x=x, by=3.0, add=1.0), scale(x, 3.0, add=1.0))
    assert len(backend.graphs) == 2  # one for each set of constants


def test_decorator_without_and_with_arguments() -> None:
    backend = CountingBackend()

    @stator.compile(backend=backend)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    plain = stator.compile(lambda x: x + 1, backend="eager")
    assert double(torch.ones(2)).tolist() == [2, 2] and len(backend.graphs) == 1
    assert plain(torch.ones(2)).tolist() == [2, 2]


def test_compiled_function_keeps_its_looks() -> None:
    compiled = stator.compile(scale, backend="eager")
    assert compiled.__name__ == "scale" and compiled.__doc__ == "Scales." and compiled.__wrapped__ is scale
    assert inspect.signature(compiled) == inspect.signature(scale)
    assert inspect.isfunction(compiled) and inspect.getfile(compiled) == __file__
    assert inspect.getsource(compiled) == inspect.getsource(scale)


def test_captured_code_takes_a_compiled_function_for_a_function() -> None:
    compiled = stator.compile(scale, backend="eager")

    def kinds(x: torch.Tensor) -> torch.Tensor:
        is_function = isinstance(compiled, FunctionType), inspect.isfunction(compiled)
        return x + (10 if is_function == (True, True) else 0) + (type(compiled) is FunctionType)

    assert stator.compile(kinds, backend="eager")(torch.zeros(1)).item() == kinds(torch.zeros(1)).item() == 10


def test_wrong_arguments_raise_what_the_function_raises() -> None:
    compiled = stator.compile(scale, backend="eager")
    for args, kwargs in [((), {}), ((1, 2, 3), {}), ((1,), {"nothing": 1})]:
        with pytest.raises(TypeError) as expected:
            scale(*args, **kwargs)
        with pytest.raises(TypeError) as found:
            compiled(*args, **kwargs)
        assert str(found.value) == str(expected.value)


def test_methods() -> None:
    class Scaler:
        def __init__(self, by: float) -> None:
            self.by = by

        @stator.compile(backend="eager")
        def decorated(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

        def plain(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by + 1

        @staticmethod
        @stator.compile(backend="eager")
        def static(x: torch.Tensor) -> torch.Tensor:
            return x - 1

        @classmethod
        @stator.compile(backend="eager")
        def of_class(cls, x: torch.Tensor) -> tuple[str, torch.Tensor]:
            return cls.__name__, x + 2

    x = torch.ones(2)
    two, three = Scaler(2.0), Scaler(3.0)
    assert two.decorated(x).tolist() == [2, 2] and three.decorated(x).tolist() == [3, 3]
    bound = stator.compile(three.plain, backend="eager")
    assert bound(x).tolist() == [4, 4] and bound.__self__ is three
    three.by = 5.0
    assert bound(x).tolist() == [6, 6]
    assert Scaler.static(x).tolist() == [0, 0] and Scaler.of_class(x)[0] == "Scaler"


def test_callable_objects_classes_and_partials() -> None:
    class Adder:
        def __init__(self, n: int) -> None:
            self.n = n

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.n

    x = torch.zeros(2)
    backend = CountingBackend()
    assert stator.compile(Adder(3), backend=backend)(x).tolist() == [3, 3]
    assert stator.compile(functools.partial(Adder(3).__call__), backend="eager")(x).tolist() == [3, 3]
    compiled_class = stator.compile(Adder, backend=backend)
    assert compiled_class is Adder and Adder(4)(x).tolist() == [4, 4]
    assert len(backend.graphs) == 2


def test_compiling_twice_uses_the_last_settings() -> None:
    first, second = CountingBackend(), CountingBackend()
    compiled = stator.compile(stator.compile(scale, backend=first), backend=second)
    compiled(torch.ones(2))
    assert (len(first.graphs), len(second.graphs)) == (0, 1)


def test_disable_argument_gives_the_thing_back() -> None:
    assert stator.compile(scale, disable=True) is scale
    assert stator.compile(disable=True)(scale) is scale


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "inductr"}, "did you mean 'inductor'"),
        ({"backend": 3}, "backend must be a name or a callable"),
        ({"mode": "fastest"}, "known modes: default, reduce-overhead"),
        ({"options": {"fusoin": True}}, "did you mean 'fusion'"),
        ({"options": {"threads": "many"}}, "must be int"),
        ({"options": {3: True}}, "unknown option 3"),
        ({"options": [("threads", 1)]}, "options must be a dictionary"),
        ({"options": 3, "backend": lambda gm, inputs: gm}, "options must be a dictionary"),
        ({"mode": 3, "backend": lambda gm, inputs: gm}, "mode must be a name"),
        ({"dynamic": "yes"}, "dynamic must be True, False or None, not 'yes'"),
        ({"fullgraph": "no"}, "fullgraph must be True or False, not 'no'"),
        ({"disable": None}, "disable must be True or False, not None"),
    ],
)
def test_wrong_choices_are_named_with_what_is_known(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(stator.UsageError, match=message):
        stator.compile(scale, **arguments)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(stator.UsageError, match="takes a function or module, not int"):
        stator.compile(3)  # type: ignore[call-overload]


def test_dynamic_true_compiles_once() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = stator.compile(scale, dynamic=True, backend=backend)
    assert compiled(torch.ones(2)).tolist() == [2, 2] and compiled(torch.ones(3)).tolist() == [2, 2, 2]
    assert len(graphs) == 1


def test_dynamic_true_says_once_that_the_backend_needs_sizes() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        (node,) = graph.graph.find_nodes(op="placeholder")
        if type(node.meta["example_value"].shape[0]) is not int:
            raise stator.Unsupported("dynamic-shape", "this backend needs every size")
        return graph.forward

    logs.forget_warnings()
    compiled = stator.compile(scale, dynamic=True, backend=backend)
    with pytest.warns(RuntimeWarning, match="this backend needs every size"):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(torch.ones(3)).tolist() == [2, 2, 2]


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    time.sleep(0)
    return y * 2


def test_fullgraph_raises_with_place_and_reason() -> None:
    line = breaking.__code__.co_firstlineno + 2
    with pytest.raises(stator.Unsupported, match=f'test_api.py", line {line}, in breaking'):
        stator.compile(breaking, fullgraph=True, backend="eager")(torch.ones(2))


def test_a_failing_backend_never_breaks_the_program() -> None:
    def broken(gm: Any, example_inputs: Any) -> Any:
        raise ZeroDivisionError("inside the backend")

    logs.forget_warnings()
    compiled = stator.compile(scale, backend=broken)
    with pytest.warns(RuntimeWarning, match="inside the backend"):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(stator.CompileError, match=r"'broken'.*ZeroDivisionError: inside the backend"):
        stator.compile(scale, backend=broken, fullgraph=True)(torch.ones(2))


def test_a_backend_must_return_a_callable() -> None:
    with pytest.raises(stator.CompileError, match="returned int, which is not callable"):
        stator.compile(scale, backend=lambda gm, inputs: 3, fullgraph=True)(torch.ones(2))


def test_reset_compiles_again() -> None:
    backend = CountingBackend()
    compiled = stator.compile(scale, backend=backend)
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    assert len(backend.graphs) == 1
    stator.reset()
    assert compiled(torch.ones(2)).tolist() == [2, 2] and len(backend.graphs) == 2


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * (5 if stator.is_compiling() else 3)


def test_nothing_compiled_runs_in_a_disabled_block() -> None:
    compiled = stator.compile(helper, backend="eager")
    x = torch.ones(2)
    assert compiled(x).tolist() == [5, 5]
    with stator.disable():
        assert compiled(x).tolist() == [3, 3]
        with stator.disable():
            pass
        assert compiled(x).tolist() == [3, 3]
    assert compiled(x).tolist() == [5, 5]
    assert stator.disable(lambda: compiled(x))().tolist() == [3, 3]


ALONE: dict[str, str] = {
    "without the C extension": """
import sys, warnings
class Blocker:
    def find_spec(self, name, path, target=None):
        if name == "stator.dynamo._native":
            raise ImportError("no such extension")
sys.meta_path.insert(0, Blocker())
import torch, stator
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    f, g = stator.compile(lambda x: x + 1), stator.compile(torch.nn.Linear(2, 2))
    assert f(torch.ones(2)).tolist() == [2, 2] and g(torch.ones(1, 2)).shape == (1, 2)
    with stator.disable():
        f(torch.ones(2))
    assert stator.disable(lambda: 3)() == 3
    stator.reset()
assert len(caught) == 1 and "C extension" in str(caught[0].message), [str(w.message) for w in caught]
""",
    "the import loads nothing of the compiler before a public name is used": """
import sys, stator
assert [name for name in sys.modules if name.startswith(("stator.", "torch", "sympy"))] == []
assert "compile" in dir(stator) and not hasattr(stator, "compiled")
compiled = stator.compile(lambda x: x + 1 if stator.is_compiling() else x, fullgraph=True, backend="eager")
assert {"stator.prims", "stator.api", "torch"} <= set(sys.modules)
import torch
assert compiled(torch.zeros(1)).item() == 1
""",
    "the compiler loads nothing heavy": """
import sys, torch
before = set(sys.modules)
import stator
stator.compile
heavy = {"sympy", "rich", "triton", "torch._dynamo", "torch._inductor", "torch.onnx"} & (set(sys.modules) - before)
assert not heavy, heavy
""",
    "without a C++ compiler": """
import os, sys, warnings
os.environ.pop("CXX", None)
os.environ["PATH"] = ""
import torch, stator
with warnings.catch_warnings(record=True) as caught, torch.no_grad():
    warnings.simplefilter("always")
    for k in range(2):
        assert stator.compile(lambda x: x.sin() + k)(torch.zeros(2)).tolist() == [k, k]
    assert stator.compile(torch.nn.Sequential(torch.nn.Linear(2, 2)))(torch.ones(1, 2)).shape == (1, 2)
assert len(caught) == 1 and "C++ compiler" in str(caught[0].message), [str(w.message) for w in caught]
""",
}


@pytest.mark.parametrize("name", ALONE)
def test_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    """Programs run, and one warning names the missing part."""
    environment = {"PYTHONPATH": str(SOURCE), "STATOR_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", ALONE[name]]
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_stage_can_be_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    stator.compile(breaking, backend="eager")(torch.ones(2))
    stator.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    folders = sorted(folder.name.split("_", 1)[1] for folder in tmp_path.iterdir())
    assert folders == ["Linear", "breaking", "breaking"]
    for folder in tmp_path.iterdir():
        texts = {file.name: file.read_text() for file in folder.iterdir()}
        assert set(texts) == {"00_bytecode.txt", "05_captured.txt", "10_graph.py", "60_bytecode.txt"}
        compile(texts["10_graph.py"], "10_graph.py", "exec")
        assert "guards:" in texts["05_captured.txt"] and "RETURN_VALUE" in texts["60_bytecode.txt"]
