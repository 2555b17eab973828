/* Entry: the callable that stands for a compiled function. It binds the arguments in C, finds the compiled version whose
 * guards hold, and calls it with the original arguments. Decisions about compiling are the cache's miss callback's. */
#include "native.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* whose frame is compiled */
    PyObject *cache;    /* Cache */
    PyObject *code;     /* the function's code object when the entry was made */
    PyObject *original; /* called where nothing compiled runs: the function, or what calls it in the end */
    PyObject *gate;     /* GuardTree over the first argument: while it holds, a call of the original ends in a call of the
                           function with the same arguments; or NULL */
    PyObject *otherwise; /* called where the gate does not hold */
    PyObject *dict;
    PyObject *weakrefs;
} Entry;

static PyTypeObject EntryType;

/* ---- binding ---- */

#define BOUND_ON_STACK 32

/* Arguments in the order of co_varnames. `owned` are the references to give back. */
typedef struct {
    PyObject *const *values;
    PyObject **own;
    PyObject *varargs, *varkwargs, *defaults;
    PyObject **keyword_defaults; /* owned, in the order of the keyword-only parameters; NULL where not taken */
    int keyword_default_count;
    PyObject *on_stack[BOUND_ON_STACK];
} Bound;

static void bound_release(Bound *bound)
{
    Py_XDECREF(bound->varargs);
    Py_XDECREF(bound->varkwargs);
    Py_XDECREF(bound->defaults);
    for (int i = 0; i < bound->keyword_default_count; i++) {
        Py_XDECREF(bound->keyword_defaults[i]);
    }
    PyMem_Free(bound->keyword_defaults);
    if (bound->own && bound->own != bound->on_stack) {
        PyMem_Free(bound->own);
    }
}

/* Position of a keyword among the named parameters, or -1. */
static int parameter_named(PyCodeObject *code, PyObject *names, PyObject *keyword)
{
    int named = code->co_argcount + code->co_kwonlyargcount;
    for (int i = code->co_posonlyargcount; i < named; i++) {
        if (PyTuple_GET_ITEM(names, i) == keyword) {
            return i;
        }
    }
    for (int i = code->co_posonlyargcount; i < named; i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i), keyword) == 0) {
            return i;
        }
    }
    return -1;
}

static int bind_positional(Bound *bound, PyCodeObject *code, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t named = count < code->co_argcount ? count : code->co_argcount;
    for (Py_ssize_t i = 0; i < named; i++) {
        bound->own[i] = args[i];
    }
    if (code->co_flags & CO_VARARGS) {
        bound->varargs = PyTuple_New(count - named);
        if (!bound->varargs) {
            return 0;
        }
        for (Py_ssize_t i = named; i < count; i++) {
            PyTuple_SET_ITEM(bound->varargs, i - named, Py_NewRef(args[i]));
        }
        bound->own[code->co_argcount + code->co_kwonlyargcount] = bound->varargs;
        return 1;
    }
    return count == named;
}

static int bind_keywords(Bound *bound, PyCodeObject *code, PyObject *const *values, PyObject *keywords)
{
    PyObject *names = code->co_localsplusnames; /* parameters come first, in the order of co_varnames */
    if (code->co_flags & CO_VARKEYWORDS) {
        bound->varkwargs = PyDict_New();
        if (!bound->varkwargs) {
            return 0;
        }
        bound->own[stator_bound_count(code) - 1] = bound->varkwargs;
    }
    for (Py_ssize_t i = 0; i < (keywords ? PyTuple_GET_SIZE(keywords) : 0); i++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, i);
        int position = parameter_named(code, names, keyword);
        if (position >= 0) {
            if (bound->own[position]) {
                return 0; /* given twice */
            }
            bound->own[position] = values[i];
        } else if (!bound->varkwargs || PyDict_SetItem(bound->varkwargs, keyword, values[i]) < 0) {
            return 0;
        }
    }
    return 1;
}

static int keep_keyword_default(Bound *bound, PyCodeObject *code, int index)
{
    if (!bound->keyword_defaults) {
        bound->keyword_defaults = PyMem_Calloc(code->co_kwonlyargcount, sizeof(PyObject *));
        if (!bound->keyword_defaults) {
            return 0;
        }
        bound->keyword_default_count = code->co_kwonlyargcount;
    }
    bound->keyword_defaults[index] = Py_NewRef(bound->own[code->co_argcount + index]);
    return 1;
}

static int bind_defaults(Bound *bound, PyCodeObject *code, PyObject *function)
{
    PyObject *defaults = PyFunction_GET_DEFAULTS(function), *kwdefaults = PyFunction_GET_KW_DEFAULTS(function);
    Py_ssize_t default_count = defaults && PyTuple_Check(defaults) ? PyTuple_GET_SIZE(defaults) : 0;
    Py_ssize_t first_default = code->co_argcount - default_count;
    /* guards may run code that replaces the function's defaults */
    bound->defaults = Py_XNewRef(defaults);
    for (int i = 0; i < code->co_argcount; i++) {
        if (!bound->own[i]) {
            if (i < first_default) {
                return 0;
            }
            bound->own[i] = PyTuple_GET_ITEM(defaults, i - first_default);
        }
    }
    for (int i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        if (!bound->own[i]) {
            PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
            bound->own[i] = kwdefaults && PyDict_Check(kwdefaults) ? PyDict_GetItemWithError(kwdefaults, name) : NULL;
            if (!bound->own[i] || !keep_keyword_default(bound, code, i - code->co_argcount)) {
                return 0;
            }
        }
    }
    return 1;
}

/* 1: bound; 0: the arguments do not fit (perhaps with an exception set). The values are borrowed from the caller, from
 * the function's defaults, and from `bound`. */
static int bind(Bound *bound, PyCodeObject *code, PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    bound->own = NULL;
    bound->varargs = bound->varkwargs = bound->defaults = NULL;
    bound->keyword_defaults = NULL;
    bound->keyword_default_count = 0;
    int needed = stator_bound_count(code);
    if (!keywords && count == needed && count == code->co_argcount) {
        bound->values = args;
        return 1;
    }
    bound->own = needed <= BOUND_ON_STACK ? bound->on_stack : PyMem_Malloc(needed * sizeof(PyObject *));
    if (!bound->own) {
        return 0;
    }
    memset(bound->own, 0, needed * sizeof(PyObject *));
    bound->values = bound->own;
    return bind_positional(bound, code, args, count) && bind_keywords(bound, code, args + count, keywords)
        && bind_defaults(bound, code, function);
}

/* Bound values as (positional tuple, keyword dict), new references, for an ordinary call. -1: an exception is set. */
int stator_unbind(PyCodeObject *code, PyObject *const *values, PyObject **positional, PyObject **keywords)
{
    int named = code->co_argcount + code->co_kwonlyargcount;
    PyObject *more = code->co_flags & CO_VARARGS ? values[named] : NULL;
    Py_ssize_t more_count = more ? PyTuple_GET_SIZE(more) : 0;
    *positional = PyTuple_New(code->co_argcount + more_count);
    *keywords = code->co_flags & CO_VARKEYWORDS ? PyDict_Copy(values[named + (more != NULL)]) : PyDict_New();
    if (!*positional || !*keywords) {
        return -1;
    }
    for (int i = 0; i < code->co_argcount; i++) {
        PyTuple_SET_ITEM(*positional, i, Py_NewRef(values[i]));
    }
    for (Py_ssize_t i = 0; i < more_count; i++) {
        PyTuple_SET_ITEM(*positional, code->co_argcount + i, Py_NewRef(PyTuple_GET_ITEM(more, i)));
    }
    for (int i = code->co_argcount; i < named; i++) {
        if (PyDict_SetItem(*keywords, PyTuple_GET_ITEM(code->co_localsplusnames, i), values[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- calling ---- */

/* `followed`: what it calls is to run as it is, too. */
static PyObject *call_original(Entry *self, PyObject *const *args, size_t nargsf, PyObject *keywords, int followed)
{
    HookThread mine = stator_hook_thread;
    if (followed) {
        stator_switch_hook((HookThread){NULL, NULL});
    } else if (stator_hook_thread.callback) {
        /* the hook would otherwise try what this entry just gave up on */
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

/* The target follows later changes of the original's defaults, which it must bind as the original would. */
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
    if (!bind(&bound, code, self->function, args, PyVectorcall_NARGS(nargsf), keywords)) {
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
    /* the original stays until the end, because a finalizer may call it; so does its gate */
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

/* Functions are nobody's to copy. */
static PyObject *entry_copy(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(self);
}

/* How it is pickled: see dynamo/host/pickling.py. */
static PyObject *entry_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *module = PyImport_ImportModule("stator.dynamo.host.pickling");
    PyObject *reduced = module ? PyObject_CallMethod(module, "reduced", "O", self) : NULL;
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
    {"__reduce__", entry_reduce, METH_NOARGS, NULL},
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

static PyGetSetDef entry_getset[] = {
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

int stator_entry_add_to(PyObject *module)
{
    return PyModule_AddType(module, &EntryType);
}
