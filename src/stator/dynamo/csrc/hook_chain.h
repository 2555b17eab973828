/* See hook_chain.c. */
#ifndef STATOR_HOOK_CHAIN_H
#define STATOR_HOOK_CHAIN_H

#include <Python.h>

struct _PyInterpreterFrame;

/* Run a frame as it would run without our hook. */
PyObject *stator_evaluate_below(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing);
/* Have all frames evaluated by `hook`, or by those who were there before and call it, until it is needed no more as often. */
void stator_want_hook(PyInterpreterState *interpreter, _PyFrameEvalFunction hook);
void stator_need_no_hook(PyInterpreterState *interpreter, _PyFrameEvalFunction hook);
/* How many want it, over all threads. */
long stator_hook_users(void);
/* In a forked child: nobody but this thread wants it. */
void stator_hook_of_this_thread(PyInterpreterState *interpreter, _PyFrameEvalFunction hook);
/* What the interpreter calls as `hook` for each frame: `evaluate`, but without any hook where calls are nested deeply. */
PyObject *stator_evaluate_unless_deep(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing,
                                      _PyFrameEvalFunction hook, _PyFrameEvalFunction evaluate);

#endif
