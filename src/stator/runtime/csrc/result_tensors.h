/* The functions of result_tensors.c, which launch.c adds to the module. */
#ifndef STATOR_RESULT_TENSORS_H
#define STATOR_RESULT_TENSORS_H

#include "torch_c.h"

extern PyMethodDef stator_result_tensor_methods[];

#endif
