"""Reads torch's thread-wide and process-wide state, and lets the C extension read it in a few ns.

The C code reads by functions that libtorch exports. Before they are trusted, an experiment changes each part of the
state and checks that the reading changes. Without them, state guards compare in Python.
"""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._device import DeviceContext

from stator.base import counters
from stator.dynamo.host.native_status import native as _native

from .guard import GlobalState

AUTOCAST_DEVICES = ("cpu", "cuda")
KEYS_SYMBOL = "_ZN3c104impl26raw_local_dispatch_key_setE"
# (library, mangled name) in the order that set_state_probes takes; offset and mask of the first follow it
SYMBOLS = (
    ("libc10", "_ZN3c1013AutogradState13get_tls_stateEv"),
    ("libc10", "_ZN3c1031get_default_dtype_as_scalartypeEv"),
    ("libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv"),
    ("libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
    ("libtorch_cpu", "_ZN2at13globalContextEv"),
    ("libtorch_cpu", "_ZNK2at7Context23deterministicAlgorithmsEv"),
    ("libtorch_cpu", "_ZN2at15get_num_threadsEv"),
)
AUTOGRAD_STATE_BYTES = 32
_FOLLOWED_MODES = (DeviceContext,)  # other torch-function modes must see the program's operators


def read_global_state() -> GlobalState:
    """The present state, which the guard GLOBAL_STATE compares. Takes some microseconds."""
    modes = torch._C._len_torch_function_stack()
    observed = modes > 0 and _is_observed()
    return GlobalState(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        default_dtype=torch.get_default_dtype(),
        default_device=torch.get_default_device() if modes and not observed else None,
        num_threads=torch.get_num_threads(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        autocast=tuple(
            (device, True, torch.get_autocast_dtype(device))
            for device in AUTOCAST_DEVICES
            if torch.is_autocast_enabled(device)
        ),
        autocast_cache=torch.is_autocast_cache_enabled(),
        torch_function_enabled=torch._C._is_torch_function_enabled(),
        observed=observed or torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None,
    )


def _is_observed() -> bool:
    """Whether a mode is on that must see the program's torch functions."""
    stack = range(torch._C._len_torch_function_stack())
    return any(type(torch._C._get_function_stack_at(at)) not in _FOLLOWED_MODES for at in stack)


def is_ordinary(state: GlobalState) -> bool:
    """Whether the C snapshot determines `state`. (It shows that autocast or modes are on, not their settings.)"""
    return not state.autocast and state.default_device is None and not state.observed


_trusted: bool | None = None  # None: not tried yet
_trying = threading.Lock()


def install_probes() -> bool:
    """Let the C extension read the state directly. False if this torch does not support it, if a mode would see the
    experiments, or if another thread is trying (waiting could last forever in a forked child)."""
    global _trusted
    if _trusted is None and not _is_observed() and _trying.acquire(blocking=False):
        try:
            _trusted = _try_probes()
        finally:
            _trying.release()
    return bool(_trusted)


def _try_probes() -> bool:
    addresses = _addresses()
    if _native is None or addresses is None:
        counters.count("global_state.no_probes")
        return False
    functions, library = addresses
    autograd = _find_autograd_bits(functions[0])
    if autograd is not None:
        _native.set_state_probes(functions[0], *autograd, *functions[1:], _functionalities(), library, KEYS_SYMBOL)
        if _probes_tell_the_truth():
            return True
        _native.clear_state_probes()
    counters.count("global_state.no_probes")
    return False


def _addresses() -> tuple[list[int], int] | None:
    folder = Path(torch.__file__).parent / "lib"
    try:
        libraries = {name: ctypes.CDLL(str(folder / f"{name}.so")) for name in ("libc10", "libtorch_cpu")}
        functions = [
            ctypes.cast(getattr(libraries[library], name), ctypes.c_void_p).value or 0 for library, name in SYMBOLS
        ]
        (ctypes.c_uint64 * 2).in_dll(libraries["libc10"], KEYS_SYMBOL)
    except (OSError, AttributeError, ValueError):
        return None
    return functions, libraries["libc10"]._handle


def _find_autograd_bits(function: int) -> tuple[int, int] | None:
    """(offset, mask) of the bits for grad mode, inference mode and forward-mode AD in AutogradState."""
    read_address = ctypes.CFUNCTYPE(ctypes.c_void_p)(function)

    def read() -> bytes:
        return ctypes.string_at(read_address() or 0, AUTOGRAD_STATE_BYTES)

    before, changed = read(), bytearray(AUTOGRAD_STATE_BYTES)
    for context in _autograd_changes():
        with context():
            during = read()
        if during == before:
            return None
        for offset, (old, new) in enumerate(zip(before, during, strict=True)):
            changed[offset] |= old ^ new
    offsets = [offset for offset, bits in enumerate(changed) if bits]
    return (offsets[0], changed[offsets[0]]) if len(offsets) == 1 else None


def _autograd_changes() -> list[Callable[[], AbstractContextManager[Any]]]:
    return [
        lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
        lambda: torch.inference_mode(not torch.is_inference_mode_enabled()),
        lambda: torch.autograd.forward_ad._set_fwd_grad_enabled(not torch._C._is_fwd_grad_enabled()),
    ]


def _functionalities() -> int:
    """Mask of the functionality bits of a dispatch key set, above the backend bits; `Dense` is the first of them."""
    return ~(torch._C.DispatchKeySet(torch._C.DispatchKey.Dense).raw_repr() - 1) & (2**64 - 1)


def _probes_tell_the_truth() -> bool:
    """Change each part of the state for a moment: the reading of exactly that part must change and return."""
    before = _read()
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    other_dtype = torch.float64 if dtype is not torch.float64 else torch.float32
    strict, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    autocast = torch.is_autocast_enabled("cpu")
    set_dtype, set_autocast = torch._C._set_default_dtype, partial(torch.set_autocast_enabled, "cpu")
    set_deterministic = torch._C._set_deterministic_algorithms
    experiments: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        ("default_dtype", partial(set_dtype, other_dtype), partial(set_dtype, dtype)),
        (
            "deterministic",
            partial(set_deterministic, not strict, warn_only=False),
            partial(set_deterministic, strict, warn_only=warn_only),
        ),
        ("excluded", partial(set_autocast, not autocast), partial(set_autocast, autocast)),
    ]
    contexts = [
        *(("autograd", context) for context in _autograd_changes()),
        ("torch_function", torch._C.DisableTorchFunctionSubclass),
        ("mode_stack", torch.overrides.BaseTorchFunctionMode),
    ]
    return (
        before["num_threads"] == threads
        and all(_follows(part, change, back, before) for part, change, back in experiments)
        and all(_follows_context(part, context, before) for part, context in contexts)
    )


def _read() -> dict[str, int]:
    return _native.read_state()


def _follows(part: str, change: Callable[[], Any], back: Callable[[], Any], before: dict[str, int]) -> bool:
    """`change` and `back` are C functions, as are their callers here: no other thread and no signal handler runs while
    the process has a default dtype that the program did not set."""
    _, during, _, after = map(operator.call, (change, _native.read_state, back, _native.read_state))
    return during[part] != before[part] and after == before


def _follows_context(part: str, context: Callable[[], AbstractContextManager[Any]], before: dict[str, int]) -> bool:
    with context():
        during = _read()
    return during[part] != before[part] and _read() == before
