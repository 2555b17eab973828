/* The functions by which the parts of stator.dynamo._native add to the module, in the order of native.c. */
#ifndef STATOR_NATIVE_H
#define STATOR_NATIVE_H

#include "cpython_compat.h"

int stator_guards_add_to(PyObject *module);
int stator_state_add_to(PyObject *module);
int stator_cache_add_to(PyObject *module);
int stator_entry_add_to(PyObject *module);
int stator_continuation_add_to(PyObject *module);
int stator_own_code_exit_add_to(PyObject *module);
int stator_deferred_exceptions_add_to(PyObject *module);
int stator_hook_add_to(PyObject *module);
int stator_switches_add_to(PyObject *module);

#endif
