/* Version and Cache: the compiled versions of a frame, and the search for a version whose guards hold. The miss callback
 * (dynamo/cache/compiled_frames.py) makes versions. */
#include "cache.h"

#include "binding.h"
#include "guard_memo.h"
#include "hook_chain.h"
#include "native.h"
#include "switches.h"

/* ---- Version ---- */

/* Whether only this version (and its target, which only this version holds) refers to the code. Then no frame runs it. */
static int owns_code(Version const *version)
{
    if (!version->code || version->code == Py_None) {
        return 0;
    }
    PyObject *target = version->target;
    int by_target = target && PyFunction_Check(target) && PyFunction_GET_CODE(target) == version->code;
    return Py_REFCNT(version->code) == 1 + by_target && (!by_target || Py_REFCNT(target) == 1);
}

static int version_traverse(PyObject *self, visitproc visit, void *arg)
{
    Version *version = (Version *)self;
    /* The collector does not traverse code objects, but emitted code has callables among its constants that refer back
     * to this version. So the version traverses the code's references, as long as nothing else refers to the code. */
    if (owns_code(version)) {
        Py_VISIT(((PyCodeObject *)version->code)->co_consts);
    }
    Py_VISIT(version->guards);
    Py_VISIT(version->code);
    Py_VISIT(version->target);
    Py_VISIT(version->detail);
    return 0;
}

static int version_clear(PyObject *self)
{
    Version *version = (Version *)self;
    Py_CLEAR(version->guards);
    Py_CLEAR(version->code);
    Py_CLEAR(version->target);
    Py_CLEAR(version->detail);
    return 0;
}

static void version_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    version_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *version_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"guards", "code", "target", "detail", "receiver", "followed", NULL};
    PyObject *guards, *code, *target, *detail = Py_None, *receiver = Py_None;
    int followed = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|OOi", names, &GuardTreeType, &guards, &code, &target, &detail,
                                     &receiver, &followed)) {
        return NULL;
    }
    if (code != Py_None && !PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "code must be a code object or None");
        return NULL;
    }
    Version *version = (Version *)type->tp_alloc(type, 0);
    if (version) {
        version->guards = Py_NewRef(guards);
        version->code = Py_NewRef(code);
        version->target = Py_NewRef(target);
        version->detail = Py_NewRef(detail);
        version->receiver = receiver == Py_None ? NULL : receiver;
        version->followed = (signed char)followed;
    }
    return (PyObject *)version;
}

static PyMemberDef version_members[] = {
    {"guards", T_OBJECT, offsetof(Version, guards), READONLY, "the GuardTree"},
    {"code", T_OBJECT, offsetof(Version, code), READONLY, "code to run instead of the original's, or None"},
    {"target", T_OBJECT, offsetof(Version, target), READONLY, "callable to run instead of the original, or None"},
    {"detail", T_OBJECT, offsetof(Version, detail), READONLY, "what explanations need"},
    {"followed", T_BYTE, offsetof(Version, followed), READONLY, "above 0: nothing that the original calls is to be compiled; below: it was given up"},
    {"hits", T_ULONGLONG, offsetof(Version, hits), READONLY, "how often it was chosen"},
    {0},
};

PyTypeObject VersionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.Version",
    .tp_doc = "One compiled version of a frame: guards, and the code or callable that they stand for.",
    .tp_basicsize = sizeof(Version),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = version_new,
    .tp_dealloc = version_dealloc,
    .tp_traverse = version_traverse,
    .tp_clear = version_clear,
    .tp_members = version_members,
};

/* ---- Cache ---- */

static int cache_traverse(PyObject *self, visitproc visit, void *arg)
{
    Cache *cache = (Cache *)self;
    Py_VISIT(cache->versions);
    Py_VISIT(cache->miss);
    return 0;
}

static int cache_clear(PyObject *self)
{
    Cache *cache = (Cache *)self;
    PyObject *empty = PyTuple_New(0);
    PyObject *versions = cache->versions;
    cache->versions = empty;
    Py_XDECREF(versions);
    Py_CLEAR(cache->miss);
    return 0;
}

static void cache_dealloc(PyObject *self)
{
    Cache *cache = (Cache *)self;
    PyObject_GC_UnTrack(self);
    if (cache->weakrefs) {
        PyObject_ClearWeakRefs(self);
    }
    Py_CLEAR(cache->versions);
    Py_CLEAR(cache->miss);
    Py_CLEAR(cache->code);
    Py_TYPE(self)->tp_free(self);
}

/* Position of the parameter `self`, or of the first one; -1 without parameters. */
static int receiver_of(PyCodeObject *code)
{
    for (int i = 0; i < code->co_argcount; i++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(code->co_localsplusnames, i), "self") == 0) {
            return i;
        }
    }
    return code->co_argcount ? 0 : -1;
}

static PyObject *cache_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"code", "miss", NULL};
    PyObject *code, *miss;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O", names, &PyCode_Type, &code, &miss)) {
        return NULL;
    }
    Cache *cache = (Cache *)type->tp_alloc(type, 0);
    if (!cache) {
        return NULL;
    }
    cache->miss = Py_NewRef(miss);
    cache->versions = PyTuple_New(0);
    cache->code = PyWeakref_NewRef(code, NULL);
    cache->receiver = receiver_of((PyCodeObject *)code);
    if (!cache->versions || !cache->code) {
        Py_DECREF(cache);
        return NULL;
    }
    return (PyObject *)cache;
}

static PyObject *cache_get_versions(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(((Cache *)self)->versions);
}

static int cache_set_versions(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (!value || !PyTuple_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "versions must be a tuple of Version");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(value, i), &VersionType)) {
            PyErr_SetString(PyExc_TypeError, "versions must be a tuple of Version");
            return -1;
        }
    }
    PyObject *old = ((Cache *)self)->versions;
    ((Cache *)self)->versions = Py_NewRef(value);
    Py_XDECREF(old);
    return 0;
}

/* The tuple with item `index` moved to the front. Best effort: keeps the order when memory is short. */
static void move_to_front(Cache *cache, PyObject *versions, Py_ssize_t index)
{
    if (cache->versions != versions) {
        return; /* changed by code that ran during the lookup */
    }
    Py_ssize_t count = PyTuple_GET_SIZE(versions);
    PyObject *reordered = PyTuple_New(count);
    if (!reordered) {
        PyErr_Clear();
        return;
    }
    PyTuple_SET_ITEM(reordered, 0, Py_NewRef(PyTuple_GET_ITEM(versions, index)));
    for (Py_ssize_t from = 0, to = 1; from < count; from++) {
        if (from != index) {
            PyTuple_SET_ITEM(reordered, to++, Py_NewRef(PyTuple_GET_ITEM(versions, from)));
        }
    }
    cache->versions = reordered;
    Py_DECREF(versions); /* the cache's reference; the caller of the lookup holds another */
}

/* Versions made for this receiver come first: many instances of a class share a method, and each finds its own version
 * at once. Only the guards decide whether a version fits. */
Version *stator_cache_lookup(Cache *cache, PyObject *const *locals, Py_ssize_t count, PyObject *function)
{
    PyObject *versions = Py_NewRef(cache->versions);
    void const *receiver = cache->receiver >= 0 && cache->receiver < count ? locals[cache->receiver] : NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(versions), at = -1;
    int tried = 0;
    for (int own = receiver != NULL; own >= 0 && at < 0; own--) {
        for (Py_ssize_t i = 0; i < size; i++) {
            Version *version = (Version *)PyTuple_GET_ITEM(versions, i);
            if ((receiver && version->receiver == receiver) != own) {
                continue;
            }
            if (version->guards && stator_guards_hold(version->guards, locals, count, function, NULL)) {
                at = i;
                break;
            }
            if (PyErr_Occurred()) {
                Py_DECREF(versions);
                return NULL;
            }
            tried++;
        }
    }
    Version *found = NULL;
    if (at >= 0) {
        found = (Version *)Py_NewRef(PyTuple_GET_ITEM(versions, at));
        found->hits++;
        if (tried && (found->followed == 0 || found->followed == 1)) {
            move_to_front(cache, versions, at);
        }
    }
    Py_DECREF(versions);
    return found;
}

static __thread int compiling = 0; /* the number of running miss callbacks in this thread */

/* Calls the callback and restores the thread's state afterwards, also after an interrupt at any point, which Python code
 * could not guarantee. The frame hook is off during the call. */
static PyObject *call_miss(Cache *cache, PyObject *miss, PyObject *function, PyObject *bound)
{
    HookThread saved = stator_hook_thread;
    stator_hook_thread = (HookThread){NULL, NULL};
    cache->busy = 1;
    compiling++;
    PyObject *result = PyObject_CallFunctionObjArgs(miss, (PyObject *)cache, function, bound, NULL);
    compiling--;
    cache->busy = 0;
    stator_hook_thread = saved;
    return result;
}

Version *stator_cache_miss(Cache *cache, PyCodeObject *code, PyObject *const *locals, PyObject *function)
{
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (stator_stack_is_low(STATOR_STACK_FOR_COMPILING)) {
        return NULL;
    }
    if (cache->busy) {
        /* In this thread, the compiler itself calls the function; in another thread, the function is being compiled.
         * Running the original is right in both cases, and without waiting there is no deadlock. */
        return NULL;
    }
    PyObject *miss = Py_XNewRef(cache->miss);
    if (!miss) {
        return NULL; /* cleared by the collector */
    }
    Version *version = NULL;
    PyObject *result = NULL, *bound = PyDict_New(), *names = PyCode_GetVarnames(code);
    if (!bound || !names) {
        goto done;
    }
    int count = stator_bound_count(code);
    for (int i = 0; i < count; i++) {
        if (PyDict_SetItem(bound, PyTuple_GET_ITEM(names, i), locals[i]) < 0) {
            goto done;
        }
    }
    result = call_miss(cache, miss, function, bound);
    if (result && Py_IS_TYPE(result, &VersionType)) {
        version = (Version *)Py_NewRef(result);
    } else if (result && result != Py_None) {
        PyErr_Format(PyExc_TypeError, "miss callback returned %.100s, not Version or None", Py_TYPE(result)->tp_name);
    }
done:
    Py_XDECREF(result);
    Py_XDECREF(bound);
    Py_XDECREF(names);
    Py_DECREF(miss);
    return version;
}

static PyMemberDef cache_members[] = {
    {"eager", T_BOOL, offsetof(Cache, eager), 0, "run the original from now on"},
    {"busy", T_BOOL, offsetof(Cache, busy), 0, "the miss callback is at work"},
    {"miss", T_OBJECT, offsetof(Cache, miss), READONLY, "what is called when no version fits"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Cache, weakrefs), READONLY, NULL},
    {0},
};

static PyGetSetDef cache_getset[] = {
    {"versions", cache_get_versions, cache_set_versions, "tuple of Version, most recently used first", NULL},
    {0},
};

PyTypeObject CacheType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.Cache",
    .tp_doc = "The compiled versions of one frame.",
    .tp_basicsize = sizeof(Cache),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = cache_new,
    .tp_dealloc = cache_dealloc,
    .tp_traverse = cache_traverse,
    .tp_clear = cache_clear,
    .tp_members = cache_members,
    .tp_getset = cache_getset,
    .tp_weaklistoffset = offsetof(Cache, weakrefs),
};

static PyObject *compiling_depth(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(compiling);
}

static PyMethodDef methods[] = {
    {"compiling_depth", compiling_depth, METH_NOARGS, "How many miss callbacks are at work in this thread."},
    {0},
};

int stator_cache_add_to(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0) {
        return -1;
    }
    if (PyModule_AddType(module, &VersionType) < 0) {
        return -1;
    }
    return PyModule_AddType(module, &CacheType);
}
