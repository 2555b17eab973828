/* The part of the CUDA driver that launches need. Declared here, so that no CUDA header is needed to build. */
#ifndef STATOR_CUDA_DRIVER_H
#define STATOR_CUDA_DRIVER_H

#include "tensor_impl.h"

typedef int CudaResult;

typedef struct {
    CudaResult (*init)(unsigned);
    CudaResult (*error_name)(CudaResult, char const **);
    CudaResult (*error_text)(CudaResult, char const **);
    CudaResult (*device)(int *, int);
    CudaResult (*retain_context)(void **, int);
    CudaResult (*current_context)(void **);
    CudaResult (*push_context)(void *);
    CudaResult (*pop_context)(void **);
    CudaResult (*exchange_capture_mode)(int *);
    CudaResult (*load_module)(void **, void const *);
    CudaResult (*function)(void **, void *, char const *);
    CudaResult (*set_attribute)(void *, int, int);
    CudaResult (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                         void **);
    int (*current_stream)(int32_t device, void **stream); /* of torch; NULL: only its Python function tells */
} CudaDriver;

extern CudaDriver stator_cuda;
extern PyTypeObject StatorCudaKernelType, StatorProductType;
extern StatorTensorLayout stator_cuda_layout; /* kernel.c */

/* The primary context of a device, or NULL with an exception. */
void *stator_cuda_context(int device);

/* Raise a RuntimeError that says what failed for which kernel. Returns NULL. */
void *stator_cuda_error(CudaResult code, char const *doing, PyObject *kernel);

int stator_cuda_is_tensor(PyObject *object);

/* The current stream of a device. -1: an exception. */
int stator_cuda_stream(int device, void **stream);

PyObject *stator_cuda_open_products(PyObject *module, PyObject *path); /* products.c */
PyObject *stator_cuda_install(PyObject *module, PyObject *args); /* kernel.c: what launches need of torch */

#endif
