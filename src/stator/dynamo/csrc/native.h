/* What the sources of stator.dynamo._native share: the guard tree, a cache of compiled versions, the entry, the frame hook.
 * Nothing here knows torch's headers; tensors are read through runtime/csrc/tensor_impl.h. */
#ifndef STATOR_NATIVE_H
#define STATOR_NATIVE_H

#include "cpython_compat.h"
#include "tensor_impl.h"

/* ---- guard tree (guards.c) ---- */

extern PyTypeObject GuardTreeType;

/* Why an evaluation failed; only filled when asked for. */
typedef struct {
    Py_ssize_t guard; /* ordinal of the guard in the list that the tree was built from; -1: unknown */
    PyObject *found;  /* owned: what the source holds now; NULL: it could not be read */
} Failure;

/* 1: all guards hold; 0: one fails, without an exception unless it is an interrupt and the like. `locals` are borrowed, in the order of co_varnames. */
int stator_guards_hold(PyObject *tree, PyObject *const *locals, Py_ssize_t count, PyObject *function, Failure *failure);

int stator_guards_add_to(PyObject *module);

/* ---- torch's thread-wide and process-wide state (state.c) ---- */

typedef struct {
    uint64_t dispatch_keys[2];
    int64_t mode_stack;
    int32_t num_threads;
    uint8_t autograd, default_dtype, torch_function, deterministic;
} StateSnapshot;

int stator_state_ready(void);
void stator_state_read(StateSnapshot *snapshot);
int stator_state_is(StateSnapshot const *expected);
int stator_state_add_to(PyObject *module);

/* ---- versions and caches (cache.c) ---- */

/* One compiled version of a frame. */
typedef struct {
    PyObject_HEAD
    PyObject *guards; /* GuardTree */
    PyObject *code;   /* code object or None: run the original */
    PyObject *target; /* callable that takes the original's arguments, or None: run the original */
    PyObject *detail; /* for Python: what explanations need */
    void const *receiver; /* address of the object that it was made for, or NULL; only to try it earlier */
    unsigned long long hits;
    signed char followed; /* above 0: nothing was replaced, without code, what the original calls runs as it is, too; 2: a
                             last resort; -1: one as well, of what was given up: what the original calls is looked at */
    char silent; /* it does not tell of the lines that it stands for: not to run where somebody is told of lines */
} Version;

/* All versions of a frame, most recently used first, and what to do when none fits. */
typedef struct {
    PyObject_HEAD
    PyObject *versions; /* tuple of Version */
    PyObject *miss;     /* (cache, function, {name: value}) -> Version or None (run the original) */
    PyObject *code;     /* weak reference to the original code object */
    PyObject *weakrefs;
    int receiver; /* which local variable is the receiver of a method, or the first argument; or -1 */
    char eager; /* no more lookups: run the original */
    char busy;  /* the miss callback is at work, in this thread or another one */
} Cache;

extern PyTypeObject VersionType, CacheType;

/* New reference to the version that fits, or NULL: with an exception only if it is an interrupt and the like. */
Version *stator_cache_lookup(Cache *cache, PyObject *const *locals, Py_ssize_t count, PyObject *function);
/* Ask the miss callback, unless there is an exception. New reference; NULL without exception: run the original; NULL with exception: pass it on. */
Version *stator_cache_miss(Cache *cache, PyCodeObject *code, PyObject *const *locals, PyObject *function);
void stator_forget_other_compilations(void);
int stator_cache_add_to(PyObject *module);

/* ---- the entry (entry.c) ---- */

/* Bound values (in the order of co_varnames) as (positional tuple, keyword dict), new references, for an ordinary call.
 * -1: with an exception; what was made is left in place. */
int stator_unbind(PyCodeObject *code, PyObject *const *values, PyObject **positional, PyObject **keywords);
int stator_entry_add_to(PyObject *module);

/* ---- going on behind a graph break (continuation.c) ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* goes on behind the break; without its closure, if its code has free variables */
    PyObject *cache;    /* Cache of that function; NULL: it runs as it is */
    PyObject *callback; /* compiles the frames that start while the function runs as it is; NULL: nothing is compiled */
    PyObject *returned; /* called without arguments when the function has returned, as it is; or NULL */
    int cells;          /* so many that each call brings are its closure */
    PyObject *join; /* this frame called another one that broke: (self, *those of the inner frames) -> the Continuation
                       that runs them all; NULL: it called none */
    PyObject *joined; /* dict: that, by those of the inner frames */
    PyObject *weakrefs;
} Continuation;

/* A call that was not made yet. It owns the values: cells of the closure first, then the arguments. */
typedef struct {
    PyObject_VAR_HEAD
    Continuation *to;
    PyObject *inner; /* Pending of the frame that this one called, which gives the result of the call; or NULL */
    PyObject *values[1];
} Pending;

extern PyTypeObject PendingType;
/* `as_it_is`: there is nothing to compile in it. `raised`: to be raised where it goes on, or NULL; taken over. */
PyObject *stator_make_call(Pending *pending, int as_it_is, PyObject *raised);
/* A Pending of one function, for that of a frame together with those that it had called. */
PyObject *stator_joined(Pending *outermost);
/* Takes what emitted code returned (or NULL) and gives what the frame returns: runs what is to run behind its breaks. */
PyObject *stator_go_on(PyObject *result);
int stator_continuation_add_to(PyObject *module);

/* ---- exceptions that are raised where a frame goes on (deferred_exceptions.c) ---- */

PyObject *stator_take_raised(void);
int stator_raise_later(PyObject *error);
PyObject *stator_take_waiting(void);
void stator_raise_now(PyObject const *error, PyObject **result);
int stator_deferred_exceptions_add_to(PyObject *module);
void stator_tell_what_was_read(PyObject *owner, PyObject *name);
int stator_finishing_add_to(PyObject *module); /* finishing.c */
int stator_generators_add_to(PyObject *module); /* generators.c */
PyObject *stator_shown_call(PyObject *held);     /* waiting_calls.c */
int stator_waiting_calls_add_to(PyObject *module);

/* ---- what the frame at work holds (current_frame.c) ---- */

void stator_take_own_cells(void);
void stator_caller_forgets(PyObject *const *args, Py_ssize_t count);

/* ---- the frame hook (frame_hook.c) ---- */

/* Per-thread state of the hook. */
typedef struct {
    PyObject *callback;           /* borrowed from the innermost call_with_hook; NULL: off in this thread */
    PyCodeObject *let_through;    /* run the next frame of this code as it is */
} HookThread;

extern __thread HookThread stator_hook_thread;
extern __thread int stator_entries_off; /* above 0: entries in this thread run their originals */
PyObject *stator_call_hooked(PyObject *callback, PyObject *function, PyObject *const *args, Py_ssize_t count);
/* What is on in this thread from now on, for more than a moment: for a moment, `stator_hook_thread` is set by itself. */
void stator_switch_hook(HookThread to);
/* The same for a call that is to be counted, and at its end. -1: with an exception. */
int stator_hook_acquire(HookThread to);
void stator_hook_release(HookThread to);
int stator_hook_add_to(PyObject *module);
int stator_steps_add_to(PyObject *module); /* hook_steps.c */

/* ---- running originals for a while (switches.c) ---- */

/* 1: compiled functions that are called now in this thread and context run their originals. May run Python code where a
 * trace function is seen for the first time; never leaves an exception. */
int stator_runs_originals(void);
/* 1: fewer than so many bytes are left of this thread's C stack. A compiled function takes some of it where eager Python
 * takes none, so that a deep recursion, let through by sys.setrecursionlimit, must be stopped before it is used up. */
int stator_stack_is_low(size_t needed);
#define STATOR_STACK_FOR_CALLS (128 * 1024)
#define STATOR_STACK_FOR_COMPILING (1024 * 1024)
/* 1: somebody is told of the lines that run in this thread. */
int stator_lines_traced(void);
int stator_switches_add_to(PyObject *module);

/* Number of values that a call binds: positional, keyword-only, *args, **kwargs. */
static inline int stator_bound_count(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0)
        + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

#endif
