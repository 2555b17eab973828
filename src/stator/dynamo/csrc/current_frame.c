/* Corrections to the running frame: it drops the arguments of its current call, and takes the cells of its own
 * variables. These are the only accesses to a running frame's variables and stack, apart from the hook's. */
#include "current_frame.h"

/* Cells of a closure beyond the free variables belong to the frame's own variables, the last ones before the free
 * variables. (The interpreter's own instruction copies cells of free variables only.) */
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

/* Remove the arguments from the calling frame's stack, whose instruction would release them only after the call. An
 * object that an inner frame deletes has to die then, not later. */
void stator_caller_forgets(PyObject *const *args, Py_ssize_t count)
{
    Frame *frame = thread_frame(PyThreadState_Get());
    Py_ssize_t const first = frame ? frame_find_arguments(frame, args, count) : -1;
    for (Py_ssize_t i = 0; first >= 0 && i < count; i++) {
        frame_set(frame, first + i, Py_NewRef(Py_None));
    }
}
