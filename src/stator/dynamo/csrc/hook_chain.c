/* The frame hook among others: the interpreter knows one evaluator of frames, and who puts his there calls the one before.
 * Such a chain must not become a ring. What our hook does is not known here. */
#include "native.h"
#include "hook_chain.h"

static _PyFrameEvalFunction below = NULL;      /* who was there when ours was installed */
static _PyFrameEvalFunction covered_by = NULL; /* who lay over ours when it was to be removed, and calls it for good */

PyObject *stator_evaluate_below(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing)
{
    /* one that was below and has put itself above us again has had this frame already: it has just called us */
    if (!below || below == _PyInterpreterState_GetEvalFrameFunc(PyThreadState_GetInterpreter(thread))) {
        return _PyEval_EvalFrameDefault(thread, frame, throwing);
    }
    return below(thread, frame, throwing);
}

void stator_install_hook(PyInterpreterState *interpreter, _PyFrameEvalFunction hook)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current == hook || (covered_by && current == covered_by)) {
        return;
    }
    below = current == _PyEval_EvalFrameDefault ? NULL : current;
    covered_by = NULL;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
}

void stator_remove_hook(PyInterpreterState *interpreter, _PyFrameEvalFunction hook)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    covered_by = current == hook || current == _PyEval_EvalFrameDefault ? NULL : current;
    if (current == hook) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, below ? below : _PyEval_EvalFrameDefault);
    }
}
