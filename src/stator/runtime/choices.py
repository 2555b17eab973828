"""Choices made by timing, kept in the kernel cache. Each is named by what it depends on: the machine, the libraries,
the sizes. What is timed, and how, is the caller's."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

from stator.base import counters, logs
from stator.base.locks import fork_safe_lock

from .build import current_cache
from .precompiled_header import headers_digest
from .toolchain import cpu_features, cpu_model, digest

_BUDGET_SECONDS, _MOST_SECONDS = 0.003, 0.04  # the latter where rounds take long, on slow processors
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 9
_MOST_DISTURBED = 3  # processes that time the same alternatives in vain
_AGREEMENT = 1.2  # two neighbouring times of undisturbed work differ by less
# A later alternative replaces an earlier, simpler one only if it is clearly quicker.
_MARGIN = 0.97
# A slower alternative is timed no further: one that takes more than this multiple of the quickest one's time with data
# that may lie in a core's cache, or so much more by the times of two rounds; by those of three rounds less, and so on.
_NEAR_LIMIT, _EXCESS = 1.7, 0.25
_NEAR_ROUNDS = 2  # of which a burst of other work disturbs one
_LEAST_SECONDS = 1e-4  # of an alternative in a round
_WARM_UPS = 4
# All timings of a process that it did not ask for. Further choices follow rules, and are timed by later processes.
PATIENCE_SECONDS = 0.15
_seconds_waited = 0.0

# Of each alternative one run or several, each with data of its own, so that no core's cache holds what they read. All
# but the first are made only where the first is not far slower than those of others.
Alternatives = Mapping[str, Iterable[Callable[[], Any]]]


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
_answered: dict[tuple[Any, ...], tuple[Any, bool]] = {}  # by question: answers that follow from choices
# What rules answered where a later process may time: a function, its arguments, and its answer; None where only the
# program that asked can ask again
Question = tuple[Callable[..., Any], tuple[Any, ...], Any]
provisional: list[Question | None] = []
_timing = fork_safe_lock()  # timings of two threads would disturb each other


@functools.cache
def processor() -> list[str]:
    """What the speed of libraries and of our kernels on the CPU depends on, but for the number of threads."""
    return [cpu_model(), ",".join(sorted(cpu_features())), torch.__config__.show(), headers_digest()]


def quickest_on_cpu(
    kind: str,
    facts: tuple[Any, ...],
    alternatives: Callable[[], Alternatives],
    rule: str,
    margin: float = _MARGIN,
) -> str:
    """The name of the quickest alternative on this processor and number of threads: a choice that was kept, or else
    timed now, mostly in less than 10 ms. The first alternatives are the simplest, and win where the difference is
    small.

    rule: the choice where other work on the machine disturbs the timing. The next process tries again, but not every
    one. margin: of the time of an earlier alternative, in which a later one must win.
    """
    chosen, is_provisional = choose_on_cpu(kind, facts, alternatives, rule, margin)
    if is_provisional:
        note_provisional()
    return chosen


def choose_on_cpu(
    kind: str, facts: tuple[Any, ...], alternatives: Callable[[], Alternatives], rule: str, margin: float
) -> tuple[str, bool]:
    """`quickest_on_cpu`, and whether the rule answered and a later process may time, which the caller notes."""
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
        return _known[key], key in _untimed


def choose_patiently(
    kind: str, facts: tuple[Any, ...], alternatives: Callable[[], Alternatives], rule: str, margin: float
) -> tuple[str, bool]:
    """`choose_on_cpu` until this process has waited long for such choices; from then on what is known, or the rule."""
    global _seconds_waited
    if _seconds_waited > PATIENCE_SECONDS:
        chosen = known_choice(kind, facts)
        key = choice_key(processor(), kind, torch.get_num_threads(), *facts)
        return (rule, True) if chosen is None else (chosen, key in _untimed)
    start = time.perf_counter()
    found = choose_on_cpu(kind, facts, alternatives, rule, margin)
    _seconds_waited += time.perf_counter() - start
    return found


def choose_in_next_process(
    kind: str, facts: tuple[Any, ...], alternatives: Callable[[], Alternatives], rule: str, margin: float
) -> tuple[str, bool]:
    """`choose_patiently`, but not in the first process on this machine that asks, which follows the rule: for
    alternatives that are compiled first."""
    key = choice_key(processor(), kind, torch.get_num_threads(), *facts)
    with _timing:
        if key not in _known and stored_choice(key) is None:
            keep_choice(key, {"disturbed": 0})
            _known[key] = rule
            _untimed.add(key)
    return choose_patiently(kind, facts, alternatives, rule, margin)


def note_provisional(question: Question | None = None) -> None:
    """Note an answer by a rule in place of a choice: a process that finds a program that relies on it asks again, and
    makes the program anew where the answer is another. Without a question the program is not kept."""
    provisional.append(question)


_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def answered_by_timing(question: Callable[_Asked, tuple[_Answer, bool]]) -> Callable[_Asked, _Answer]:
    """A decorator: the answers of a question stay in this process, for each number of threads, and those that are
    provisional are noted. What it decorates returns an answer, and whether a rule gave it that timing may contradict in
    a later process."""
    signature = inspect.signature(question)

    @functools.wraps(question)
    def answer(*args: _Asked.args, **named: _Asked.kwargs) -> _Answer:
        asked = signature.bind(*args, **named)
        asked.apply_defaults()
        key = question, torch.get_num_threads(), *asked.args
        if key not in _answered:
            _answered[key] = question(*args, **named)
        found, is_provisional = _answered[key]
        if is_provisional:
            note_provisional((answer, asked.args, found))
        return found

    return answer


def known_choice(kind: str, facts: tuple[Any, ...]) -> str | None:
    """What `quickest_on_cpu` has chosen, in this process or in one that kept it; None if there is no such choice."""
    key = choice_key(processor(), kind, torch.get_num_threads(), *facts)
    return _known[key] if key in _known else (stored_choice(key) or {}).get("name")


def _timed(
    kind: str,
    facts: tuple[Any, ...],
    alternatives: Callable[[], Alternatives],
    margin: float,
) -> str | None:
    """The name of the quickest alternative; None if other work disturbed the timing."""
    with counters.timed("autotune"), plain_calls():
        times = _times(alternatives())
    chosen = ""
    for name, samples in times.items():
        if not chosen or _time(samples) < _time(times[chosen]) * margin:
            chosen = name
    disturbed = any(_is_disturbed(samples) for samples in times.values())
    if logs.enabled("autotune"):
        least = {name: round(1e6 * _time(samples)) for name, samples in times.items()}
        logs.log("autotune", "%s %s: %s; us: %s", kind, facts, "disturbed" if disturbed else chosen, least)
    return None if disturbed else chosen


def warmed_up(runs: Mapping[str, Callable[[], Any]]) -> Alternatives:
    """Alternatives of one run each, for times near to each other: a library's first run in a process takes up to four
    times as long, and two more up to 1.5 times."""
    for run in _WARM_UPS * (*runs.values(),):
        run()
    return {name: [run] for name, run in runs.items()}


@contextmanager
def plain_calls() -> Iterator[None]:
    """Calls of torch that no setting and no mode of the program changes or sees."""
    with (
        torch._C._InferenceMode(False),
        torch.no_grad(),
        torch._C._DisableAutocast(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
    ):
        yield


def _times(alternatives: Alternatives) -> dict[str, list[float]]:
    """Seconds of the runs of alternatives by turns, sorted; of those that are not far slower than others."""
    made = {name: iter(each) for name, each in alternatives.items()}
    first = {name: next(each) for name, each in made.items()}
    near = {name: [_seconds(run)] for name, run in first.items()}  # this may prepare a run, and take long
    for _ in range(_NEAR_ROUNDS):
        for name, run in first.items():
            near[name] += _samples(itertools.repeat(run))
    runs = {name: itertools.cycle((*made[name], first[name])) for name in _contenders(near, _NEAR_LIMIT, min)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    spent = 0.0
    for done in range(1, _MOST_ROUNDS + 1):
        for name, seconds in times.items():
            seconds += (samples := _samples(runs[name]))
            spent += sum(samples)
        if done >= _LEAST_ROUNDS and len(times) == 1:
            break  # no others push its data out of a core's cache
        if spent > (_BUDGET_SECONDS if done >= _LEAST_ROUNDS else _MOST_SECONDS):
            break
        if done > 1:
            times = _contenders(times, 1 + _EXCESS / (done - 1), _time)
    return {name: sorted(seconds) for name, seconds in times.items()}


def _samples(runs: Iterator[Callable[[], Any]]) -> list[float]:
    """Seconds of the next runs: of one, or of more short ones."""
    found: list[float] = []
    while sum(found) < _LEAST_SECONDS and len(found) < _MOST_ROUNDS:
        found.append(_seconds(next(runs)))
    return found


def _seconds(run: Callable[[], Any]) -> float:
    # other work takes the processor away, but a single thread's own time does not count that
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def _contenders(
    times: dict[str, list[float]], limit: float, time_of: Callable[[list[float]], float]
) -> dict[str, list[float]]:
    """The alternatives that take at most this multiple of the quickest one's time."""
    least = min(map(time_of, times.values()))
    return {name: samples for name, samples in times.items() if time_of(samples) <= limit * least}


def _time(samples: list[float]) -> float:
    """The time that most undisturbed runs take: of many, a quarter may have found their data near."""
    return sorted(samples)[len(samples) // 4]


def _is_disturbed(samples: list[float]) -> bool:
    """Whether the time may be far above the time that the work takes: no next one is near to it."""
    place = len(samples) // 4
    return len(samples) < _LEAST_ROUNDS or samples[place + 1] > _AGREEMENT * samples[place]
