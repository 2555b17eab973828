"""Choices made by timing, kept in the kernel cache. Each is named by what it depends on: the machine, the libraries,
the sizes. What is timed, and how, is the caller's."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from stator.base import counters, logs
from stator.base.locks import fork_safe_lock

from .build import current_cache
from .toolchain import cpu_features, cpu_model, digest

_BUDGET_SECONDS, _MOST_SECONDS = 0.01, 0.04  # the latter where rounds take long, on slow processors
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 9
_MOST_DISTURBED = 3  # processes that time the same alternatives in vain
_AGREEMENT = 1.2  # the least two times of undisturbed work differ by less
# A later alternative replaces an earlier, simpler one only if it is clearly quicker.
_MARGIN = 0.97


def choice_key(machine: list[str], *facts: Any) -> str:
    """The name of a choice in the cache: it depends on what runs the alternatives, and on these facts."""
    return digest(json.dumps([*machine, torch.__version__, *facts]))


def stored_choice(key: str) -> Any:
    """A choice that was kept, as `keep_choice` took it; None if there is none."""
    stored = current_cache().find_data(key)
    return None if stored is None else json.loads(stored)


def keep_choice(key: str, choice: Mapping[str, Any]) -> None:
    cache = current_cache()
    try:
        cache.store_data(key, json.dumps(choice).encode())
    except OSError as problem:
        logs.warn_once("cache:autotune", f"stator cannot keep choices of kernels in {cache.folder}: {problem}")


_known: dict[str, str] = {}  # by key: the choices of this process
_untimed: set[str] = set()  # those of `_known` that a later process may time
provisional = 0  # how often a rule answered where a later process may time
_timing = fork_safe_lock()  # timings of two threads would disturb each other


@functools.cache
def processor() -> list[str]:
    """What the speed of libraries on the CPU depends on, but for the number of threads."""
    return [cpu_model(), ",".join(sorted(cpu_features())), torch.__config__.show()]


def quickest_on_cpu(
    kind: str,
    facts: tuple[Any, ...],
    alternatives: Callable[[], Mapping[str, Callable[[], Any]]],
    rule: str,
    margin: float = _MARGIN,
) -> str:
    """The name of the quickest alternative on this processor and number of threads: a choice that was kept, or else
    timed now, in about 10 ms. The first alternatives are the simplest, and win where the difference is small.

    rule: the choice where other work on the machine disturbs the timing. The next process tries again, but not every
    one. margin: of the time of an earlier alternative, in which a later one must win.
    """
    key = choice_key(processor(), kind, torch.get_num_threads(), *facts)
    with _timing:
        if key not in _known:
            stored = stored_choice(key) or {}
            disturbed = stored.get("disturbed", 0)
            chosen = stored.get("name")
            if chosen is None and disturbed < _MOST_DISTURBED:
                chosen = _timed(kind, facts, alternatives, margin)
                keep_choice(key, {"disturbed": disturbed + 1} if chosen is None else {"name": chosen})
                if chosen is None and disturbed + 1 < _MOST_DISTURBED:
                    _untimed.add(key)
            _known[key] = rule if chosen is None else chosen
        if key in _untimed:
            note_provisional()
        return _known[key]


def note_provisional() -> None:
    """Count an answer by a rule in place of a choice, so that programs that rely on it are not kept."""
    global provisional
    provisional += 1


def by_turns(runs: Mapping[str, Sequence[Callable[[], Any]]]) -> dict[str, Callable[[], Any]]:
    """Alternatives that each go through runs of their own, so that what these read is not in a core's cache."""
    turns = {name: itertools.cycle(each) for name, each in runs.items()}
    return {name: lambda turn=turn: next(turn)() for name, turn in turns.items()}  # type: ignore[misc]


def known_choice(kind: str, facts: tuple[Any, ...]) -> str | None:
    """What `quickest_on_cpu` has chosen, in this process or in one that kept it; None if there is no such choice."""
    key = choice_key(processor(), kind, torch.get_num_threads(), *facts)
    return _known[key] if key in _known else (stored_choice(key) or {}).get("name")


def _timed(
    kind: str,
    facts: tuple[Any, ...],
    alternatives: Callable[[], Mapping[str, Callable[[], Any]]],
    margin: float,
) -> str | None:
    """The name of the quickest alternative; None if other work disturbed the timing."""
    with counters.timed("autotune"), _plain_calls():
        times = _times(alternatives())
    chosen = ""
    for name, samples in times.items():
        if not chosen or samples[0] < times[chosen][0] * margin:
            chosen = name
    disturbed = any(_is_disturbed(samples) for samples in times.values() if samples[0] < 1.5 * times[chosen][0])
    if logs.enabled("autotune"):
        least = {name: round(1e6 * samples[0]) for name, samples in times.items()}
        logs.log("autotune", "%s %s: %s; us: %s", kind, facts, "disturbed" if disturbed else chosen, least)
    return None if disturbed else chosen


@contextmanager
def _plain_calls() -> Iterator[None]:
    """Calls of torch that no setting and no mode of the program changes or sees."""
    with (
        torch._C._InferenceMode(False),
        torch.no_grad(),
        torch._C._DisableAutocast(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
    ):
        yield


def _times(runs: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of runs by turns, sorted. The first run of each prepares it. The quickest, if it is not the first, goes
    by turns with the first once more, so that a few slow runs of the first do not decide."""
    times = _rounds(runs)
    first, quickest = next(iter(runs)), min(times, key=lambda name: min(times[name]))
    if quickest != first:
        for name, samples in _rounds({first: runs[first], quickest: runs[quickest]}).items():
            times[name] += samples
    return {name: sorted(samples) for name, samples in times.items()}


def _rounds(runs: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    # other work takes the processor away, but a single thread's own time does not count that
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    begin = clock()
    for done in range(1, _MOST_ROUNDS + 1):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(clock() - start)
        if clock() - begin > (_BUDGET_SECONDS if done >= _LEAST_ROUNDS else _MOST_SECONDS):
            break
    return times


def _is_disturbed(samples: list[float]) -> bool:
    """Whether the least time may be far above the time that the work takes: no other is near to it."""
    return len(samples) < _LEAST_ROUNDS or samples[1] > _AGREEMENT * samples[0]
