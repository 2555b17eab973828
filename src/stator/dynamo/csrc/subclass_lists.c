/* The lists of subclasses that classes keep: what captured code makes is stood for by a class that the program must not
 * find there (values/made_classes.py). */
#include "native.h"

#ifndef _Py_TPFLAGS_STATIC_BUILTIN
#define _Py_TPFLAGS_STATIC_BUILTIN (1UL << 1)
#endif

/* (class, base): the base does not list the class any more. The list is a dictionary by address; what removes a class when
 * it goes does not mind that it is missing. From 3.12 the interpreter keeps the lists of its own static classes elsewhere:
 * those stay as they are. */
static PyObject *unlist_subclass(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyTypeObject *cls, *base;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &cls, &PyType_Type, &base)) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030C0000
    if (PyType_HasFeature(base, _Py_TPFLAGS_STATIC_BUILTIN)) {
        Py_RETURN_NONE;
    }
#endif
    PyObject *listed = (PyObject *)base->tp_subclasses;
    if (!listed || !PyDict_CheckExact(listed)) {
        Py_RETURN_NONE;
    }
    PyObject *key = PyLong_FromVoidPtr(cls);
    if (!key) {
        return NULL;
    }
    int there = PyDict_Contains(listed, key);
    int failed = there < 0 || (there && PyDict_DelItem(listed, key) < 0);
    Py_DECREF(key);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"unlist_subclass", unlist_subclass, METH_VARARGS, "unlist_subclass(cls, base): base.__subclasses__() leaves cls out."},
    {0},
};

int stator_subclass_lists_add_to(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
