/* Continuation: the callable that emitted code calls at a graph break, and whose result it returns at once. The call
 * only records the resume function and its arguments (a Pending); the caller of the emitted code runs the resume
 * function after the emitted code has returned. So a frame that breaks again and again is a single Python frame at any
 * time, and loops do not grow the stack. */
#include "continuation.h"

#include "binding.h"
#include "cache.h"
#include "current_frame.h"
#include "deferred_exceptions.h"
#include "hook_chain.h"
#include "native.h"
#include "own_code_exit.h"
#include "switches.h"

static PyTypeObject ContinuationType, InnerType, PendingType;

/* The call that this thread is making, whose arguments belong to the new frame as soon as that frame has started. */
static __thread Pending *handed_over = NULL;

/* Whether the inner frames that the next called function resumes are known to have nothing to compile. */
static __thread int nothing_inside = 0;

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
    /* the frame called another frame, which broke; both are resumed together */
    PyObject *inner = count && Py_IS_TYPE(args[count - 1], &PendingType) ? args[--count] : NULL;
    if (!inner != !((Continuation *)self)->join) {
        PyErr_SetString(PyExc_SystemError, "stator: a frame goes on without the one that it called");
        return NULL;
    }
    Pending *pending = PyObject_GC_NewVar(Pending, &PendingType, count);
    if (!pending) {
        return NULL;
    }
    pending->to = (Continuation *)Py_NewRef(self);
    pending->inner = Py_XNewRef(inner);
    pending->exit = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        pending->values[i] = Py_NewRef(args[i]);
    }
    PyObject_GC_Track(pending);
    if (pending->to->cache && PyErr_CheckSignals() < 0) {
        stator_raise_later(exception_take()); /* not in emitted code, which has none of the program's blocks */
    }
    (void)keywords; /* emitted code passes no keywords */
    return (PyObject *)pending;
}

/* ---- making the call ---- */

static PyObject *with_closure(PyObject *like, PyObject *code, PyObject *const *cells, Py_ssize_t count)
{
    PyObject *function = PyFunction_New(code, PyFunction_GET_GLOBALS(like));
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

/* The function to call, a new reference. *hooked: it is the original, whose callees are to be compiled. *followed: it is
 * the original, and capture found nothing to compile in it and its callees. *own: it is the original, or the original
 * with an exit. */
static PyObject *callee_of(Pending *pending, PyObject *function, Py_ssize_t free, int *hooked, int *followed, int *own)
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
    *own = !originals && (!version || version->followed > 0);
    PyObject *callee = NULL;
    if (version && version->target != Py_None) {
        callee = free ? with_closure(pending->to->function, version->code, pending->values, free) : Py_NewRef(version->target);
    } else if (!PyErr_Occurred()) {
        *followed = version && version->followed > 0;
        *hooked = pending->to->callback && !originals && !*followed;
        callee = Py_NewRef(function);
    }
    Py_XDECREF(version);
    return callee;
}

/* Call a Python function without compiled code, with values in the order of its variables. */
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

/* `as_it_is`: there is nothing to compile in it. `raised`: an exception to raise where the frame resumes, or NULL; its
 * reference is taken over. *own: the program's own code ran. */
static PyObject *make_call(Pending *pending, int as_it_is, PyObject *raised, int *own)
{
    Continuation *to = pending->to;
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(to->function);
    Py_ssize_t free = to->cells, count = Py_SIZE(pending) - free;
    PyObject *function =
        free ? with_closure(to->function, (PyObject *)code, pending->values, free) : Py_NewRef(to->function);
    if (!function) {
        Py_XDECREF(raised);
        return NULL;
    }
    int hooked = 0, followed = as_it_is;
    *own = as_it_is;
    PyObject *result = NULL;
    raised = raised ? raised : stator_take_waiting();
    PyObject *callee = as_it_is || raised ? Py_NewRef(function) : callee_of(pending, function, free, &hooked, &followed, own);
    if (!callee && PyErr_Occurred()) {
        raised = exception_take();
        callee = Py_NewRef(function);
    }
    if (!raised && callee && to->cache && PyErr_CheckSignals() < 0) {
        /* the function's first instruction would raise it, before the program's blocks are entered again */
        raised = exception_take();
        Py_SETREF(callee, Py_NewRef(function));
        hooked = 0;
    }
    followed |= stator_raise_later(raised);
    if (callee) {
        Pending *saved = handed_over;
        int const around = nothing_inside;
        handed_over = pending;
        nothing_inside = followed;
        result = hooked ? stator_call_hooked(to->callback, (PyCodeObject *)PyFunction_GET_CODE(callee), callee,
                                             pending->values + free, count, NULL)
               : callee == function ? call_as_it_is(callee, pending->values + free, count)
                                    : PyObject_Vectorcall(callee, pending->values + free, count, NULL);
        handed_over = saved;
        nothing_inside = around;
        stator_raise_now(raised, &result);
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

/* ---- frames that called one another ---- */

#define JOIN_DEPTH 200 /* nested calls that a join may make */
/* The Continuation that resumes a frame together with its inner frames, a new reference. */
static PyObject *joined_continuation(Pending *outermost, Py_ssize_t inner_frames)
{
    Continuation *to = outermost->to;
    PyObject *first = (PyObject *)((Pending *)outermost->inner)->to;
    if (inner_frames == 1 && to->last_inner == first) {
        return Py_NewRef(to->last_joined);
    }
    PyObject *callee_and_args = PyTuple_New(inner_frames + 1), *inner = NULL, *found = NULL;
    if (!callee_and_args) {
        return NULL;
    }
    Pending *at = outermost;
    for (Py_ssize_t i = 0; i <= inner_frames; i++, at = (Pending *)at->inner) {
        PyTuple_SET_ITEM(callee_and_args, i, Py_NewRef(at->to));
    }
    inner = PyTuple_GetSlice(callee_and_args, 1, inner_frames + 1);
    if (inner && !to->joined) {
        to->joined = PyDict_New();
    }
    if (inner && to->joined) {
        found = Py_XNewRef(PyDict_GetItemWithError(to->joined, inner));
        if (!found && !PyErr_Occurred()) {
            HookThread saved = stator_hook_thread; /* joining runs no code of the program */
            stator_hook_thread = (HookThread){NULL, NULL};
            thread_add_recursion(PyThreadState_Get(), JOIN_DEPTH); /* nor do its calls count for the recursion limit */
            found = PyObject_Call(to->join, callee_and_args, NULL);
            thread_add_recursion(PyThreadState_Get(), -JOIN_DEPTH);
            stator_hook_thread = saved;
            if (found && !Py_IS_TYPE(found, &ContinuationType)) {
                PyErr_SetString(PyExc_TypeError, "join gave no Continuation");
                Py_CLEAR(found);
            } else if (found && PyDict_SetItem(to->joined, inner, found) < 0) {
                Py_CLEAR(found);
            }
        }
        if (found && inner_frames == 1) {
            to->last_inner = first;
            to->last_joined = found;
        }
    }
    Py_XDECREF(inner);
    Py_DECREF(callee_and_args);
    return found;
}

/* One call that replaces the calls of several frames; it takes the values of all, the outermost frame's first. */
static PyObject *joined(Pending *outermost)
{
    Py_ssize_t count = 0, frames = 0, filled = 0;
    for (Pending *at = outermost; at; at = (Pending *)at->inner) {
        count += Py_SIZE(at);
        frames++;
    }
    PyObject *to = joined_continuation(outermost, frames - 1);
    Pending *whole = to ? PyObject_GC_NewVar(Pending, &PendingType, count) : NULL;
    if (!whole) {
        Py_XDECREF(to);
        return NULL;
    }
    whole->to = (Continuation *)to;
    whole->inner = NULL;
    whole->exit = NULL;
    for (Pending *at = outermost; at; at = (Pending *)at->inner) {
        for (Py_ssize_t i = 0; i < Py_SIZE(at); i++) {
            whole->values[filled++] = Py_NewRef(at->values[i]);
        }
    }
    PyObject_GC_Track(whole);
    return (PyObject *)whole;
}

void stator_note_exit(PyObject *pending, OwnCodeExit *exit)
{
    if (Py_IS_TYPE(pending, &PendingType)) {
        Py_XSETREF(((Pending *)pending)->exit, (OwnCodeExit *)Py_NewRef(exit));
    }
}

PyObject *stator_go_on(PyObject *result)
{
    PyObject *raised = NULL; /* owned: to raise where the frame resumes */
    OwnCodeExit *left = NULL; /* owned: the first exit behind which only the program's own code has run so far */
    unsigned long long seen = 0; /* frames that the hook had been asked about before */
    while (result && Py_IS_TYPE(result, &PendingType)) {
        PyObject *pending = result;
        if (((Pending *)pending)->inner) {
            result = joined((Pending *)pending);
            if (!result && !raised) { /* interrupted: the blocks around the break must still be left */
                raised = exception_take();
                result = joined((Pending *)pending);
            }
            Py_DECREF(pending);
            continue;
        }
        if (!left && stator_exit_is_watched(((Pending *)pending)->exit)) {
            left = (OwnCodeExit *)Py_NewRef(((Pending *)pending)->exit);
            seen = stator_frames_seen();
        }
        int own;
        result = make_call((Pending *)pending, 0, raised, &own);
        if (left && !own) {
            stator_exit_ended(left, 0);
            Py_CLEAR(left);
        }
        raised = NULL;
        Py_DECREF(pending);
    }
    if (left && result) {
        stator_exit_ended(left, seen == stator_frames_seen());
    }
    Py_XDECREF(left);
    Py_XDECREF(raised);
    return result;
}

static void pending_let_go(Pending *pending)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(pending); i++) {
        Py_CLEAR(pending->values[i]);
    }
}

/* The first call of a resume function: from now on it owns its arguments and the cells of its variables, so that an
 * object dies as soon as the function drops it. */
static PyObject *arrived(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    stator_take_own_cells();
    Pending *pending = handed_over;
    handed_over = NULL;
    if (pending) {
        pending_let_go(pending);
    }
    Py_RETURN_NONE;
}

/* ---- the objects ---- */

/* The collector does not traverse code objects, but resume code has callables among its constants that refer back here.
 * So the holder of the function traverses the code's references, as long as nothing else refers to either. */
static int visit_made_function(PyObject *function, visitproc visit, void *arg)
{
    PyObject *code = PyFunction_GET_CODE(function);
    if (Py_REFCNT(function) == 1 && Py_REFCNT(code) == 1) {
        Py_VISIT(((PyCodeObject *)code)->co_consts);
    }
    Py_VISIT(function);
    return 0;
}

static int pending_traverse(PyObject *self, visitproc visit, void *arg)
{
    Pending *pending = (Pending *)self;
    Py_VISIT(pending->to);
    Py_VISIT(pending->inner);
    Py_VISIT(pending->exit);
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
    Py_CLEAR(((Pending *)self)->inner);
    Py_CLEAR(((Pending *)self)->exit);
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
    static char *names[] = {"function", "cache", "callback", "returned", "cells", "join", NULL};
    PyObject *function, *cache, *callback, *returned = Py_None, *join = Py_None;
    int cells = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|OiO", names, &PyFunction_Type, &function, &cache, &callback,
                                     &returned, &cells, &join)) {
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
        self->join = join == Py_None ? NULL : Py_NewRef(join);
    }
    return (PyObject *)self;
}

static int continuation_traverse(PyObject *self, visitproc visit, void *arg)
{
    Continuation *continuation = (Continuation *)self;
    if (continuation->function) {
        int stopped = visit_made_function(continuation->function, visit, arg);
        if (stopped) {
            return stopped;
        }
    }
    Py_VISIT(continuation->cache);
    Py_VISIT(continuation->callback);
    Py_VISIT(continuation->returned);
    Py_VISIT(continuation->join);
    Py_VISIT(continuation->joined);
    return 0;
}

static int continuation_clear(PyObject *self)
{
    /* the other fields stay until deallocation: a running call needs them */
    Py_CLEAR(((Continuation *)self)->cache);
    ((Continuation *)self)->last_inner = ((Continuation *)self)->last_joined = NULL;
    Py_CLEAR(((Continuation *)self)->joined);
    return 0;
}

static void continuation_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (((Continuation *)self)->weakrefs) {
        PyObject_ClearWeakRefs(self);
    }
    continuation_clear(self);
    Py_CLEAR(((Continuation *)self)->function);
    Py_CLEAR(((Continuation *)self)->callback);
    Py_CLEAR(((Continuation *)self)->returned);
    Py_CLEAR(((Continuation *)self)->join);
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
              "cells: so many are the closure, where those of variables of the frame itself come behind the free ones.\n"
              "join: given where the frame called another one that broke. The last argument is then what that returned;\n"
              "join(self, *those of the inner frames) gives the Continuation that takes the values of all of them.",
    .tp_basicsize = sizeof(Continuation),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Continuation, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = continuation_new,
    .tp_dealloc = continuation_dealloc,
    .tp_traverse = continuation_traverse,
    .tp_clear = continuation_clear,
    .tp_members = continuation_members,
    .tp_weaklistoffset = offsetof(Continuation, weakrefs),
};

/* ---- Inner: the call of a frame by the frame around it ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *target; /* weak reference to a Continuation, which resumes the frame; or a Python function, called as it
                         is. (Code holds this object, and must not hold anything that refers back to the code.) */
    int cells; /* number of cells that each call brings as the function's closure */
} Inner;

/* New reference; NULL: the target is dead. */
static PyObject *inner_target(Inner *inner)
{
    if (!PyWeakref_Check(inner->target)) {
        return Py_NewRef(inner->target);
    }
    return Py_XNewRef(weakref_peek(inner->target));
}

static PyObject *inner_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords)
{
    PyObject *target = inner_target((Inner *)self), *result = NULL;
    Py_ssize_t const count = PyVectorcall_NARGS(nargsf), free = ((Inner *)self)->cells;
    if (!target || count < free) {
        PyErr_SetString(PyExc_SystemError, "stator: the rest of a function is gone, or was called without its cells");
    } else if (Py_IS_TYPE(target, &ContinuationType)) {
        int const as_it_is = nothing_inside; /* nothing else runs between the start of the outer frame and this call */
        nothing_inside = 0;
        PyObject *pending = continuation_vectorcall(target, args, (size_t)count, keywords);
        if (pending) {
            stator_caller_forgets(args, count);
        }
        if (pending && as_it_is) {
            int own;
            result = stator_go_on(make_call((Pending *)pending, 1, NULL, &own));
            Py_DECREF(pending);
        } else {
            result = stator_go_on(pending);
        }
    } else {
        PyObject *function = free ? with_closure(target, PyFunction_GET_CODE(target), args, free) : Py_NewRef(target);
        result = function ? PyObject_Vectorcall(function, args + free, count - free, NULL) : NULL;
        Py_XDECREF(function);
    }
    Py_XDECREF(target);
    return result;
}

static PyObject *inner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"target", "cells", NULL};
    PyObject *target;
    int cells = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|i", names, &target, &cells)) {
        return NULL;
    }
    if (!Py_IS_TYPE(target, &ContinuationType) && !PyFunction_Check(target)) {
        PyErr_SetString(PyExc_TypeError, "target must be a Continuation or a function");
        return NULL;
    }
    Inner *self = (Inner *)type->tp_alloc(type, 0);
    if (self) {
        self->vectorcall = inner_vectorcall;
        self->cells = cells;
        self->target = PyFunction_Check(target) ? Py_NewRef(target) : PyWeakref_NewRef(target, NULL);
        if (!self->target) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

static PyObject *inner_get_target(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *target = inner_target((Inner *)self);
    return target ? target : Py_NewRef(Py_None);
}

static int inner_traverse(PyObject *self, visitproc visit, void *arg)
{
    PyObject *target = ((Inner *)self)->target;
    if (target && PyFunction_Check(target)) {
        return visit_made_function(target, visit, arg);
    }
    Py_VISIT(target);
    return 0;
}

static void inner_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Inner *)self)->target);
    Py_TYPE(self)->tp_free(self);
}

static PyGetSetDef inner_getset[] = {
    {"_target", inner_get_target, NULL, "what is called", NULL},
    {0},
};

static PyTypeObject InnerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.Inner",
    .tp_doc = "Inner(target, cells=0): calls a frame in the middle, for the frame around it. The arguments are the cells of the\n"
              "function's closure, then its own. target: a Continuation, which is run to its end; or a function that\n"
              "takes so many cells, whose result may be what is still to run.",
    .tp_basicsize = sizeof(Inner),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Inner, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = inner_new,
    .tp_dealloc = inner_dealloc,
    .tp_traverse = inner_traverse,
    .tp_getset = inner_getset,
};

static PyMethodDef methods[] = {
    {"arrived", arrived, METH_NOARGS, "arrived(): the first call of a function that goes on behind a break."},
    {0},
};

int stator_continuation_add_to(PyObject *module)
{
    if (PyType_Ready(&PendingType) < 0 || PyModule_AddFunctions(module, methods) < 0) {
        return -1;
    }
    if (PyModule_AddType(module, &ContinuationType) < 0) {
        return -1;
    }
    return PyModule_AddType(module, &InnerType);
}
