/* Exceptions that are raised where a frame resumes (deferred_exceptions.c). */
#ifndef STATOR_DEFERRED_EXCEPTIONS_H
#define STATOR_DEFERRED_EXCEPTIONS_H

#include "cpython_compat.h"

/* Defers `error` and takes over the reference. 0: `error` is NULL. */
int stator_raise_later(PyObject *error);
/* Removes and returns the deferred exception, a new reference; or NULL. */
PyObject *stator_take_waiting(void);
/* If the frame did not resume, `error` replaces its result. */
void stator_raise_now(PyObject const *error, PyObject **result);

#endif
