/* The types of sized_call.c, which launch.c adds to the module. */
#ifndef STATOR_SIZED_CALL_H
#define STATOR_SIZED_CALL_H

#include "tensor_lists.h"

extern PyTypeObject StatorSizedCallType;
extern PyTypeObject StatorAllocationType;

#endif
