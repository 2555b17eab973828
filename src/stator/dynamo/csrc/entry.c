/* Entry: the callable that replaces a compiled function. It binds the arguments in C, finds the version whose guards
 * hold, and calls the version with the original arguments. The cache's miss callback decides about compiling. */
#include "binding.h"
#include "cache.h"
#include "continuation.h"
#include "guard_memo.h"
#include "hook_chain.h"
#include "native.h"
#include "switches.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* the function whose frame is compiled */
    PyObject *cache;    /* Cache */
    PyObject *code;     /* the function's code object when the entry was made */
    PyObject *original; /* called if nothing compiled runs: the function, or a function that ends up calling it */
    PyObject *gate;     /* GuardTree over the first argument: while it holds, a call of the original ends in a call of
                           the function with equal arguments; or NULL */
    PyObject *otherwise; /* called if the gate fails */
    PyObject *dict;
    PyObject *weakrefs;
} Entry;

static PyTypeObject EntryType;

/* ---- calling ---- */

/* `followed`: its callees run eagerly, too. */
static PyObject *call_original(Entry *self, PyObject *const *args, size_t nargsf, PyObject *keywords, int followed)
{
    HookThread mine = stator_hook_thread;
    if (followed) {
        stator_switch_hook((HookThread){NULL, NULL});
    } else if (stator_hook_thread.callback) {
        /* otherwise the hook would try the frame that this entry just gave up */
        stator_hook_thread.let_through = (PyCodeObject *)PyFunction_GET_CODE(self->function);
    }
    PyObject *original = Py_NewRef(self->original);
    PyObject *result = PyObject_Vectorcall(original, args, nargsf, keywords);
    if (followed) {
        stator_switch_hook(mine);
    }
    stator_hook_thread.let_through = NULL;
    Py_DECREF(original);
    return result;
}

/* Copy later changes of the original's defaults to the target, which must bind arguments as the original would. */
static int follow_defaults(PyObject *target, PyObject *function)
{
    PyObject *defaults = PyFunction_GET_DEFAULTS(function), *kwdefaults = PyFunction_GET_KW_DEFAULTS(function);
    if (PyFunction_GET_DEFAULTS(target) != defaults
        && PyFunction_SetDefaults(target, defaults ? defaults : Py_None) < 0) {
        return -1;
    }
    if (PyFunction_GET_KW_DEFAULTS(target) != kwdefaults) {
        return PyFunction_SetKwDefaults(target, kwdefaults ? kwdefaults : Py_None);
    }
    return 0;
}

static PyObject *call_version(Entry *self, Version *version, PyObject *const *args, size_t nargsf, PyObject *keywords)
{
    if (!version->target || version->target == Py_None) {
        int const followed = version->followed > 0;
        Py_DECREF(version);
        return call_original(self, args, nargsf, keywords, followed);
    }
    PyObject *target = Py_NewRef(version->target);
    Py_DECREF(version);
    PyObject *result = NULL;
    if (!PyFunction_Check(target) || follow_defaults(target, self->function) == 0) {
        result = stator_go_on(PyObject_Vectorcall(target, args, nargsf, keywords));
    }
    Py_DECREF(target);
    return result;
}

static PyObject *entry_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *keywords)
{
    Entry *self = (Entry *)callable;
    Cache *cache = (Cache *)self->cache;
    if (self->gate && PyVectorcall_NARGS(nargsf) > 0 && !stator_guards_hold(self->gate, args, 1, self->function, NULL)) {
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->otherwise, args, nargsf, keywords);
    }
    if (stator_stack_is_low(STATOR_STACK_FOR_CALLS)) {
        PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: the stack of this thread is used up");
        return NULL;
    }
    if (!cache || cache->eager || stator_runs_originals() || PyFunction_GET_CODE(self->function) != self->code) {
        if (!self->function) {
            PyErr_SetString(PyExc_RuntimeError, "this compiled function was already destroyed");
            return NULL;
        }
        return call_original(self, args, nargsf, keywords, 0);
    }
    PyCodeObject *code = (PyCodeObject *)self->code;
    Bound bound;
    if (!stator_bind(&bound, code, self->function, args, PyVectorcall_NARGS(nargsf), keywords)) {
        bound_release(&bound);
        PyErr_Clear();
        return call_original(self, args, nargsf, keywords, 0); /* raises Python's own TypeError */
    }
    Py_INCREF(self);
    Version *version = stator_cache_lookup(cache, bound.values, stator_bound_count(code), self->function);
    if (!version) {
        Py_INCREF(cache);
        version = stator_cache_miss(cache, code, bound.values, self->function);
        Py_DECREF(cache);
    }
    bound_release(&bound);
    PyObject *result = NULL;
    if (version) {
        result = call_version(self, version, args, nargsf, keywords);
    } else if (!PyErr_Occurred()) {
        result = call_original(self, args, nargsf, keywords, 0);
    }
    Py_DECREF(self);
    return result;
}

/* ---- the object ---- */

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "cache", NULL};
    PyObject *function, *cache;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!", names, &PyFunction_Type, &function, &CacheType, &cache)) {
        return NULL;
    }
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self) {
        self->vectorcall = entry_vectorcall;
        self->function = Py_NewRef(function);
        self->original = Py_NewRef(function);
        self->cache = Py_NewRef(cache);
        self->code = Py_NewRef(PyFunction_GET_CODE(function));
    }
    return (PyObject *)self;
}

static int entry_traverse(PyObject *self, visitproc visit, void *arg)
{
    Entry *entry = (Entry *)self;
    Py_VISIT(entry->function);
    Py_VISIT(entry->cache);
    Py_VISIT(entry->code);
    Py_VISIT(entry->original);
    Py_VISIT(entry->gate);
    Py_VISIT(entry->otherwise);
    Py_VISIT(entry->dict);
    return 0;
}

static int entry_clear(PyObject *self)
{
    Entry *entry = (Entry *)self;
    /* the original and its gate stay until deallocation, because a finalizer may call the entry */
    Py_CLEAR(entry->cache);
    Py_CLEAR(entry->dict);
    return 0;
}

static void entry_dealloc(PyObject *self)
{
    Entry *entry = (Entry *)self;
    PyObject_GC_UnTrack(self);
    if (entry->weakrefs) {
        PyObject_ClearWeakRefs(self);
    }
    entry_clear(self);
    Py_CLEAR(entry->function);
    Py_CLEAR(entry->code);
    Py_CLEAR(entry->original);
    Py_CLEAR(entry->gate);
    Py_CLEAR(entry->otherwise);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *entry_descr_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(type))
{
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

/* Its own attributes first, then the original's (__code__, __defaults__, __globals__, __annotations__, ...). */
static PyObject *entry_getattro(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return value;
    }
    PyErr_Clear();
    return PyObject_GetAttr(((Entry *)self)->original, name);
}

static PyObject *entry_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<compiled %R>", ((Entry *)self)->original);
}

/* Copying a function returns the function itself. */
static PyObject *entry_copy(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(self);
}

/* See dynamo/host/pickling.py. */
static PyObject *entry_reduce(PyObject *self, PyObject *Py_UNUSED(protocol))
{
    PyObject *module = PyImport_ImportModule("stator.dynamo.host.pickling");
    PyObject *reduced = module ? PyObject_CallMethod(module, "reduce_entry", "O", self) : NULL;
    Py_XDECREF(module);
    return reduced;
}

static PyObject *entry_stand_for(PyObject *self, PyObject *args)
{
    Entry *entry = (Entry *)self;
    PyObject *original, *gate, *otherwise;
    if (!PyArg_ParseTuple(args, "OO!O", &original, &GuardTreeType, &gate, &otherwise)) {
        return NULL;
    }
    Py_XSETREF(entry->original, Py_NewRef(original));
    Py_XSETREF(entry->otherwise, Py_NewRef(otherwise));
    Py_XSETREF(entry->gate, Py_NewRef(gate));
    Py_RETURN_NONE;
}

static PyMethodDef entry_methods[] = {
    {"_stand_for", entry_stand_for, METH_VARARGS,
     "_stand_for(original, gate, otherwise): while the gate holds for the first argument, a call of the original ends in a\n"
     "call of the function with the same arguments. Where it does not hold, otherwise is called with the arguments."},
    {"__reduce_ex__", entry_reduce, METH_O, NULL},
    {"__copy__", entry_copy, METH_NOARGS, NULL},
    {"__deepcopy__", entry_copy, METH_O, NULL},
    {0},
};

static PyMemberDef entry_members[] = {
    {"_cache", T_OBJECT, offsetof(Entry, cache), READONLY, "the Cache of compiled versions"},
    {"_original", T_OBJECT, offsetof(Entry, original), READONLY, "what the entry stands for"},
    {"_function", T_OBJECT, offsetof(Entry, function), READONLY, "the function whose frame is compiled"},
    {"__dictoffset__", T_PYSSIZET, offsetof(Entry, dict), READONLY, NULL},
    {0},
};

/* Tools that ask isinstance(entry, FunctionType), such as inspect and TorchScript, read an entry as the function. */
static PyObject *entry_class(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure))
{
    return Py_NewRef(&PyFunction_Type);
}

static PyGetSetDef entry_getset[] = {
    {"__class__", entry_class, NULL, NULL, NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};

static PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Entry, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = entry_new,
    .tp_dealloc = entry_dealloc,
    .tp_traverse = entry_traverse,
    .tp_clear = entry_clear,
    .tp_descr_get = entry_descr_get,
    .tp_getattro = entry_getattro,
    .tp_repr = entry_repr,
    .tp_methods = entry_methods,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
    .tp_dictoffset = offsetof(Entry, dict),
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
};

/* ---- calling instances ---- */

/* `__call__` of a class whose instances hold their callable in a slot: instances find the callable, and the class shows
 * a function, so that code that reads classes (as torch.compile) finds what it understands. */
typedef struct {
    PyObject_HEAD
    PyObject *slot;     /* the slot's descriptor */
    PyObject *function; /* shown by the class */
} CallSlot;

static PyObject *call_slot_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *slot, *function;
    if (!PyArg_ParseTuple(args, "OO:CallSlot", &slot, &function)) {
        return NULL;
    }
    if (!Py_TYPE(slot)->tp_descr_get) {
        PyErr_SetString(PyExc_TypeError, "a descriptor is expected");
        return NULL;
    }
    CallSlot *self = (CallSlot *)type->tp_alloc(type, 0);
    if (self) {
        self->slot = Py_NewRef(slot);
        self->function = Py_NewRef(function);
    }
    return (PyObject *)self;
}

static PyObject *call_slot_get(PyObject *self, PyObject *object, PyObject *type)
{
    PyObject *slot = ((CallSlot *)self)->slot;
    return object ? Py_TYPE(slot)->tp_descr_get(slot, object, type) : Py_NewRef(((CallSlot *)self)->function);
}

static int call_slot_traverse(CallSlot *self, visitproc visit, void *arg)
{
    Py_VISIT(self->slot);
    Py_VISIT(self->function);
    return 0;
}

static int call_slot_clear(CallSlot *self)
{
    Py_CLEAR(self->slot);
    Py_CLEAR(self->function);
    return 0;
}

static void call_slot_dealloc(CallSlot *self)
{
    PyObject_GC_UnTrack(self);
    call_slot_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject CallSlotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.CallSlot",
    .tp_basicsize = sizeof(CallSlot),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = call_slot_new,
    .tp_dealloc = (destructor)call_slot_dealloc,
    .tp_traverse = (traverseproc)call_slot_traverse,
    .tp_clear = (inquiry)call_slot_clear,
    .tp_descr_get = call_slot_get,
};

int stator_entry_add_to(PyObject *module)
{
    return PyModule_AddType(module, &EntryType) < 0 || PyModule_AddType(module, &CallSlotType) < 0 ? -1 : 0;
}
