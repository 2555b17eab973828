/* OwnCodeExit: the exit from a frame's own code at a graph break. If nothing compiled runs behind it, the exit only
 * costs time: after some such calls the frame runs on instead. Now and then it takes the exit again, to see whether
 * there is something to compile by now. */
#include "own_code_exit.h"

#include "native.h"

#include <stddef.h>

#define CALLS_ENOUGH 16
#define CALLS_BETWEEN 64 /* that run on, between two that take the exit */

int stator_exit_is_watched(OwnCodeExit const *exit)
{
    return exit && exit->calls >= 0;
}

void stator_exit_ended(OwnCodeExit *exit, int own)
{
    exit->calls = !own ? -1 : exit->calls < CALLS_ENOUGH ? exit->calls + 1 : exit->calls;
}

static PyObject *exit_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords)
{
    PyObject *pending = PyObject_Vectorcall(((OwnCodeExit *)self)->to, args, nargsf, keywords);
    if (pending) {
        stator_note_exit(pending, (OwnCodeExit *)self);
    }
    return pending;
}

static PyObject *exit_runs_on(PyObject *object, void *Py_UNUSED(closure))
{
    OwnCodeExit *self = (OwnCodeExit *)object;
    if (self->calls < CALLS_ENOUGH) {
        Py_RETURN_FALSE;
    }
    if (self->calls == CALLS_ENOUGH + CALLS_BETWEEN) {
        self->calls = CALLS_ENOUGH;
        Py_RETURN_FALSE;
    }
    self->calls++;
    Py_RETURN_TRUE;
}

static PyObject *exit_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"to", NULL};
    PyObject *to;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &to)) {
        return NULL;
    }
    OwnCodeExit *self = (OwnCodeExit *)type->tp_alloc(type, 0);
    if (self) {
        self->vectorcall = exit_vectorcall;
        self->to = Py_NewRef(to);
    }
    return (PyObject *)self;
}

static int exit_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((OwnCodeExit *)self)->to);
    return 0;
}

static int exit_clear(PyObject *Py_UNUSED(self))
{
    return 0; /* a running call needs the Continuation, which breaks the cycle itself */
}

static void exit_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((OwnCodeExit *)self)->to);
    Py_TYPE(self)->tp_free(self);
}

static PyGetSetDef exit_getset[] = {
    {"runs_on", exit_runs_on, NULL, "whether this call of the frame runs on instead of taking the exit", NULL},
    {0},
};

static PyTypeObject OwnCodeExitType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.OwnCodeExit",
    .tp_doc = "OwnCodeExit(to): the exit from a frame's own code at a break, called like the Continuation `to`.",
    .tp_basicsize = sizeof(OwnCodeExit),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(OwnCodeExit, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = exit_new,
    .tp_dealloc = exit_dealloc,
    .tp_traverse = exit_traverse,
    .tp_clear = exit_clear,
    .tp_getset = exit_getset,
};

int stator_own_code_exit_add_to(PyObject *module)
{
    return PyModule_AddType(module, &OwnCodeExitType);
}
