/* What the interpreter makes of the result of a function that an instruction entered (finishing.c). */
#ifndef STATOR_FINISHING_H
#define STATOR_FINISHING_H

#include "cpython_compat.h"

void stator_tell_what_was_read(PyObject *owner, PyObject *name);

#endif
