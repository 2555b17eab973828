"""The frame hook around torch modules: user frames below torch's own are found, torch's are left alone."""

import gc
import os
import weakref

import torch
from driving import driven

import stator
from stator.base.config import Options
from stator.dynamo.backend import Settings
from stator.dynamo.cache.entry import TORCH_FOLDER, CompiledFrame, make_hook_callback
from stator.dynamo.frame_compiler import FrameCompiler
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import LocalSource
from stator.dynamo.guards.tensor_guards import tensor_guard
from stator.dynamo.host import hook
from stator.dynamo.host.hook import call_with_hook


class Doubling(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3), Doubling(), torch.nn.ReLU(), Doubling())

    def forward(self, x):
        return self.layers(x)


def tripling(self, x):
    return x * 3


def test_user_forwards_below_torch_are_compiled():
    seen = []

    def compile_frame(function, bound):
        seen.append(function.__qualname__)
        if function.__name__ == "forward" and function.__qualname__.startswith("Doubling"):
            guards = [Guard(LocalSource("x"), GuardKind.TENSOR, tensor_guard(bound["x"]))]
            return CompiledFrame(guards, tripling.__code__.replace(co_varnames=("self", "x")))
        return CompiledFrame([], None)

    torch.manual_seed(0)
    model, x = Network(), torch.randn(2, 3)
    callback = make_hook_callback(driven(compile_frame), Options())
    expected = model.layers[0](x)
    expected = torch.relu(expected * 3) * 3
    assert torch.equal(call_with_hook(callback, model, x), expected)
    assert torch.equal(call_with_hook(callback, model, x), expected)
    assert sorted(seen) == ["Doubling.forward", "Network.forward", "Sequential.forward"]
    assert torch.equal(model(x), torch.relu(model.layers[0](x) * 2) * 2), "and off again"


class Silent:
    def answer(self):
        return 42

    def same(self, x):
        return x

    def nothing(self, *args):
        """A method that subclasses override."""


def test_functions_that_only_return_a_constant_or_an_argument_are_not_compiled():
    seen = []

    def compile_frame(function, bound):
        seen.append(function.__name__)
        return CompiledFrame([], None)

    def calls(silent, x):
        silent.nothing(x)
        return silent.same(x), silent.answer()

    callback = make_hook_callback(driven(compile_frame), Options())
    assert call_with_hook(callback, calls, Silent(), 1) == (1, 42)
    assert seen == ["calls"]


def test_backward_hooks_and_autograd_run_under_the_hook():
    names = []

    def compile_frame(function, bound):
        names.append(function.__name__)
        return CompiledFrame([], None)

    def step(x):
        y = (x * 2).sum()
        x.register_hook(on_grad)
        y.backward()
        return x.grad

    def on_grad(grad):
        return grad + 1

    x = torch.ones(3, requires_grad=True)
    callback = make_hook_callback(driven(compile_frame), Options())
    assert torch.equal(call_with_hook(callback, step, x), torch.full((3,), 3.0))
    assert names[0] == "step" and not hook.active()


def test_stator_and_torch_files_are_left_alone():
    assert hook._native.code_mode(torch.nn.Module.__call__.__code__) == "leave"
    assert hook._native.code_mode(torch.nn.Linear.forward.__code__) == "leave"
    assert hook._native.code_mode(hook.skip_files.__code__) == "leave"
    assert hook._native.code_mode(Doubling.forward.__code__) == "ask"


def test_the_compiler_of_torch_runs_unhooked_with_all_it_calls():
    code = compile("def f(): pass", os.path.join(TORCH_FOLDER, "_dynamo", "some_file.py"), "exec").co_consts[0]
    assert hook._native.code_mode(code) == "unhooked"


def test_without_the_extension_calls_are_plain():
    assert hook._call_plainly(None, tripling, None, x=2) == 6


class Reading:
    def __getattribute__(self, name):
        return super().__getattribute__(name)


class Renaming(Reading):
    renamed = {}

    def __getattribute__(self, name):
        if name != "renamed" and name in super().__getattribute__("renamed"):
            name = "kept"
        return super().__getattribute__(name)


def test_a_break_at_a_method_of_super_keeps_what_super_found():
    thing = Renaming()
    thing.there = 1
    converter = FrameCompiler(Settings(lambda graph, inputs: graph))

    def read(name):
        return getattr(thing, name, "missing")

    def read_all(names):
        return list(map(read, names))

    names = ["there", "not there", "there", "nor this"]
    assert converter.dispatch(read_all)(names) == [1, "missing", 1, "missing"]


class Breaking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = self.inner(x)
        list(map(str, [1]))  # a graph break
        return torch.relu(y) * self.scale


def test_a_module_compiled_in_several_parts_is_freed_with_its_parameters():
    def run():
        model = Breaking()
        compiled = stator.compile(model, backend="eager")
        for rows in (2, 3):
            torch.testing.assert_close(compiled(torch.ones(rows, 3)), model(torch.ones(rows, 3)), rtol=0, atol=0)
        return [weakref.ref(thing) for thing in (model, model.inner, model.scale, model.inner.weight)]

    references = run()
    gc.collect()
    assert [reference() for reference in references] == [None] * 4
