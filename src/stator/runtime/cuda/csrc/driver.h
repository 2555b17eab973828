/* The part of the CUDA driver that launches need. Declared here, so that no CUDA header is needed to build. */
#ifndef STATOR_CUDA_DRIVER_H
#define STATOR_CUDA_DRIVER_H

#include "tensor_impl.h"

#define STATOR_MOST_DEVICES 64

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
    CudaResult (*create_stream)(void **, unsigned);
    CudaResult (*begin_capture)(void *, int);
    CudaResult (*end_capture)(void *, void **);
    CudaResult (*is_capturing)(void *, int *);
    CudaResult (*instantiate)(void **, void *, unsigned long long);
    CudaResult (*launch_graph)(void *, void *);
    CudaResult (*destroy_graph)(void *);
    CudaResult (*destroy_exec)(void *);
    int (*current_stream)(int32_t device, void **stream); /* of torch; NULL: only its Python function tells */
} CudaDriver;

extern CudaDriver stator_cuda;
extern PyTypeObject StatorCudaKernelType, StatorProductType, StatorSegmentType;
extern StatorTensorLayout stator_cuda_layout; /* kernel.c */

/* The primary context of a device, or NULL with an exception. */
void *stator_cuda_context(int device);

/* Raise a RuntimeError that says what failed for which kernel. Returns NULL. */
void *stator_cuda_error(CudaResult code, char const *doing, PyObject *kernel);

int stator_cuda_is_tensor(PyObject *object);

/* The stream of a segment that this thread records, or NULL: then nothing may be launched that is not recorded. */
void *stator_cuda_recording_stream(void);
void stator_cuda_fail_recording(void);
/* From now on this thread launches on `stream`, which is recorded. */
void stator_cuda_begin_recording(void *stream);
/* Whether the recording failed since it began. */
int stator_cuda_end_recording(void);

/* The stream to launch on: the current one of a device, or the one that is recorded. -1: an exception. */
int stator_cuda_stream(int device, void **stream);

PyObject *stator_cuda_open_products(PyObject *module, PyObject *path); /* products.c */
PyObject *stator_cuda_install(PyObject *module, PyObject *args); /* kernel.c: what launches need of torch */

#endif
