"""Programs on disk, beside their kernels: a first call in a new process finds the program of its graph, made before.

A program's key is a hash of everything that compiling the graph depends on: the graph, what is known about its sizes,
options, torch's settings, the devices, the versions of torch and Triton, and stator's own source. What depends on more,
such as functions of the program, is not kept. Never here: compiling, or running.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import marshal
import os
import pickle
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from stator.base import IMPORTED_AT, counters, dumps, logs
from stator.base.config import Options
from stator.graph.ir.identity import MOST_BYTES, NoIdentity, contents_of, environment_identity, graph_identity, is_plain
from stator.graph.ir.size_bindings import environment_of
from stator.graph.subgraphs.subgraph_ops import subgraph_of
from stator.prims import extend
from stator.prims.layout import extent
from stator.prims.record import TensorMeta
from stator.runtime import choices
from stator.runtime.build import current_cache
from stator.runtime.cuda.graph_inputs import InputDescription
from stator.runtime.cuda.machine_code import triton_version
from stator.runtime.toolchain import digest

from .program.peak import Peak
from .program.steps import HostSource, KernelSource

Size = tuple[int, ...]

_FORMAT = "programs-6"  # change it with the stored format
# Options that no program depends on
_FRONT_END = ("guard_filter_fn", "recompile_limit", "free_parameters", "threads", "verify")

is_on = True  # for tests, which replace parts of the compiler


@dataclass(frozen=True, slots=True)
class Recording:
    """What recording a program as a CUDA graph has to know; refused: why it cannot be recorded. need: the bytes that
    its large tensors take at its peak, 0 if sizes change; need_beyond_saved: those that do not fit into saved values
    which it has read."""

    device: str
    refused: str | None
    inputs: InputDescription
    need: int
    need_beyond_saved: int


@dataclass(frozen=True, slots=True)
class PrintedProgram:
    """All of a program that is needed to load it. code: of the source. kernels: by device. peak: the memory that a call
    needs, if asked."""

    source: HostSource
    code: CodeType
    kernels: dict[str, list[KernelSource]]
    peak: Peak | None = None
    recording: Recording | None = None


class ProgramEntry:
    """The place of one graph's program in the cache, where it may have one."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> None:
        self.key: str | None = None
        self._environment = environment_of(gm.graph)
        self._parts = [part for node in gm.graph.nodes if (part := subgraph_of(node)) is not None]
        if not is_on or not options.program_cache or options.verify or extend.is_used or _is_watched():
            return
        try:
            self._known, self._questions = self._facts(), len(choices.provisional)
            self.key = digest("\0".join((_FORMAT, _process(), _settings(), *_given(gm, inputs, options))))
        except NoIdentity as reason:
            logs.log("graph", "the program of this graph is not kept on disk: %s", reason)

    def _facts(self) -> str:
        """What is known about sizes, which printing may change. Raises NoIdentity."""
        return "" if self._environment is None else environment_identity(self._environment)

    def find(self) -> PrintedProgram | None:
        """The program, if there is an intact one, whose choices by rules are those that this process makes."""
        data = None if self.key is None else current_cache().find_data(self.key)
        program, questions = (None, ()) if data is None else _from_bytes(data)
        if not all(function(*arguments) == answer for function, arguments, answer in questions):
            program = None
        counters.count("programs.found", program is not None)
        if program is not None:
            objects = program.source.objects  # each a position until now
            objects.update((name, self._parts[position]) for name, position in objects.items())
        return program

    def keep(self, program: PrintedProgram) -> None:
        """Store a program, unless it relies on answers of this process alone: facts about sizes, which the program's
        guards check; or choices by rules that only this program can make again by timing."""
        if self.key is None:
            return
        questions = dict.fromkeys(choices.provisional[self._questions :])
        is_known = None not in questions and self._known == self._facts()
        data = _to_bytes(program, self._parts, tuple(questions)) if is_known else None
        if data is None:
            logs.log("graph", "the program of this graph is not kept on disk: it relies on what only this process has")
            return
        cache = current_cache()
        try:
            cache.store_data(self.key, data)
            cache.trim_at_times()
        except OSError as problem:
            logs.warn_once("cache:programs", f"stator cannot keep compiled programs in {cache.folder}: {problem}")


def _is_watched() -> bool:
    """Whether the user wants to see the stages, which a program on disk skips."""
    return dumps.active() or logs.enabled("schedule") or logs.enabled("autotune")


# ---- the key


def _given(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> list[str]:
    chosen = {name: value for name, value in dataclasses.asdict(options).items() if name not in _FRONT_END}
    metas = tree_leaves([node.meta.get("val") for node in gm.graph.nodes])
    devices = sorted({str(meta.device) for meta in metas if isinstance(meta, TensorMeta)})
    parts = [str(chosen), *map(_device, devices), str([isinstance(value, torch.nn.Parameter) for value in inputs])]
    if options.records:  # a refusal to record names places
        parts.append(str([str(node.meta.get("place")) for node in gm.graph.nodes]))
    return [*parts, graph_identity(gm)]


def _device(name: str) -> str:
    device = torch.device(name)
    if device.type != "cuda":
        return name
    found = torch.cuda.get_device_properties(device)
    return f"{name} {found.name} {found.major}.{found.minor} {found.multi_processor_count} {triton_version()}"


def _settings() -> str:
    """torch's settings that tracing decompositions, choosing libraries and printing kernels may read."""
    backends = torch.backends
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    return str(
        (
            *(torch.get_num_threads(), torch.get_default_dtype(), str(torch.get_default_device())),
            *(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            *(torch.get_float32_matmul_precision(), torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()),
            *(torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()),
            *(torch._C._get_cudnn_benchmark(), torch._C._get_cudnn_deterministic()),
            *([precision(one, op) for one in ("cuda", "mkldnn") for op in ("matmul", "conv")] if precision else ()),
            *(backends.cuda.flash_sdp_enabled(), backends.cuda.mem_efficient_sdp_enabled()),
            *(backends.cuda.math_sdp_enabled(), backends.cuda.cudnn_sdp_enabled()),
            *[(torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in ("cpu", "cuda")],
            *(torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        )
    )


@functools.cache
def _process() -> str:
    """What stays in a process: stator's source, torch, the processor. Raises NoIdentity if a source file changed after
    the import of stator, so that other code may run than the files show."""
    text = hashlib.sha256()
    folder = Path(__file__).parent.parent
    hashed = 0
    for at, folders, files in os.walk(folder):
        folders[:] = sorted({*folders} - {"dynamo", "tools", "__pycache__"})  # these make graphs, or look at them
        for name in sorted(files):
            if name.endswith(".py"):
                with open(os.path.join(at, name), "rb") as file:
                    if os.fstat(file.fileno()).st_ctime >= IMPORTED_AT:
                        raise NoIdentity(f"{name} has changed since stator was imported")
                    text.update(f"{os.path.relpath(at, folder)}/{name}\0".encode() + file.read())
                hashed += 1
    if not hashed:
        raise NoIdentity("stator was installed without its source")
    versions = torch.__version__, torch.version.git_version, torch.version.cuda, sys.version
    return "\0".join((text.hexdigest(), *map(str, versions), *choices.processor()))


# ---- the stored form


def _to_bytes(program: PrintedProgram, parts: Sequence[Any], questions: tuple[Any, ...]) -> bytes | None:
    """None for a program with objects or constants that only this process has, or with large constants. The programs of
    subgraphs are found by themselves: the graph of this program has them at the positions that are stored."""
    source = program.source
    constants = source.constants.values()
    known = {id(part): position for position, part in enumerate(parts)}
    if not all(map(is_plain, constants)) or sum(_elements(one) * one.itemsize for one in constants) > MOST_BYTES:
        return None
    if any(id(value) not in known for value in source.objects.values()):
        return None
    objects = {name: known[id(value)] for name, value in source.objects.items()}
    kernels = {device: [replace(one, sizes=()) for one in found] for device, found in program.kernels.items()}
    contents: list[pickle.PickleBuffer] = []  # they are not compressed
    text = io.BytesIO()
    _Pickler(text, protocol=5, buffer_callback=contents.append).dump(
        (replace(program, source=replace(source, objects=objects), kernels=kernels), questions)
    )
    return pickle.dumps((zlib.compress(text.getbuffer(), 1), contents), protocol=5)


def _from_bytes(data: bytes) -> Any:
    text, contents = pickle.loads(data)
    return pickle.loads(zlib.decompress(text), buffers=contents)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return marshal.loads, (marshal.dumps(value),)
        if isinstance(value, torch.Tensor):
            with choices.plain_calls():
                contents = contents_of(value.as_strided((_elements(value),), (1,), 0))
            layout = tuple(value.shape), value.stride(), value.storage_offset()
            return _tensor, (pickle.PickleBuffer(contents), value.dtype, value.device, *layout)
        return NotImplemented


def _elements(value: torch.Tensor) -> int:
    """Of the part of a storage from its start to the last element of a tensor."""
    return value.storage_offset() + extent(value.shape, value.stride()) if value.numel() else 0


def _tensor(
    contents: bytes, dtype: torch.dtype, device: torch.device, shape: Size, stride: Size, offset: int
) -> torch.Tensor:
    with choices.plain_calls():
        data = bytearray(contents)
        flat = torch.frombuffer(data, dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)
        return flat.to(device, copy=True).as_strided(shape, stride, offset)
