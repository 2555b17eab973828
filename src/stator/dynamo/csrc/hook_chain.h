/* See hook_chain.c. */
#ifndef STATOR_HOOK_CHAIN_H
#define STATOR_HOOK_CHAIN_H

#include <Python.h>

struct _PyInterpreterFrame;

/* Run a frame as it would run without our hook. */
PyObject *stator_evaluate_below(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing);
/* Have all frames evaluated by `hook`, or by those who were there before and call it. */
void stator_install_hook(PyInterpreterState *interpreter, _PyFrameEvalFunction hook);
/* Undo that, where nobody has come over it. */
void stator_remove_hook(PyInterpreterState *interpreter, _PyFrameEvalFunction hook);

#endif
