"""torch's thread-wide modes during a capture. The program's changes are applied for real while capturing, undone
afterwards, and replayed as effects if the captured code leaves them changed."""

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
from stator.dynamo.host.torch_overrides import function_state, set_function_state
from stator.graph.operators import attention_settings
from stator.shapes.environment import asking

from .reconstruct_ir import ConstantRecipe, Effect, call_effect


def in_function_transform() -> bool:
    """Whether this thread is under torch.func.vmap, grad, jvp or the like."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def forward_ad_guard() -> Guard:
    """A guard on the number of entered levels of forward-mode AD: metadata does not show that a tensor is dual."""
    level = torch.autograd.forward_ad._current_level
    return Guard(ModuleGlobalSource("torch.autograd.forward_ad", "_current_level"), GuardKind.EQUALS, level)


def in_forward_ad() -> bool:
    """Whether tensors may carry tangents of forward-mode AD."""
    return torch.autograd.forward_ad._current_level >= 0


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Hide the tensors that autograd saves in the block from the program's saved-tensor hooks (checkpointing installs
    such hooks)."""
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        yield


def _itself(saved: torch.Tensor) -> torch.Tensor:
    return saved


@contextmanager
def modes_restored_on_interrupt() -> Iterator[None]:
    """Restore the modes of this thread if the block is interrupted at any point. (On a normal end or an ordinary
    exception, the code that changed a mode has restored it.)"""
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
    """Clear dead frames now: they hold C++ guards that restore modes when they die, which must not happen after
    `restore`. Dead are the frames of the traceback, and those below a signal handler."""
    while traceback is not None:
        frame: FrameType | None = traceback.tb_frame
        try:
            while frame is not None:
                frame.clear()
                frame = frame.f_back
        except RuntimeError:  # the frame is running
            pass
        traceback = traceback.tb_next


@dataclass(frozen=True, slots=True)
class _Modes:
    """All modes of this thread that tracing changes temporarily."""

    dispatch_modes: int
    function_modes: int
    included: tuple[bool, ...]
    excluded: tuple[bool, ...]
    asking: dict[str, Any]
    state: TorchState

    @classmethod
    def now(cls) -> _Modes:
        return cls(
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
            tuple(map(torch._C._dispatch_tls_is_dispatch_key_included, _KEYS)),
            tuple(map(torch._C._dispatch_tls_is_dispatch_key_excluded, _KEYS)),
            vars(asking).copy(),
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
        vars(asking).clear()
        vars(asking).update(self.asking)
        self.state.restore()


_KEYS = ("Python", "PythonTLSSnapshot", "ADInplaceOrView", "AutogradFunctionality", "AutogradOther", "Functionalize")
_DEVICES = ("cpu", "cuda")
_autograd: Any = torch._C._autograd


def autocast_nesting() -> int:
    """The number of autocast regions around this call. Leaving the outermost one clears the cache of casts."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _backend_flags() -> Iterator[tuple[Any, Any]]:
    """(getter, setter) of torch's flags for cuDNN and attention kernels that exist in this build of torch."""
    for name in ("enabled", "benchmark", "deterministic", "depthwise_kernel"):
        read, write = (getattr(torch._C, f"_{verb}_cudnn_{name}", None) for verb in ("get", "set"))
        if read is not None and write is not None:
            yield read, write
    if torch._C._has_cudnn:
        yield torch._C._cuda_get_cudnn_benchmark_limit, torch._C._cuda_set_cudnn_benchmark_limit
    yield from attention_settings.SETTINGS


BACKEND_FLAGS = tuple(_backend_flags())


@dataclass(frozen=True, slots=True)
class TorchState:
    """The modes that captured code may change."""

    grad_enabled: bool
    autocast_enabled: tuple[bool, ...]
    autocast_dtype: tuple[torch.dtype, ...]
    autocast_cache: bool
    autocast_nesting: int
    backend_flags: tuple[Any, ...]  # in the order of BACKEND_FLAGS
    functions: int  # which overrides of torch functions are called; see `function_state`
    hooks_disabled: str | None  # the message of `torch.autograd.graph.disable_saved_tensors_hooks`

    @classmethod
    def now(cls) -> TorchState:
        return cls(
            torch.is_grad_enabled(),
            tuple(torch.is_autocast_enabled(device) for device in _DEVICES),
            tuple(torch.get_autocast_dtype(device) for device in _DEVICES),
            torch.is_autocast_cache_enabled(),
            autocast_nesting(),
            tuple(read() for read, _ in BACKEND_FLAGS),
            function_state(),
            _autograd._saved_tensors_hooks_get_disabled_error_message(),
        )

    def calls_from(self, before: TorchState) -> list[tuple[Any, tuple[Any, ...]]]:
        """(function, arguments) of the calls that lead from the state `before` to this state."""
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
        deeper = self.autocast_nesting - before.autocast_nesting
        step = torch.autocast_increment_nesting if deeper > 0 else torch.autocast_decrement_nesting
        calls += [(step, ())] * abs(deeper)
        for at, (_, write) in enumerate(BACKEND_FLAGS):
            if self.backend_flags[at] != before.backend_flags[at]:
                calls.append((write, (self.backend_flags[at],)))
        if self.functions != before.functions:
            calls.append((set_function_state, (self.functions,)))
        if self.hooks_disabled != before.hooks_disabled:
            message = self.hooks_disabled
            disable, enable = _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable
            calls.append((enable, ()) if message is None else (disable, (message,)))
        return calls

    def restore(self) -> None:
        """Set this state."""
        for function, args in self.calls_from(TorchState.now()):
            function(*args)

    def effects_since(self) -> list[Effect]:
        """The effects that replay, at run time, the changes between this state and the present state."""
        return [
            call_effect(function, *map(ConstantRecipe, args)) for function, args in TorchState.now().calls_from(self)
        ]
