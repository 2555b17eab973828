/* Functions of lists of tensors, and the facts of torch that `install` (launch.c) sets for them and for the launcher. */
#ifndef STATOR_TENSOR_LISTS_H
#define STATOR_TENSOR_LISTS_H

#include "tensor_impl.h"

extern StatorTensorLayout stator_layout;
extern PyTypeObject *stator_tensor_type;  /* torch.Tensor */
extern PyObject *stator_untyped_storage;  /* torch.Tensor.untyped_storage */
extern PyMethodDef stator_tensor_list_methods[];

static inline int stator_is_tensor(PyObject *object)
{
    return Py_TYPE(object) == stator_tensor_type || PyType_IsSubtype(Py_TYPE(object), stator_tensor_type);
}

#endif
