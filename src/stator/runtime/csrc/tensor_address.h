/* Addresses of tensors, for all that passes tensors to generated kernels. */
#ifndef STATOR_TENSOR_ADDRESS_H
#define STATOR_TENSOR_ADDRESS_H

#include "tensor_impl.h"

static inline int stator_tensor_is_empty(StatorTensorLayout const *layout, char const *impl)
{
    int64_t ndim = stator_tensor_ndim(layout, impl);
    int64_t const *sizes = stator_tensor_sizes(layout, impl);
    for (int64_t i = 0; i < ndim; ++i) {
        if (sizes[i] == 0) {
            return 1;
        }
    }
    return 0;
}

/* Read an address through the getter `data_ptr`. 1: found; 0: the tensor has elements but no memory; -1: an exception. */
static inline int stator_address_by_getter(PyObject *data_ptr, PyObject *tensor, void **address)
{
    PyObject *number = PyObject_CallOneArg(data_ptr, tensor);
    if (!number) {
        return -1;
    }
    *address = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    if (*address) {
        return 1;
    }
    if (PyErr_Occurred() || !(number = PyObject_CallMethod(tensor, "numel", NULL))) {
        return -1;
    }
    int elements = PyObject_IsTrue(number);
    Py_DECREF(number);
    return elements < 0 ? -1 : !elements;
}

/* Read an address by offset; never raises. */
static inline int stator_address_by_offset(StatorTensorLayout const *layout, PyObject *tensor, void **address)
{
    char const *impl = stator_tensor_impl(layout, tensor);
    *address = impl ? stator_tensor_data(layout, impl) : NULL;
    return *address || (impl && stator_tensor_is_empty(layout, impl));
}

#endif
