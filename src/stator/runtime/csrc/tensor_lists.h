/* Functions of lists of tensors, and the facts of torch that `install` (launch.c) sets for them and for the launcher. */
#ifndef STATOR_TENSOR_LISTS_H
#define STATOR_TENSOR_LISTS_H

#include "tensor_impl.h"

extern StatorTensorLayout stator_layout;
extern PyTypeObject *stator_tensor_type;  /* torch.Tensor */
extern PyObject *stator_untyped_storage;  /* torch.Tensor.untyped_storage */
extern PyMethodDef stator_tensor_list_methods[];

/* As in runtime/launch.py. A new reference, or NULL with an exception; -1 with one. */
PyObject *stator_memory(PyObject *tensors);
PyObject *stator_version(PyObject *tensor);
int stator_are_distinct(PyObject *objects);

static inline int stator_is_tensor(PyObject *object)
{
    return Py_TYPE(object) == stator_tensor_type || PyType_IsSubtype(Py_TYPE(object), stator_tensor_type);
}

#endif
