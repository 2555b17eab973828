/* The type of callables that run a compiled step through autograd, and the forward of its autograd function. */
#ifndef STATOR_STEP_CALL_H
#define STATOR_STEP_CALL_H

#include "tensor_lists.h"

extern PyTypeObject StatorStepCallType;

int stator_step_call_ready(void);
PyObject *stator_step_forward(PyObject *module, PyObject *args); /* (context, StepCall, *primals) -> tuple */

#endif
