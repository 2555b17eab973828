/* Binds the arguments of a call to the parameters of a function, and back (binding.c). */
#ifndef STATOR_BINDING_H
#define STATOR_BINDING_H

#include "cpython_compat.h"

#define BOUND_ON_STACK 32

/* Arguments in the order of co_varnames. `owned` holds the references to release. */
typedef struct {
    PyObject *const *values;
    PyObject **own;
    PyObject *varargs, *varkwargs, *defaults;
    PyObject **keyword_defaults; /* NULL where the default is not used */
    int keyword_default_count;
    PyObject *on_stack[BOUND_ON_STACK];
} Bound;

/* Number of values that a call binds: positional, keyword-only, *args, **kwargs. */
static inline int stator_bound_count(PyCodeObject const *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0)
        + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* 1: bound; 0: the arguments do not fit (perhaps with an exception set). The values are borrowed from the caller, from
 * the function's defaults, and from `bound`, which the caller releases in both cases. */
int stator_bind(Bound *bound, PyCodeObject *code, PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
void bound_release(Bound *bound);

/* Bound values (in the order of co_varnames) as (positional tuple, keyword dict), new references, for an ordinary call.
 * -1: with an exception; references made so far are left in the outputs. */
int stator_unbind(PyCodeObject *code, PyObject *const *values, PyObject **positional, PyObject **keywords);

#endif
