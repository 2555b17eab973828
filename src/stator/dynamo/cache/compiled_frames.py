"""A cache miss of a frame: explain the failed guards, compile and insert a version, or give up. Also the reset of all
caches. Works without torch: the caller passes `compile_frame`. The lookup itself is in C."""

from __future__ import annotations

import inspect
import os
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any, NoReturn, Protocol

from stator.base import counters, logs
from stator.base.errors import (
    ConcurrentModification,
    ConstraintViolation,
    StatorError,
    Unsupported,
    UsageError,
    UserPlace,
    VerificationError,
)
from stator.base.signals import raised_by_signal_handler
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.guard_tree import bound_count, build_guard_tree, describe_failure, without_strong_references
from stator.dynamo.guards.source import Source
from stator.dynamo.guards.type_only_guards import guards_on_types
from stator.dynamo.host.break_kinds import PROGRAM_ERRORS
from stator.dynamo.host.hook import mark_as_ours
from stator.dynamo.host.iterator_state import is_known_iterator
from stator.dynamo.host.naming import class_dict, qualified_name, resolution_order
from stator.dynamo.host.native_status import native as _native
from stator.dynamo.host.stance import may_compile, refuse_recompile
from stator.dynamo.host.trusted_builtins import builtins_are_unchanged
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, Retry
from stator.dynamo.ir.prepared_code import item_parameter
from stator.dynamo.ir.resume import closure_of, resumption_of

from .dynamic_sources import (
    OFTEN,
    changed_members,
    changed_numbers,
    changed_sizes,
    is_on_contents,
    members,
    places_of_changed_contents,
    tensors,
)
from .specialization_owner import NOBODY, NotedOwner, Owner, first_instance, owner_of


@dataclass(frozen=True, slots=True)
class CompiledFrame:
    """The result of compiling a frame. `code` replaces the function's code (with equal parameters and free variables);
    None: the original code runs under these guards.

    followed: the original code and its callees run eagerly, or `code` is the original code with an exit at the break.
        The guards then only tell when there is nothing to compile.
    last_resort: the version serves only calls that no other version fits.
    """

    guards: Sequence[Guard]
    code: CodeType | None
    followed: bool = False
    last_resort: bool = False


# makes a version of a compiled frame; raises Retry if its guards fail on the values they were made from
Install = Callable[[CompiledFrame, CaptureAssumptions], Any]
# compiles a frame with these values of its parameters, and returns the result of `Install`
CompileFrame = Callable[[FunctionType, dict[str, object], CaptureAssumptions, Install], Any]


@dataclass(frozen=True, slots=True)
class InnerCache:
    """The continuation that a joined function resumes first.

    cache: the Cache of that continuation.
    names: parameter of the joined function -> name of that parameter in the continuation.
    """

    cache: Any
    names: Mapping[str, str]


class CacheOptions(Protocol):
    """The part of base.config.Options that the cache reads."""

    @property
    def recompile_limit(self) -> int: ...


# entered around every compilation
around_compilations: list[Callable[[], AbstractContextManager[None]]] = []

_FOR_THE_PROGRAM = (RecursionError, ConstraintViolation)
_SHOWN_REASONS = 3  # in a warning
_MOST_FAILURES = 4  # failed compilations of a function before the function stays eager
_MOST_LOST = 2  # versions whose objects died before the cache assumes new objects in each call
_INSTANCES = 1024  # times the recompile limit: the most versions over all instances that share a method
_GONE = 8  # times the recompile limit: the most versions whose instances are gone
_FOLLOWED, _LAST_RESORT = 1, 2  # nonzero values of `followed` of a version
_GIVEN_UP = -1  # `followed` of a version for an instance that reached the recompile limit

_caches: weakref.WeakSet[Any] = weakref.WeakSet()


def make_cache(
    code: CodeType,
    compile_frame: CompileFrame,
    options: CacheOptions,
    *,
    fullgraph: bool = False,
    as_function: bool = True,
    receiver: str = "self",
    inside: InnerCache | None = None,
    leave_inside: Callable[[], None] | None = None,
) -> Any:
    """An empty Cache for frames of `code`.

    `as_function`: versions are called as functions (by an Entry); otherwise only their code is used (by the hook).
    `receiver`: the parameter whose value the recompile limit is counted for.
    `inside`: the cache of the continuation that a joined function resumes first. `leave_inside`: called when the
        joined function reached the limit, so that the inner frames are compiled apart.
    """
    cache = _native.Cache(
        code, CacheMiss(code, compile_frame, options, fullgraph, as_function, receiver, inside, leave_inside)
    )
    _caches.add(cache)
    return cache


def reset() -> None:
    """Forget every compiled version and every decision to run eagerly."""
    for cache in list(_caches):
        cache.versions = ()
        cache.eager = False
        cache.miss.forget()
    if _native is not None:
        _native.reset_hook()


def hit_count(code: CodeType) -> int | None:
    """The number of hits of the version with this code after the call that made it; None if there is no such
    version."""
    return next((version.hits for cache in list(_caches) for version in cache.versions if version.code is code), None)


def retire_version(code: CodeType) -> None:
    """From now on, the original code runs for calls that the version with this code fits."""
    for cache in list(_caches):
        for old in cache.versions:
            if old.code is code:
                new = _native.Version(old.guards, None, None, old.detail, None, 0)
                cache.miss.made_for[id(new)] = cache.miss.made_for.get(id(old), NOBODY)
                cache.versions = tuple(new if version is old else version for version in cache.versions)


def _after_fork() -> None:
    """In a child process: the parent's other threads, which may have been compiling, do not exist."""
    if _native.compiling_depth() == 0:
        for cache in list(_caches):
            cache.busy = False


if _native is not None and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class CacheMiss:
    """The callback of a cache: called with (cache, function, bound arguments) if no version fits; compiles a
    version."""

    def __init__(
        self,
        code: CodeType,
        compile_frame: CompileFrame,
        options: CacheOptions,
        fullgraph: bool,
        as_function: bool,
        receiver: str = "self",
        inside: InnerCache | None = None,
        leave_inside: Callable[[], None] | None = None,
    ) -> None:
        self.compile_frame, self.options, self.receiver, self.inside = compile_frame, options, receiver, inside
        self.leave_inside = leave_inside
        self.variants = 1 if item_parameter(code) is None else 2  # of one turn and of several
        self.fullgraph, self.as_function = fullgraph, as_function
        self.failures = 0
        self.made_for: dict[int, NotedOwner] = {}  # by the id of a version
        self.changing: Counter[Source] = Counter()  # sources that changed, with the number of changes; 0: expected to
        self.left: dict[Source, set[str]] = {}  # the numbers at these sources before they changed
        self.changed_at: Counter[UserPlace] = Counter()  # lines that relied on contents that changed, with their number
        self.met: set[Source] = set()  # sources of tensors of earlier versions
        self.lost: list[Any] = []  # guards of the first versions that were dropped because an object of theirs died
        self.outdated = 0  # versions that were dropped because data that they had as constants was changed
        self.unused = 0  # versions in a row that compiled nothing and were dropped before a second call
        self.given_up: list[NotedOwner] = []

    def __call__(self, cache: Any, function: FunctionType, bound: dict[str, object]) -> Any:
        """The version to call, or None to run the original. csrc/cache.c ensures that a running miss is not entered
        again."""
        if not builtins_are_unchanged():
            return None
        try:
            return self._version(cache, function, bound)
        except RecursionError:  # the stack is too deep for the compiler; another call may have room
            if self.fullgraph:
                raise
            try:
                counters.count("dynamo.eager_for_depth")
            except RecursionError:
                return None  # there is no room for the counter either
            return None

    def forget(self) -> None:
        """Undo all decisions to give up."""
        self.made_for.clear()
        self.given_up.clear()
        self.changing.clear()
        self.left.clear()
        self.changed_at.clear()
        self.met.clear()
        self.lost.clear()
        self.outdated = 0
        self.unused = 0
        self.failures = 0

    def expect_changes(self, changes: Mapping[Source, int]) -> None:
        """Note changes that another frame has seen, which hands its variables over to this one."""
        for source, count in changes.items():
            self.changing[source] = max(count, self.changing[source])

    def _version(self, cache: Any, function: FunctionType, bound: dict[str, object]) -> Any:
        values = tuple(bound.values())
        for version in cache.versions[:_SHOWN_REASONS]:  # another thread may have compiled a version meanwhile
            if version.guards.check(values, function):
                return version
        owner = owner_of(bound, self.receiver, function)
        if any(given_up.is_(owner) for given_up in self.given_up):
            return None
        outdated = self.outdated
        reasons = self._why_none_fits(cache, function, values, owner)
        of_owner = [version for version in cache.versions if self._was_made_for(owner, version)]
        gone = [version for version in cache.versions if self.made_for.get(id(version), NOBODY).is_gone()]
        if of_owner or gone or self.outdated > outdated:
            refuse_recompile(frame_name(function, bound), reasons)
        if not may_compile(frame_name(function, bound), reasons):
            return None
        limit = self.options.recompile_limit * max(1, self._loops(bound))
        kinds = Counter(version.followed for version in of_owner)
        if max(kinds[0] + self.outdated, kinds[_LAST_RESORT]) >= limit or len(cache.versions) >= limit * _INSTANCES:
            left = self._leave_frames_inside()
            if not left:
                self._stop_recompiling(cache, function, owner)
            self._tell_of_limit(cache, frame_name(function, bound), reasons, owner)
            return self._compile(cache, function, bound, values) if left else None
        if len(gone) >= limit * _GONE:
            if not any(version.hits for version in gone):
                self._stop_recompiling(cache, function, None)
                self._tell_of_limit(cache, frame_name(function, bound), reasons, None)
                return None
            cache.versions = tuple(version for version in cache.versions if version is not gone[-1])
        if reasons:
            counters.count("dynamo.recompiles")
            nearest = "" if len(reasons) == 1 else f"  # the nearest of {len(reasons)} versions"
            logs.log("recompiles", "%s", f"recompiling {frame_name(function, bound)}{nearest}\n  {reasons[0]}")
        followed = sum(version.followed == _FOLLOWED for version in cache.versions)
        if kinds[_FOLLOWED] >= limit or followed >= limit * _GONE:
            return self._rely_on_types(cache, function, bound, of_owner)
        version = self._compile(cache, function, bound, values)
        if self.unused >= limit and version is not None and version.followed == _FOLLOWED:
            return self._rely_on_types(cache, function, bound, [version])
        return version

    def _loops(self, bound: dict[str, object]) -> int:
        """The number of loops that a resumed frame is in. Each loop resumes in two ways: the next iteration and the
        end; the next iteration by one turn or by several. For joined frames, the count of the frame with most loops."""
        names = {} if self.inside is None else self.inside.names
        own = sum(is_known_iterator(value) for name, value in bound.items() if name not in names) * self.variants
        if self.inside is None:
            return own
        inside = {there: bound[name] for name, there in names.items()}
        return max(own, self.inside.cache.miss._loops(inside))

    def _leave_frames_inside(self) -> bool:
        """From now on, compile joined frames apart from one another. False: no frames are joined here."""
        leave, self.leave_inside = self.leave_inside, None
        if leave is None:
            return False
        leave()
        if self.inside is not None:
            self.inside.cache.miss._leave_frames_inside()
        return True

    def _was_made_for(self, owner: Owner, version: Any) -> bool:
        return self.made_for.get(id(version), NOBODY).is_(owner)

    def _near(self, cache: Any, owner: Owner) -> list[Any]:
        """The versions to explain: those made for this owner, and some of the others."""
        versions = [version for version in cache.versions if version.followed != _GIVEN_UP]
        own = [version for version in versions if self._was_made_for(owner, version)]
        others = [version for version in versions if not self._was_made_for(owner, version)]
        return own + others[: self.options.recompile_limit]

    def _why_none_fits(self, cache: Any, function: FunctionType, values: tuple[object, ...], owner: Owner) -> list[str]:
        """What changed since each version: first since the nearest, the version whose guards hold longest."""
        reasons: list[tuple[int, str]] = []
        changed: set[Source] = set()
        places: set[UserPlace] = set()
        for version in self._near(cache, owner):
            failure = version.guards.explain(values, function)
            if failure is not None:
                reasons.append((failure[0], describe_failure(version.detail, failure)))
                if failure[0] >= 0 and version.detail[failure[0]].kind is GuardKind.CONTENT:
                    self.outdated += 1  # its constants may be large, and it will hardly fit again
                    cache.versions = tuple(one for one in cache.versions if one is not version)
                numbers = changed_numbers(version.detail, failure, function, values)
                changed |= {source for source, number in numbers.items() if self._is_new(source, number)}
                if numbers:
                    places |= places_of_changed_contents(version.detail, function, values)
                own = self._was_made_for(owner, version) or not owner.receives(self.receiver)
                changed |= changed_sizes(version.detail, failure, function, values, own)
                self.met |= tensors(version.detail)
                if own:
                    changed |= changed_members(version.detail, failure, function, values)
        if len(self.lost) == _MOST_LOST:  # the program creates the frame's objects for each call
            changed.update(*map(members, self.lost))
        self.changing.update(changed)
        self.changed_at.update(places)
        return [reason for _, reason in sorted(reasons, key=lambda pair: -pair[0])]

    def _is_new(self, source: Source, number: Any) -> bool:
        """Whether a number that a version relied on tells of another change. A number to which later versions return
        is one change, however often another guard fails beside it."""
        if is_on_contents(source):  # each data may have its own answers
            return True
        known = self.left.setdefault(source, set())
        is_new = repr(number) not in known
        known.add(repr(number))
        return is_new

    def _compile(self, cache: Any, function: FunctionType, bound: dict[str, object], values: tuple[object, ...]) -> Any:
        def install(frame: CompiledFrame, assumptions: CaptureAssumptions) -> Any:
            version = self._make_version(cache, function, frame, first_instance(bound))
            failure = version.guards.explain(values, function)
            if failure is not None:
                raise Retry(assumptions.after_failed_guard(describe_failure(version.detail, failure)))
            self.changing.update(dict.fromkeys(assumptions.changes, 0))  # later versions expect these changes, too
            return version

        try:
            with ExitStack() as stack:
                for around in around_compilations:
                    stack.enter_context(around())
                unsteady = frozenset(place for place, times in self.changed_at.items() if times >= OFTEN)
                known = CaptureAssumptions(
                    dict(self.changing),
                    frozenset(self.met),
                    unsteady,
                    turn_by_turn=self._has_many(cache, bound, function),
                )
                version = self.compile_frame(function, bound, known, install)
        except Exception as error:
            if self._is_first_call_of_lazy_module(error):
                return None
            if self.fullgraph and isinstance(error, Unsupported) and error.kind in PROGRAM_ERRORS:
                return _original_to_its_error(function, error)
            if self.fullgraph or isinstance(error, _FOR_THE_PROGRAM) or raised_by_signal_handler(error):
                raise
            self._failed(cache, frame_name(function, bound), error)
            return None
        counters.count("dynamo.compiled_frames")
        self._note_owner(cache, version, function, bound)
        cache.versions = (version, *cache.versions)
        return version

    def _has_many(self, cache: Any, bound: dict[str, object], function: FunctionType) -> bool:
        """Whether half of the versions that an owner may have exist."""
        owner = owner_of(bound, self.receiver, function)
        made = sum(self._was_made_for(owner, version) for version in cache.versions)
        return made * 2 >= self.options.recompile_limit * max(1, self._loops(bound))

    def _is_first_call_of_lazy_module(self, error: Exception) -> bool:
        """Whether lazy modules are about to make their parameters, so that this call runs eagerly."""
        if not isinstance(error, Unsupported) or error.kind != "lazy-module" or self.failures >= _MOST_FAILURES:
            return False
        self.failures += 1
        logs.log("graph_breaks", "%s", error)
        return True

    def _note_owner(self, cache: Any, version: Any, function: FunctionType, bound: dict[str, object]) -> None:
        known = {id(one) for one in cache.versions}
        self.made_for = {key: made_for for key, made_for in self.made_for.items() if key in known}
        owner = owner_of(bound, self.receiver, function)
        self.made_for[id(version)] = owner.noted(by_id=bool(version.followed))  # such a version compiled nothing

    def _rely_on_types(self, cache: Any, function: FunctionType, bound: dict[str, object], made: list[Any]) -> Any:
        """Each call differs, and there was never anything to compile: from now on only the types of arguments are
        guarded."""
        codes = [one.code for one in made if one.followed == _FOLLOWED and one.code is not None]
        frame = CompiledFrame(guards_on_types(bound), codes[0] if codes else None, followed=True, last_resort=True)
        version = self._make_version(cache, function, frame, first_instance(bound))
        self._note_owner(cache, version, function, bound)
        covered = {id(one) for one in made if one.followed == _FOLLOWED}
        cache.versions = (*(one for one in cache.versions if id(one) not in covered), version)
        return version

    def _failed(self, cache: Any, name: str, error: Exception) -> None:
        """Run this call eagerly, and say why once. Later calls run eagerly, too, unless a later attempt may succeed:
        other versions exist, or another thread changed a value during the attempt."""
        self.failures += 1
        hopeful = cache.versions or isinstance(error, VerificationError | ConcurrentModification)
        whole = not hopeful or self.failures >= _MOST_FAILURES
        cache.eager = whole
        _tell_failure(name, error, whole)

    def _make_version(self, cache: Any, function: FunctionType, frame: CompiledFrame, receiver: object) -> Any:
        if frame.code is not None:
            _check_compatible(frame.code, function.__code__)
        dead = _DropDead(cache)
        tree = build_guard_tree(frame.guards, function, dead, closure=closure_of(function.__code__))
        dead.tree = weakref.ref(tree)
        target = None
        if frame.code is not None:
            mark_as_ours(frame.code)
            if self.as_function:
                target = _function_like(function, frame.code)
        return _native.Version(
            tree,
            frame.code,
            target,
            without_strong_references(frame.guards),
            receiver,
            frame.followed + frame.last_resort,
        )

    def _stop_recompiling(self, cache: Any, function: FunctionType, owner: Owner | None) -> None:
        """Give up for `owner`; other owners keep their versions. None (each call has a new owner), or nobody where no
        version was made for an owner: give up for all calls."""
        if owner is None or (owner.is_nobody() and all(self._was_made_for(owner, one) for one in cache.versions)):
            cache.eager = True
            return
        self.given_up = [one for one in self.given_up if not one.is_gone()]
        self.given_up.append(owner.noted(by_id=False))
        self._find_quickly(cache, owner, function)

    def _find_quickly(self, cache: Any, owner: Owner, function: FunctionType) -> None:
        """Insert a version, behind those compiled for this owner, by which C code finds out that the owner was given
        up."""
        guards = owner.guards()
        if guards is not None:
            dead = _DropDead(cache)
            tree = build_guard_tree(guards, function, dead, closure=closure_of(function.__code__))
            dead.tree = weakref.ref(tree)
            version = _native.Version(
                tree, None, None, without_strong_references(guards), owner.instances[0], _GIVEN_UP
            )
            self.made_for[id(version)] = owner.noted(by_id=False)
            cache.versions = (*cache.versions, version)

    def _tell_of_limit(self, cache: Any, name: str, reasons: list[str], owner: Owner | None) -> None:
        whom = " for objects that are gone: each call is given another object,"
        if owner is not None:
            whom = "" if owner.is_nobody() else f" for {owner.described()}"
        limit = self.options.recompile_limit
        text = "\n  ".join(
            [
                f"stator: {name} was compiled {limit} times{whom} (recompile_limit={limit}) and runs "
                "eagerly from now on. It would have to be compiled again because",
                *_first(reasons),
                _WAYS_OUT,
            ]
        )
        counters.count("dynamo.recompile_limit")
        logs.log("recompiles", "%s", text)
        # otherwise eager execution loses nothing
        if self.outdated or any(version.code is not None and not version.followed for version in cache.versions):
            logs.warn_once(f"dynamo.recompile_limit:{name}", text)


def _first(reasons: list[str]) -> list[str]:
    """The latest reasons, and the number of further ones."""
    rest = len(reasons) - _SHOWN_REASONS
    return reasons if rest <= 0 else [*reasons[:_SHOWN_REASONS], f"... and {rest} more"]


def _original_to_its_error(function: FunctionType, reason: Unsupported) -> Any:
    """A version for one call in which the program raises an exception, under fullgraph: the original code raises it. If
    the program handles its exception, the version raises the reason why there is no whole graph."""
    reason.__traceback__ = None  # its frames hold the program's objects
    return _native.Version(build_guard_tree((), function, None), None, partial(_raise_as_eager, function, reason), None)


def _raise_as_eager(function: FunctionType, reason: Unsupported, *args: Any, **kwargs: Any) -> NoReturn:
    function(*args, **kwargs)
    raise reason


_WAYS_OUT = (
    'Ways out: options={"recompile_limit": N} allows more versions; changing numbers in tensors, and sizes padded to a '
    "few lengths, need fewer versions; stator.disable runs the function eagerly without this warning."
)


class _DropDead:
    """Drops a version whose guards can never hold again, because an object they compare with has died."""

    most, followed, given_up = _MOST_LOST, _FOLLOWED, _GIVEN_UP  # module names are gone when the interpreter exits

    def __init__(self, cache: Any) -> None:
        self.cache = weakref.ref(cache)
        self.tree: weakref.ref[Any] | None = None

    def __call__(self, _: object) -> None:
        cache = self.cache()
        tree = self.tree() if self.tree else None
        if cache is None or tree is None:
            return
        lost = [version for version in cache.versions if version.guards is tree and version.followed != self.given_up]
        if any(version.followed == self.followed for version in lost):
            cache.miss.unused = 0 if any(version.hits for version in lost) else cache.miss.unused + 1
        if len(cache.miss.lost) < self.most:  # this may run anywhere in the program; the next miss evaluates it
            cache.miss.lost += [version.detail for version in lost]
        cache.versions = tuple(version for version in cache.versions if version.guards is not tree)


if _native is not None:
    _native.set_own_callback_type(_DropDead)

SHAPE_OF_CODE = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars")
SHAPE_OF_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


def _check_compatible(code: CodeType, original: CodeType) -> None:
    """Replacement code must bind arguments as the original does: the frame hook swaps it into a frame."""
    for name in SHAPE_OF_CODE:
        if getattr(code, name) != getattr(original, name):
            was, now = getattr(original, name), getattr(code, name)
            raise VerificationError(f"compiled code has {name} {now}, not {was}")
    count = bound_count(original)
    if (code.co_flags ^ original.co_flags) & SHAPE_OF_FLAGS or code.co_varnames[:count] != original.co_varnames[:count]:
        raise VerificationError(f"compiled code has other parameters: {code.co_varnames[:count]}")


def _function_like(function: FunctionType, code: CodeType) -> FunctionType:
    # resume code gets its cells with each call; the contents of these cells must not be kept alive
    cells: tuple[CellType, ...] = (function.__closure__ or ())[: len(code.co_freevars)]
    if resumption_of(function.__code__) is not None:
        cells = tuple([CellType() for _ in cells])
    target = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
    target.__kwdefaults__ = function.__kwdefaults__
    target.__qualname__ = function.__qualname__
    target.__module__ = function.__module__
    return target


def frame_name(function: FunctionType, bound: Mapping[str, object]) -> str:
    """The function with its place. For torch's call of a module: the forward of the module's class."""
    code, name = function.__code__, function.__qualname__
    if function.__module__ == "torch.nn.modules.module":
        kind = type(bound.get("self"))
        forward = next(
            (class_dict(cls)["forward"] for cls in resolution_order(kind) if "forward" in class_dict(cls)), None
        )
        if isinstance(forward, FunctionType):
            code, name = forward.__code__, f"{qualified_name(kind)}.forward"
    return f'{name} (File "{code.co_filename}", line {code.co_firstlineno})'


def is_internal(error: Exception) -> bool:
    """Whether the error is a defect of stator. Every other error names its stage or its kind."""
    return not (getattr(error, "stage", None) or getattr(error, "kind", None) or isinstance(error, UsageError))


def _tell_failure(name: str, error: Exception, whole: bool) -> None:
    counters.count("dynamo.failed_frames")
    if is_internal(error):
        counters.count("dynamo.internal_errors")
    unnamed = "what it was given" if isinstance(error, UsageError) else "an internal error"
    stage = getattr(error, "stage", None) or getattr(error, "kind", None) or unnamed
    place = getattr(error, "place", None) or _innermost_place(error)
    where = "" if isinstance(error, StatorError) or place is None else f"\n  {place}"
    when = "" if whole else " for some calls"
    logs.warn_once(
        f"dynamo.failed:{name}",
        f"stator: {name} runs eagerly{when}, because compiling it failed ({stage}): "
        f"{type(error).__name__}: {error}{where}",
    )


def _innermost_place(error: Exception) -> UserPlace | None:
    frames = traceback.extract_tb(error.__traceback__)
    return UserPlace(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else None
