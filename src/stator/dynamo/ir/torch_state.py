"""torch's thread-wide modes while a frame is captured.

They are changed for real as the program changes them, put back afterwards, and set in the running program when the
captured code leaves them changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch

from stator.base.signals import raised_by_signal_handler
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import ModuleGlobalSource
from stator.prims.onednn import onednn_depth, restore_onednn_depth

from .reconstruct_ir import CallRecipe, ConstantRecipe, Effect, Evaluate


def in_function_transform() -> bool:
    """Is this thread under torch.func.vmap, grad, jvp or the like?"""
    return torch._C._functorch.peek_interpreter_stack() is not None


def forward_ad_guard() -> Guard:
    """That as many levels of forward-mode AD are entered as now: a tensor does not show that it is a dual one."""
    level = torch.autograd.forward_ad._current_level
    return Guard(ModuleGlobalSource("torch.autograd.forward_ad", "_current_level"), GuardKind.EQUALS, level)


def in_forward_ad() -> bool:
    """May tensors carry tangents of forward-mode AD?"""
    return torch.autograd.forward_ad._current_level >= 0


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """What autograd saves in the block is not shown to hooks that the program has installed (checkpointing does so)."""
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        yield


def _itself(saved: torch.Tensor) -> torch.Tensor:
    return saved


@contextmanager
def modes_restored_on_interrupt() -> Iterator[None]:
    """Where the block is interrupted, wherever that is, torch's modes in this thread are as they were before. (Where it
    ends by itself or raises, whoever changed them has put them back.)"""
    before = _Modes.now()
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) and not raised_by_signal_handler(error):
            raise
        _clear_frames(error.__traceback__)
        before.restore()
        raise


def _clear_frames(traceback: TracebackType | None) -> None:
    """Guards of C++ that dead frames hold put modes back when they die: let it be now, and not behind `restore`. Dead
    are those of the traceback, and those from which a handler of signals was called."""
    while traceback is not None:
        frame: FrameType | None = traceback.tb_frame
        try:
            while frame is not None:
                frame.clear()
                frame = frame.f_back
        except RuntimeError:  # it is running
            pass
        traceback = traceback.tb_next


@dataclass(frozen=True, slots=True)
class _Modes:
    """All that tracing changes for a while, in this thread."""

    dispatch_modes: int
    function_modes: int
    included: tuple[bool, ...]
    excluded: tuple[bool, ...]
    onednn_depth: int
    state: TorchState

    @classmethod
    def now(cls) -> _Modes:
        return cls(
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
            tuple(map(torch._C._dispatch_tls_is_dispatch_key_included, _KEYS)),
            tuple(map(torch._C._dispatch_tls_is_dispatch_key_excluded, _KEYS)),
            onednn_depth(),
            TorchState.now(),
        )

    def restore(self) -> None:
        while torch._C._len_torch_function_stack() > self.function_modes:
            torch._C._pop_torch_function_stack()
        while torch._C._len_torch_dispatch_stack() > self.dispatch_modes:
            torch._C._pop_torch_dispatch_stack(None)
        now = _Modes.now()
        for at, key in enumerate(_KEYS):
            if now.included[at] is not self.included[at]:
                torch._C._dispatch_tls_set_dispatch_key_included(key, self.included[at])
            if now.excluded[at] is not self.excluded[at]:
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, self.excluded[at])
        if now.onednn_depth != self.onednn_depth:
            restore_onednn_depth(self.onednn_depth)
        self.state.restore()


_KEYS = ("Python", "PythonTLSSnapshot", "ADInplaceOrView", "AutogradFunctionality", "AutogradOther", "Functionalize")
_DEVICES = ("cpu", "cuda")


def sdp_priority() -> tuple[int, ...]:
    """Which kind of attention is tried first."""
    return tuple(torch._C._get_sdp_priority_order())


def _switches() -> Iterator[tuple[Any, Any]]:
    """(how it is read, how it is set) of torch's switches for cuDNN and for kinds of attention, as far as this build of
    torch has them."""
    for name in ("enabled", "benchmark", "deterministic", "depthwise_kernel"):
        read, write = (getattr(torch._C, f"_{verb}_cudnn_{name}", None) for verb in ("get", "set"))
        if read is not None and write is not None:
            yield read, write
    if torch._C._has_cudnn:
        yield torch._C._cuda_get_cudnn_benchmark_limit, torch._C._cuda_set_cudnn_benchmark_limit
    for name in ("cudnn", "flash", "mem_efficient", "math", "overrideable"):
        read = getattr(torch._C, f"_get_{name}_sdp_enabled", None)
        write = getattr(torch._C, f"_set_sdp_use_{name}", None)
        if read is not None and write is not None:
            yield read, write
    if hasattr(torch._C, "_set_sdp_priority_order"):
        yield sdp_priority, torch._C._set_sdp_priority_order


SWITCHES = tuple(_switches())


@dataclass(frozen=True, slots=True)
class TorchState:
    """Modes that captured code may change."""

    grad_enabled: bool
    autocast_enabled: tuple[bool, ...]
    autocast_dtype: tuple[torch.dtype, ...]
    autocast_cache: bool
    switches: tuple[Any, ...]  # of SWITCHES

    @classmethod
    def now(cls) -> TorchState:
        return cls(
            torch.is_grad_enabled(),
            tuple(torch.is_autocast_enabled(device) for device in _DEVICES),
            tuple(torch.get_autocast_dtype(device) for device in _DEVICES),
            torch.is_autocast_cache_enabled(),
            tuple(read() for read, _ in SWITCHES),
        )

    def calls_from(self, before: TorchState) -> list[tuple[Any, tuple[Any, ...]]]:
        """(function, arguments) that lead from the state `before` to this one."""
        calls: list[tuple[Any, tuple[Any, ...]]] = []
        if self.grad_enabled is not before.grad_enabled:
            calls.append((torch._C._set_grad_enabled, (self.grad_enabled,)))
        for at, device in enumerate(_DEVICES):
            if self.autocast_enabled[at] is not before.autocast_enabled[at]:
                calls.append((torch.set_autocast_enabled, (device, self.autocast_enabled[at])))
            if self.autocast_dtype[at] is not before.autocast_dtype[at]:
                calls.append((torch.set_autocast_dtype, (device, self.autocast_dtype[at])))
        if self.autocast_cache is not before.autocast_cache:
            calls.append((torch.set_autocast_cache_enabled, (self.autocast_cache,)))
        for at, (_, write) in enumerate(SWITCHES):
            if self.switches[at] != before.switches[at]:
                calls.append((write, (self.switches[at],)))
        return calls

    def restore(self) -> None:
        """Make this the state again."""
        for function, args in self.calls_from(TorchState.now()):
            function(*args)

    def effects_since(self) -> list[Effect]:
        """What has to be replayed at run time so that the state, which was this at entry, becomes what it is now."""
        return [
            Evaluate(CallRecipe(ConstantRecipe(function), [ConstantRecipe(arg) for arg in args]))
            for function, args in TorchState.now().calls_from(self)
        ]
