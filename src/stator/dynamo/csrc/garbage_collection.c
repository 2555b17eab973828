/* Puts off the full collections that the interpreter starts by itself, while a program is compiled: each goes through all
 * objects of the process. Young garbage is collected on. gc.collect(), gc.isenabled() and the thresholds are not
 * affected. All under the global interpreter lock. */
#include "native.h"

static unsigned holders = 0;
static Py_ssize_t credit = 0, done_before = 0;

/* As many objects may become old as are old, before a full collection starts nevertheless. */
static PyObject *put_off(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    FullCollections now = full_collections();
    if (holders++ == 0 && now.waiting) {
        credit = now.old;
        done_before = now.done;
        *now.waiting -= credit;
    }
    Py_RETURN_NONE;
}

static void take_credit_back(void)
{
    FullCollections now = full_collections();
    if (now.done == done_before && now.waiting) { /* a full collection sets the count to zero */
        *now.waiting += credit;
    }
    credit = 0;
}

static PyObject *admit(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    if (holders > 0 && --holders == 0) {
        take_credit_back();
    }
    Py_RETURN_NONE;
}

static PyObject *admit_in_child(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    if (holders > 0) {
        holders = 0;
        take_credit_back();
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"put_off_full_collections", put_off, METH_NOARGS, "Full collections start by themselves later, until admitted as often."},
    {"admit_full_collections", admit, METH_NOARGS, "The end of one put_off_full_collections()."},
    {"admit_full_collections_in_child", admit_in_child, METH_NOARGS, "The end of all of them, in a forked process."},
    {0},
};

int stator_garbage_collection_add_to(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
