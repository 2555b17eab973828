/* Calls that wait on the stack of a generator (waiting_calls.c). */
#ifndef STATOR_WAITING_CALLS_H
#define STATOR_WAITING_CALLS_H

#include "cpython_compat.h"

PyObject *stator_shown_call(PyObject *held);

#endif
