"""Reads torch's thread-wide and process-wide state, and tells the C extension where libtorch keeps it.

The C side reads through functions that libtorch exports; before they are trusted, an experiment changes each part of the
state and looks whether the reading follows. Without them state guards compare in Python.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from stator.base import counters

from .guard import GlobalState
from .native_status import native as _native

AUTOCAST_DEVICES = ("cpu", "cuda")
KEYS_SYMBOL = "_ZN3c104impl26raw_local_dispatch_key_setE"
# (library, mangled name) in the order that set_state_probes takes; the mask of the first follows it
SYMBOLS = (
    ("libc10", "_ZN3c1013AutogradState13get_tls_stateEv"),
    ("libc10", "_ZN3c1031get_default_dtype_as_scalartypeEv"),
    ("libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv"),
    ("libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
    ("libtorch_cpu", "_ZN2at13globalContextEv"),
    ("libtorch_cpu", "_ZNK2at7Context23deterministicAlgorithmsEv"),
    ("libtorch_cpu", "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv"),
    ("libtorch_cpu", "_ZN2at15get_num_threadsEv"),
)
# grad_mode, inference_mode, fw_grad_mode; view_replay and the like do not change what compiled code does
AUTOGRAD_MASK = 0b111


def read_global_state() -> GlobalState:
    """The state now, as the guard GLOBAL_STATE compares it. Takes some microseconds."""
    modes = torch._C._len_torch_function_stack()
    return GlobalState(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        default_dtype=torch.get_default_dtype(),
        default_device=torch.get_default_device() if modes else None,
        num_threads=torch.get_num_threads(),
        deterministic=(
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        autocast=tuple(
            (device, True, torch.get_autocast_dtype(device))
            for device in AUTOCAST_DEVICES
            if torch.is_autocast_enabled(device)
        ),
        autocast_cache=torch.is_autocast_cache_enabled(),
        torch_function_enabled=torch._C._is_torch_function_enabled(),
    )


def is_ordinary(state: GlobalState) -> bool:
    """Does the C snapshot say everything about `state`? (It sees that autocast or modes are on, not what they do.)"""
    return not state.autocast and state.default_device is None


@functools.cache
def install_probes() -> bool:
    """Let the C extension read the state directly. False when this torch does not allow it; then Python predicates do."""
    addresses = _addresses()
    if _native is None or addresses is None:
        counters.count("global_state.no_probes")
        return False
    functions, library = addresses
    _native.set_state_probes(functions[0], AUTOGRAD_MASK, *functions[1:], library, KEYS_SYMBOL)
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


def _probes_tell_the_truth() -> bool:
    """Change each part of the state for a moment: exactly the reading of that part must follow, and come back."""
    before = _read()
    default_dtype = torch.get_default_dtype()
    other_dtype = torch.float64 if default_dtype is not torch.float64 else torch.float32
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def use_deterministic(enabled: bool, warn_only: bool) -> None:
        torch._C._set_deterministic_algorithms(enabled, warn_only=warn_only)

    cpu_autocast = torch.is_autocast_enabled("cpu")
    threads = torch.get_num_threads()
    experiments: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        ("default_dtype", lambda: torch._C._set_default_dtype(other_dtype), lambda: torch._C._set_default_dtype(default_dtype)),
        ("deterministic", lambda: use_deterministic(not deterministic[0], False), lambda: use_deterministic(*deterministic)),
        (
            "excluded",
            lambda: torch.set_autocast_enabled("cpu", not cpu_autocast),
            lambda: torch.set_autocast_enabled("cpu", cpu_autocast),
        ),
    ]
    contexts: list[tuple[str, Callable[[], AbstractContextManager[Any]]]] = [
        ("autograd", lambda: torch.set_grad_enabled(not torch.is_grad_enabled())),
        ("autograd", lambda: torch.inference_mode(not torch.is_inference_mode_enabled())),
        ("torch_function", torch._C.DisableTorchFunctionSubclass),
        ("mode_stack", torch.overrides.BaseTorchFunctionMode),
    ]
    return (
        before["num_threads"] == threads
        and all(_follows(part, change, restore, before) for part, change, restore in experiments)
        and all(_follows_context(part, context, before) for part, context in contexts)
    )


def _read() -> dict[str, int]:
    return _native.read_state()  # type: ignore[union-attr]


def _follows(part: str, change: Callable[[], Any], restore: Callable[[], Any], before: dict[str, int]) -> bool:
    try:
        change()
        during = _read()
    finally:
        restore()
    return during[part] != before[part] and _read() == before


def _follows_context(part: str, context: Callable[[], AbstractContextManager[Any]], before: dict[str, int]) -> bool:
    with context():
        during = _read()
    return during[part] != before[part] and _read() == before
