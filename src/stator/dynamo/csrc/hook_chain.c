/* The frame hook in the chain of frame evaluators: the interpreter knows a single evaluator, and each evaluator calls
 * the one installed before it. Such a chain must not become a ring. This file also counts who needs the hook;
 * frame_hook.c defines what it does. */
#include "hook_chain.h"

__thread HookThread stator_hook_thread = {NULL, NULL};

static _PyFrameEvalFunction ours = NULL;
static _PyFrameEvalFunction below = NULL;      /* the evaluator that was installed before ours */
static _PyFrameEvalFunction covered_by = NULL; /* the evaluator above ours when ours was to be removed; it calls ours
                                                  forever */

/* The hook is installed while a thread has a callback, and removed while every thread runs code that needs none, such as
 * compiled code: under any hook the interpreter neither inlines calls nor specializes call instructions. */
static long wanting = 0; /* number of requests for the hook, over all threads */
static long users = 0; /* running calls that have a callback, over all threads */
static long suspended = 0; /* running frames that keep the hook removed despite requests, over all threads */

PyObject *stator_evaluate_below(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing)
{
    /* an evaluator that was below and has put itself above again has had this frame already: it has just called us */
    if (!below || below == _PyInterpreterState_GetEvalFrameFunc(PyThreadState_GetInterpreter(thread))) {
        return _PyEval_EvalFrameDefault(thread, frame, throwing);
    }
    return below(thread, frame, throwing);
}

static void install(PyInterpreterState *interpreter)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current == ours || (covered_by && current == covered_by)) {
        return;
    }
    below = current == _PyEval_EvalFrameDefault ? NULL : current;
    covered_by = NULL;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, ours);
}

static void take_away(PyInterpreterState *interpreter)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    covered_by = current == ours || current == _PyEval_EvalFrameDefault ? NULL : current;
    if (current == ours) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, below ? below : _PyEval_EvalFrameDefault);
    }
}

void stator_want_hook(PyInterpreterState *interpreter)
{
    if (wanting++ == 0 && !suspended) {
        install(interpreter);
    }
}

void stator_need_no_hook(PyInterpreterState *interpreter)
{
    if (--wanting == 0 && !suspended) {
        take_away(interpreter);
    }
}

int stator_pause_hook(PyInterpreterState *interpreter)
{
    if (below || _PyInterpreterState_GetEvalFrameFunc(interpreter) != ours) {
        return 0; /* other evaluators must get every frame */
    }
    stator_need_no_hook(interpreter);
    return 1;
}

void stator_switch_hook(HookThread to)
{
    int before = stator_hook_thread.callback != NULL, after = to.callback != NULL;
    stator_hook_thread = to;
    if (after && !before) {
        stator_want_hook(PyInterpreterState_Get());
    } else if (before && !after) {
        stator_need_no_hook(PyInterpreterState_Get());
    }
}

void stator_set_hook(_PyFrameEvalFunction hook)
{
    ours = hook;
}

void stator_hook_acquire(HookThread to)
{
    users++;
    stator_switch_hook(to);
}

void stator_hook_release(HookThread to)
{
    stator_switch_hook(to);
    users--;
}

PyObject *stator_call_hooked(PyObject *callback, PyCodeObject *skipped, PyObject *function, PyObject *const *args,
                             Py_ssize_t count, PyObject *keywords)
{
    HookThread saved = stator_hook_thread;
    stator_hook_acquire((HookThread){callback, skipped});
    PyObject *result = PyObject_Vectorcall(function, args, count, keywords);
    stator_hook_release(saved);
    return result;
}

int stator_hook_is_there(PyInterpreterState *interpreter)
{
    return ours && _PyInterpreterState_GetEvalFrameFunc(interpreter) == ours;
}

long stator_hook_users(void)
{
    return users;
}

/* ---- deep recursion ---- */

/* Under a hook each Python call is also a call of the C evaluator. CPython 3.12 and later limit these, and no version's
 * C stack has room for as many as a raised recursion limit allows. So deep recursion runs without the hook despite
 * requests, unless the chain has other evaluators, which must get every frame. */
#define DEEP 200

static __thread int depth = 0; /* nested frames of this thread that are evaluated under the hook */

static __thread long room = 0; /* the evaluator's room when the first of these frames began */

/* Calls that compiled code makes from C are not counted in `depth`, but use the room as well. */
static int is_deep(PyThreadState *thread)
{
    long const left = thread_evaluator_room(thread);
    if (depth == 0) {
        room = left;
    }
    return depth >= DEEP || left < room / 2;
}

static void resume(PyInterpreterState *interpreter)
{
    if (--suspended == 0 && wanting > 0) {
        install(interpreter);
    }
}

PyObject *stator_evaluate_unless_deep(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throwing,
                                      _PyFrameEvalFunction evaluate)
{
    PyInterpreterState *interpreter = PyThreadState_GetInterpreter(thread);
    if (!is_deep(thread) || below || _PyInterpreterState_GetEvalFrameFunc(interpreter) != ours) {
        depth++;
        PyObject *result = evaluate(thread, frame, throwing);
        depth--;
        return result;
    }
    HookThread mine = stator_hook_thread;
    stator_hook_thread = (HookThread){NULL, NULL};
    if (suspended++ == 0) {
        take_away(interpreter);
    }
    PyObject *result = _PyEval_EvalFrameDefault(thread, frame, throwing);
    resume(interpreter);
    stator_hook_thread = mine;
    return result;
}
