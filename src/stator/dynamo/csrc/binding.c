/* Binds the arguments of a call to the parameters of a function, and back. */
#include "binding.h"

void bound_release(Bound *bound)
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
                return 0; /* both positional and by keyword */
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

int stator_bind(Bound *bound, PyCodeObject *code, PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
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
