/* An exception that was raised while a resume function was prepared or compiled. It is raised where the frame resumes,
 * inside of the open `try` and `with` blocks. continuation.c decides when that happens. */
#include "deferred_exceptions.h"

#include "native.h"

static __thread PyObject *waiting = NULL; /* owned */

int stator_raise_later(PyObject *error)
{
    if (error) {
        Py_XSETREF(waiting, error);
    }
    return error != NULL;
}

PyObject *stator_take_waiting(void)
{
    PyObject *error = waiting;
    waiting = NULL;
    return error;
}

static void raise_waiting(void)
{
    exception_set(stator_take_waiting());
}

void stator_raise_now(PyObject const *error, PyObject **result)
{
    if (error && waiting == error) {
        Py_CLEAR(*result);
        raise_waiting();
    }
}

/* The last call of resume code before the user's instructions, with the stack restored. */
static PyObject *going_on(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    if (waiting) {
        raise_waiting();
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *check_signals(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *raise_later(PyObject *Py_UNUSED(self), PyObject *error)
{
    if (!PyExceptionInstance_Check(error)) {
        PyErr_SetString(PyExc_TypeError, "an exception is expected");
        return NULL;
    }
    stator_raise_later(Py_NewRef(error));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"raise_later", raise_later, METH_O,
     "raise_later(error), from compiled code only: whose frame begins anew at once, and raises it where it goes on."},
    {"check_signals", check_signals, METH_NOARGS, "check_signals(): raises what a handler of a signal raises."},
    {"going_on", going_on, METH_NOARGS,
     "going_on(): the last call before a function goes on behind a break; raises what is waiting."},
    {0},
};

int stator_deferred_exceptions_add_to(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
