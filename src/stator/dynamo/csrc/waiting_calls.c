/* The rest of a function that a generator had called, in the middle of which a graph ended: it waits on the stack of the
 * generator, and runs when that goes on. How a generator gets there is codegen/generator_frames.py's; what a Pending is, continuation.c's. */
#include "waiting_calls.h"

#include "continuation.h"
#include "native.h"

/* Of what a generator holds, a new reference: the object; for what is still to run, (Continuation, *values). */
PyObject *stator_shown_call(PyObject *held)
{
    if (!Py_IS_TYPE(held, &PendingType)) {
        return Py_NewRef(held);
    }
    Pending *pending = (Pending *)held;
    PyObject *shown = PyTuple_New(1 + Py_SIZE(pending));
    for (Py_ssize_t i = -1; shown && i < Py_SIZE(pending); i++) {
        PyObject *item = i < 0 ? (PyObject *)pending->to : pending->values[i];
        PyTuple_SET_ITEM(shown, i + 1, Py_NewRef(item ? item : Py_None));
    }
    return shown;
}

/* What a function gave that was put back in the middle: the same, with all that is still to run in one call. */
static PyObject *call_to_wait(PyObject *Py_UNUSED(self), PyObject *result)
{
    if (!Py_IS_TYPE(result, &PendingType) || !((Pending *)result)->inner) {
        return Py_NewRef(result);
    }
    PyObject *whole = stator_joined((Pending *)result);
    if (whole || !PyErr_Occurred()) {
        return whole;
    }
    PyObject *raised = exception_take(); /* interrupted: what is open in the functions is left all the same */
    whole = stator_joined((Pending *)result);
    if (!whole) {
        Py_XDECREF(raised);
        return NULL;
    }
    PyObject *given = stator_go_on(stator_make_call((Pending *)whole, 0, raised));
    Py_DECREF(whole);
    return given;
}

static PyObject *call_that_waited(PyObject *Py_UNUSED(self), PyObject *waiting)
{
    return stator_go_on(Py_NewRef(waiting));
}

/* (what waited, an exception that was thrown into the generator): raised where the function goes on. */
static PyObject *call_that_fails(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *waiting, *error;
    if (!PyArg_ParseTuple(args, "OO", &waiting, &error)) {
        return NULL;
    }
    if (!Py_IS_TYPE(waiting, &PendingType) || !PyExceptionInstance_Check(error)) {
        PyErr_SetString(PyExc_SystemError, "stator: nothing waits in a generator");
        return NULL;
    }
    return stator_go_on(stator_make_call((Pending *)waiting, 0, Py_NewRef(error)));
}

static PyMethodDef methods[] = {
    {"call_to_wait", call_to_wait, METH_O, "call_to_wait(what is still to run of frames) -> the same, as that of one."},
    {"call_that_waited", call_that_waited, METH_O, "call_that_waited(what is still to run) -> the result."},
    {"call_that_fails", call_that_fails, METH_VARARGS, "call_that_fails(what is still to run, exception): it is raised there."},
    {0},
};

int stator_waiting_calls_add_to(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
