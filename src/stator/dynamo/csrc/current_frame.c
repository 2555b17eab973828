/* What the frame at work holds that it should not, or does not hold yet: the arguments of a call that it makes, and the
 * cells of its own variables. The only reads and writes of a running frame's variables and stack, apart from the hook's. */
#include "current_frame.h"

/* Cells of a closure beyond those of free variables are those of the frame's own variables, the last ones before these.
 * (The interpreter's own instruction copies cells of free variables only.) */
void stator_take_own_cells(void)
{
    Frame *frame = thread_frame(PyThreadState_Get());
    PyObject *function = frame ? frame_function(frame) : NULL;
    PyObject *closure = function && PyFunction_Check(function) ? PyFunction_GET_CLOSURE(function) : NULL;
    if (!closure) {
        return;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    Py_ssize_t const free = code->co_nfreevars, own = PyTuple_GET_SIZE(closure) - free;
    for (Py_ssize_t i = 0; i < own; i++) {
        frame_set(frame, code->co_nlocalsplus - free - own + i, Py_NewRef(PyTuple_GET_ITEM(closure, free + i)));
    }
}

/* Take arguments out of the caller's hands, where they lie on the stack of the frame that calls: its instruction lets go of
 * whatever lies there when the call is over. What a frame inside deletes is to be gone then, not later. */
void stator_caller_forgets(PyObject *const *args, Py_ssize_t count)
{
    Frame *frame = thread_frame(PyThreadState_Get());
    Py_ssize_t const first = frame ? frame_find_arguments(frame, args, count) : -1;
    for (Py_ssize_t i = 0; first >= 0 && i < count; i++) {
        frame_set(frame, first + i, Py_NewRef(Py_None));
    }
}
