/* Exceptions that are raised where a frame goes on (deferred_exceptions.c). */
#ifndef STATOR_DEFERRED_EXCEPTIONS_H
#define STATOR_DEFERRED_EXCEPTIONS_H

#include "cpython_compat.h"

/* 1: `error`, whose reference is taken over, is waiting now; 0: it is NULL. */
int stator_raise_later(PyObject *error);
/* What is waiting, a new reference, and waits no longer; or NULL. */
PyObject *stator_take_waiting(void);
/* Where the frame never got to where it goes on, `error` takes the place of what it gave. */
void stator_raise_now(PyObject const *error, PyObject **result);

#endif
