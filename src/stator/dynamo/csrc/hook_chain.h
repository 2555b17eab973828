/* The installation of the frame hook (hook_chain.c). */
#ifndef STATOR_HOOK_CHAIN_H
#define STATOR_HOOK_CHAIN_H

#include "cpython_compat.h"

/* Per-thread state of the hook. */
typedef struct {
    PyObject *callback;        /* borrowed from the innermost call_with_hook; NULL: off in this thread */
    PyCodeObject *let_through; /* run the next frame of this code as it is */
} HookThread;

extern __thread HookThread stator_hook_thread;

/* Run a frame as it would run without our hook. */
PyObject *stator_evaluate_below(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing);
/* Request the hook: it evaluates all frames, directly or below other evaluators, until each request is withdrawn. */
void stator_want_hook(PyInterpreterState *interpreter);
void stator_need_no_hook(PyInterpreterState *interpreter);
/* Withdraw this thread's request for a while. 1: withdrawn; 0: the request stays. */
int stator_pause_hook(PyInterpreterState *interpreter);
/* Set the function that is the hook. */
void stator_set_hook(_PyFrameEvalFunction hook);
/* Set the thread's hook for longer than a moment; for a moment, code sets `stator_hook_thread` itself. */
void stator_switch_hook(HookThread to);
/* Like stator_switch_hook, at the beginning and the end of a counted call. */
void stator_hook_acquire(HookThread to);
void stator_hook_release(HookThread to);
/* Call with the hook on for `callback`; with callback NULL, off. `skipped`: the code whose next frame runs as it is. */
PyObject *stator_call_hooked(PyObject *callback, PyCodeObject *skipped, PyObject *function, PyObject *const *args,
                             Py_ssize_t count, PyObject *keywords);
/* The number of frames that the hook has been asked about, over all threads. */
unsigned long long stator_frames_seen(void);
/* The number of running calls of this kind, over all threads. */
long stator_hook_users(void);
int stator_hook_is_there(PyInterpreterState *interpreter);
/* The interpreter's entry to the hook: `evaluate`, or no hook at all if calls are nested deeply. */
PyObject *stator_evaluate_unless_deep(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing,
                                      _PyFrameEvalFunction evaluate);

#endif
