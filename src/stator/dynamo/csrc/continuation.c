/* Continuation: what emitted code calls at a graph break, and whose result it returns at once. The call does not run the
 * rest of the frame: it notes what is to run, and whoever called the emitted code runs that when the emitted code has
 * returned. So a frame that breaks again and again is one Python frame at any time, and a loop is a loop. */
#include "native.h"

#define Py_BUILD_CORE
#undef _PyGC_FINALIZED
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#if PY_VERSION_HEX >= 0x030D0000
#define CURRENT_FRAME(thread) ((thread)->current_frame)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#elif PY_VERSION_HEX >= 0x030C0000
#define CURRENT_FRAME(thread) ((thread)->cframe->current_frame)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#else
#define CURRENT_FRAME(thread) ((thread)->cframe->current_frame)
#define FRAME_FUNCTION(frame) ((PyObject *)(frame)->f_func)
#endif

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* goes on behind the break; without its closure, if its code has free variables */
    PyObject *cache;    /* Cache of that function; NULL: it runs as it is */
    PyObject *callback; /* compiles the frames that start while the function runs as it is; NULL: nothing is compiled */
    PyObject *returned; /* called without arguments when the function has returned, as it is; or NULL */
    int cells;          /* so many that each call brings are its closure */
} Continuation;

/* A call that was not made yet. It owns the values: cells of the closure first, then the arguments. */
typedef struct {
    PyObject_VAR_HEAD
    Continuation *to;
    PyObject *values[1];
} Pending;

static PyTypeObject ContinuationType, PendingType;

/* The call that is being made in this thread, whose arguments belong to the new frame as soon as that has begun. */
static __thread Pending *handed_over = NULL;

static PyObject *continuation_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords)
{
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    int free = ((Continuation *)self)->cells;
    for (int i = 0; i < free; i++) {
        if (i >= count || !PyCell_Check(args[i])) {
            PyErr_Format(PyExc_TypeError, "%d cells of the closure come first", free);
            return NULL;
        }
    }
    Pending *pending = PyObject_GC_NewVar(Pending, &PendingType, count);
    if (!pending) {
        return NULL;
    }
    pending->to = (Continuation *)Py_NewRef(self);
    for (Py_ssize_t i = 0; i < count; i++) {
        pending->values[i] = Py_NewRef(args[i]);
    }
    PyObject_GC_Track(pending);
    (void)keywords; /* emitted code passes none */
    return (PyObject *)pending;
}

/* ---- making the call ---- */

static PyObject *with_closure(Continuation *to, PyObject *code, PyObject *const *cells, Py_ssize_t count)
{
    PyObject *function = PyFunction_New(code, PyFunction_GET_GLOBALS(to->function));
    PyObject *closure = function ? PyTuple_New(count) : NULL;
    for (Py_ssize_t i = 0; closure && i < count; i++) {
        PyTuple_SET_ITEM(closure, i, Py_NewRef(cells[i]));
    }
    if (!closure || PyFunction_SetClosure(function, closure) < 0) {
        Py_CLEAR(function);
    }
    Py_XDECREF(closure);
    return function;
}

/* What to call, a new reference. *hooked: it is the function as it is, and what it calls is to be compiled. */
static PyObject *callee_of(Pending *pending, PyObject *function, Py_ssize_t free, int *hooked)
{
    Cache *cache = (Cache *)pending->to->cache;
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    Version *version = NULL;
    int const originals = stator_runs_originals();
    if (cache && !cache->eager && !originals) {
        Py_INCREF(cache);
        version = stator_cache_lookup(cache, pending->values + free, stator_bound_count(code), function);
        if (!version) {
            version = stator_cache_miss(cache, code, pending->values + free, function);
        }
        Py_DECREF(cache);
    }
    PyObject *callee = NULL;
    if (version && version->target != Py_None) {
        callee = free ? with_closure(pending->to, version->code, pending->values, free) : Py_NewRef(version->target);
    } else if (!PyErr_Occurred()) {
        *hooked = pending->to->callback && !originals && !(version && version->followed);
        callee = Py_NewRef(function);
    }
    Py_XDECREF(version);
    return callee;
}

/* Call a Python function that runs as it is with values in the order of its variables. */
static PyObject *call_as_it_is(PyObject *function, PyObject *const *values, Py_ssize_t count)
{
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    if (stator_hook_thread.callback) {
        stator_hook_thread.let_through = code;
    }
    PyObject *positional = NULL, *keywords = NULL, *result = NULL;
    if (!code->co_kwonlyargcount && !(code->co_flags & (CO_VARARGS | CO_VARKEYWORDS))) {
        result = PyObject_Vectorcall(function, values, count, NULL);
    } else if (stator_unbind(code, values, &positional, &keywords) == 0) {
        result = PyObject_Call(function, positional, keywords);
    }
    stator_hook_thread.let_through = NULL;
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    return result;
}

/* The function with this tuple of cells as its closure, which may be longer than that of free variables. */
static PyObject *with_cells(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *function, *cells;
    if (!PyArg_ParseTuple(args, "O!O!", &PyFunction_Type, &function, &PyTuple_Type, &cells)) {
        return NULL;
    }
    PyObject *made = PyFunction_New(PyFunction_GET_CODE(function), PyFunction_GET_GLOBALS(function));
    if (made && PyFunction_SetClosure(made, cells) < 0) {
        Py_CLEAR(made);
    }
    return made;
}

static PyObject *make_call(Pending *pending)
{
    Continuation *to = pending->to;
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(to->function);
    Py_ssize_t free = to->cells, count = Py_SIZE(pending) - free;
    PyObject *function = free ? with_closure(to, (PyObject *)code, pending->values, free) : Py_NewRef(to->function);
    if (!function) {
        return NULL;
    }
    int hooked = 0;
    PyObject *callee = callee_of(pending, function, free, &hooked), *result = NULL;
    if (callee) {
        Pending *saved = handed_over;
        handed_over = pending;
        result = hooked ? stator_call_hooked(to->callback, callee, pending->values + free, count)
               : callee == function ? call_as_it_is(callee, pending->values + free, count)
                                    : PyObject_Vectorcall(callee, pending->values + free, count, NULL);
        handed_over = saved;
        PyObject *told = result && to->returned ? PyObject_CallNoArgs(to->returned) : NULL;
        if (result && to->returned && !told) {
            Py_CLEAR(result);
        }
        Py_XDECREF(told);
    }
    Py_XDECREF(callee);
    Py_DECREF(function);
    return result;
}

PyObject *stator_go_on(PyObject *result)
{
    while (result && Py_IS_TYPE(result, &PendingType)) {
        PyObject *pending = result;
        result = make_call((Pending *)pending);
        Py_DECREF(pending);
    }
    return result;
}

static void pending_let_go(Pending *pending)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(pending); i++) {
        Py_CLEAR(pending->values[i]);
    }
}

/* Cells of a closure beyond those of free variables are those of the frame's own variables, the last ones before these.
 * (The interpreter's own instruction copies cells of free variables only.) */
static void take_own_cells(struct _PyInterpreterFrame *frame)
{
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

/* The first thing that a function which goes on behind a break does: its arguments are its own from now on, so that what
 * it lets go of is gone; and so are the cells of its variables. */
static PyObject *arrived(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    take_own_cells(CURRENT_FRAME(PyThreadState_Get()));
    Pending *pending = handed_over;
    handed_over = NULL;
    if (pending) {
        pending_let_go(pending);
    }
    Py_RETURN_NONE;
}

/* ---- the objects ---- */

static int pending_traverse(PyObject *self, visitproc visit, void *arg)
{
    Pending *pending = (Pending *)self;
    Py_VISIT(pending->to);
    for (Py_ssize_t i = 0; i < Py_SIZE(pending); i++) {
        Py_VISIT(pending->values[i]);
    }
    return 0;
}

static void pending_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    pending_let_go((Pending *)self);
    Py_CLEAR(((Pending *)self)->to);
    PyObject_GC_Del(self);
}

static PyTypeObject PendingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.Pending",
    .tp_doc = "The rest of a frame behind a graph break, about to run. Never seen by a program.",
    .tp_basicsize = offsetof(Pending, values),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = pending_dealloc,
    .tp_traverse = pending_traverse,
};

static PyObject *continuation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "cache", "callback", "returned", "cells", NULL};
    PyObject *function, *cache, *callback, *returned = Py_None;
    int cells = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|Oi", names, &PyFunction_Type, &function, &cache, &callback,
                                     &returned, &cells)) {
        return NULL;
    }
    int const free = ((PyCodeObject *)PyFunction_GET_CODE(function))->co_nfreevars;
    cells = cells < 0 ? free : cells;
    if (cells < free) {
        PyErr_Format(PyExc_ValueError, "the function has %d free variables", free);
        return NULL;
    }
    if (cache != Py_None && !Py_IS_TYPE(cache, &CacheType)) {
        PyErr_Format(PyExc_TypeError, "cache must be a Cache or None, not %.100s", Py_TYPE(cache)->tp_name);
        return NULL;
    }
    Continuation *self = (Continuation *)type->tp_alloc(type, 0);
    if (self) {
        self->vectorcall = continuation_vectorcall;
        self->function = Py_NewRef(function);
        self->cache = cache == Py_None ? NULL : Py_NewRef(cache);
        self->callback = callback == Py_None ? NULL : Py_NewRef(callback);
        self->returned = returned == Py_None ? NULL : Py_NewRef(returned);
        self->cells = cells;
    }
    return (PyObject *)self;
}

static int continuation_traverse(PyObject *self, visitproc visit, void *arg)
{
    Continuation *continuation = (Continuation *)self;
    Py_VISIT(continuation->function);
    Py_VISIT(continuation->cache);
    Py_VISIT(continuation->callback);
    Py_VISIT(continuation->returned);
    return 0;
}

static int continuation_clear(PyObject *self)
{
    /* the others stay until the end: a call that is under way needs them */
    Py_CLEAR(((Continuation *)self)->cache);
    return 0;
}

static void continuation_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    continuation_clear(self);
    Py_CLEAR(((Continuation *)self)->function);
    Py_CLEAR(((Continuation *)self)->callback);
    Py_CLEAR(((Continuation *)self)->returned);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef continuation_members[] = {
    {"_cache", T_OBJECT, offsetof(Continuation, cache), READONLY, "the Cache of compiled versions"},
    {"_function", T_OBJECT, offsetof(Continuation, function), READONLY, "the function that goes on"},
    {0},
};

static PyTypeObject ContinuationType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.Continuation",
    .tp_doc = "Continuation(function, cache, callback): called with the cells of the function's closure, then its\n"
              "arguments in the order of its variables; the result is to be returned at once, and the function runs\n"
              "after that. cache None: it runs as it is; callback None too: and nothing that it calls is compiled.\n"
              "returned: called without arguments when the function has returned.\n"
              "cells: so many are the closure, where those of variables of the frame itself come behind the free ones.",
    .tp_basicsize = sizeof(Continuation),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Continuation, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = continuation_new,
    .tp_dealloc = continuation_dealloc,
    .tp_traverse = continuation_traverse,
    .tp_clear = continuation_clear,
    .tp_members = continuation_members,
};

static PyMethodDef methods[] = {
    {"arrived", arrived, METH_NOARGS, "arrived(): the first call of a function that goes on behind a break."},
    {"with_cells", with_cells, METH_VARARGS, "with_cells(function, cells) -> a function like it with these cells."},
    {0},
};

int stator_continuation_add_to(PyObject *module)
{
    if (PyType_Ready(&PendingType) < 0 || PyModule_AddFunctions(module, methods) < 0) {
        return -1;
    }
    return PyModule_AddType(module, &ContinuationType);
}
