/* What the frame at work holds that it should not, or does not hold yet: the arguments of a call that it makes, and the
 * cells of its own variables. The only reads and writes of a running frame's variables and stack, apart from the hook's. */
#include "native.h"

#define Py_BUILD_CORE
#undef _PyGC_FINALIZED
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#if PY_VERSION_HEX >= 0x030D0000
#define CURRENT_FRAME(thread) ((thread)->current_frame)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#define FRAME_CODE(frame) ((frame)->f_executable)
#elif PY_VERSION_HEX >= 0x030C0000
#define CURRENT_FRAME(thread) ((thread)->cframe->current_frame)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#define FRAME_CODE(frame) ((PyObject *)(frame)->f_code)
#else
#define CURRENT_FRAME(thread) ((thread)->cframe->current_frame)
#define FRAME_FUNCTION(frame) ((PyObject *)(frame)->f_func)
#define FRAME_CODE(frame) ((PyObject *)(frame)->f_code)
#endif

/* Cells of a closure beyond those of free variables are those of the frame's own variables, the last ones before these.
 * (The interpreter's own instruction copies cells of free variables only.) */
void stator_take_own_cells(void)
{
    struct _PyInterpreterFrame *frame = CURRENT_FRAME(PyThreadState_Get());
    PyObject *function = frame ? FRAME_FUNCTION(frame) : NULL;
    PyObject *closure = function && PyFunction_Check(function) ? PyFunction_GET_CLOSURE(function) : NULL;
    if (!closure) {
        return;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    Py_ssize_t const free = code->co_nfreevars, own = PyTuple_GET_SIZE(closure) - free;
    for (Py_ssize_t i = 0; i < own; i++) {
        PyObject **place = &frame->localsplus[code->co_nlocalsplus - free - own + i];
        Py_XSETREF(*place, Py_NewRef(PyTuple_GET_ITEM(closure, free + i)));
    }
}

/* Take arguments out of the caller's hands, where they lie on the stack of the frame that calls: its instruction lets go of
 * whatever lies there when the call is over. What a frame inside deletes is to be gone then, not later. */
void stator_caller_forgets(PyObject *const *args, Py_ssize_t count)
{
    struct _PyInterpreterFrame *frame = CURRENT_FRAME(PyThreadState_Get());
    if (!frame || !PyCode_Check(FRAME_CODE(frame))) {
        return;
    }
    PyCodeObject *code = (PyCodeObject *)FRAME_CODE(frame);
    PyObject **stack = (PyObject **)args, **bottom = frame->localsplus + code->co_nlocalsplus;
    if (stack < bottom || stack + count > bottom + code->co_stacksize) {
        return;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_SETREF(stack[i], Py_NewRef(Py_None));
    }
}
