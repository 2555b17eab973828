/* Functions of torch's libraries that make tensors without a search for an operator. */
#ifndef STATOR_TORCH_C_H
#define STATOR_TORCH_C_H

#include "tensor_lists.h"

/* torch's C interface to tensors, and the function that makes the Python object of a tensor. A tensor is the address of
 * a reference in C++. NULL where the libraries have no such function; the others return 0, or an error. */
typedef struct {
    int32_t (*empty_strided)(int64_t ndim, int64_t const *size, int64_t const *stride, int32_t dtype, int32_t device,
                             int32_t device_index, void **tensor);
    int32_t (*reinterpret)(void *tensor, int64_t ndim, int64_t const *size, int64_t const *stride, int64_t offset,
                           void **result); /* another tensor of this memory; `offset` is added */
    int32_t (*delete_tensor)(void *tensor);
    PyObject *(*wrap)(void *tensor);
} StatorTorchC;

extern StatorTorchC stator_torch_c;

/* Look for these functions, if the libraries are loaded. */
void stator_find_torch_c(void);

/* The Python object of a tensor that this function consumes: a new reference, or NULL with an exception. */
static inline PyObject *stator_wrap_tensor(void *tensor)
{
    PyObject *result = stator_torch_c.wrap(tensor);
    stator_torch_c.delete_tensor(tensor);
    return result;
}

#endif
