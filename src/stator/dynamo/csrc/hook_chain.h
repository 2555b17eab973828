/* See hook_chain.c. */
#ifndef STATOR_HOOK_CHAIN_H
#define STATOR_HOOK_CHAIN_H

#include "native.h"

struct _PyInterpreterFrame;

/* Run a frame as it would run without our hook. */
PyObject *stator_evaluate_below(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing);
/* Have all frames evaluated by our hook, or by those who were there before and call it, until it is needed no more as often. */
void stator_want_hook(PyInterpreterState *interpreter);
void stator_need_no_hook(PyInterpreterState *interpreter);
/* 1: this thread does not need it, until it says that it wants it again. 0: it goes on. */
int stator_pause_hook(PyInterpreterState *interpreter);
/* `hook` is ours. The beginning of a call that is counted, which ends with stator_hook_release; see native.h. */
void stator_begin_hook(_PyFrameEvalFunction hook, HookThread to);
/* Such calls in flight, over all threads. */
long stator_hook_users(void);
int stator_hook_is_there(PyInterpreterState *interpreter);
/* In a forked child: nobody but this thread wants it. */
void stator_hook_of_this_thread(PyInterpreterState *interpreter);
/* What the interpreter calls as our hook for each frame: `evaluate`, but without any hook where calls are nested deeply. */
PyObject *stator_evaluate_unless_deep(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing,
                                      _PyFrameEvalFunction evaluate);

#endif
