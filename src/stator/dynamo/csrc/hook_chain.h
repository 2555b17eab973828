/* See hook_chain.c. */
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
/* Have all frames evaluated by our hook, or by those who were there before and call it, until it is needed no more as often. */
void stator_want_hook(PyInterpreterState *interpreter);
void stator_need_no_hook(PyInterpreterState *interpreter);
/* 1: this thread does not need it, until it says that it wants it again. 0: it goes on. */
int stator_pause_hook(PyInterpreterState *interpreter);
/* `hook` is ours. */
void stator_set_hook(_PyFrameEvalFunction hook);
/* What is on in this thread from now on, for more than a moment: for a moment, `stator_hook_thread` is set by itself. */
void stator_switch_hook(HookThread to);
/* Like stator_switch_hook, at the beginning and at the end of a call that is counted. */
void stator_hook_acquire(HookThread to);
void stator_hook_release(HookThread to);
/* Call with the hook on for `callback`; with callback NULL, off. `skipped`: the code whose next frame runs as it is. */
PyObject *stator_call_hooked(PyObject *callback, PyCodeObject *skipped, PyObject *function, PyObject *const *args,
                             Py_ssize_t count, PyObject *keywords);
/* Such calls in flight, over all threads. */
long stator_hook_users(void);
int stator_hook_is_there(PyInterpreterState *interpreter);
/* In a forked child: nobody but this thread wants it. */
void stator_hook_of_this_thread(PyInterpreterState *interpreter);
/* What the interpreter calls as our hook for each frame: `evaluate`, but without any hook where calls are nested deeply. */
PyObject *stator_evaluate_unless_deep(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing,
                                      _PyFrameEvalFunction evaluate);

#endif
