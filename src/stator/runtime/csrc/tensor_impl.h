/* Reads a tensor's metadata from its C++ TensorImpl, at offsets that runtime/tensor_impl.py finds by experiment. No
 * torch header is needed, and nothing here writes to a tensor. */
#ifndef STATOR_TENSOR_IMPL_H
#define STATOR_TENSOR_IMPL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Sizes and strides of up to this many dimensions are stored inside TensorImpl, longer ones behind a pointer. */
#define STATOR_INLINE_DIMS 5

/* Byte offsets. `valid` is 0 until a calibration with a passed self-test is installed; read nothing before. */
typedef struct {
    int valid;
    int cdata;          /* PyObject -> TensorImpl* */
    int sizes;          /* TensorImpl -> ndim; sizes (or a pointer to them) follow, then strides */
    int dtype;          /* TensorImpl -> uint16 type code */
    int device;         /* TensorImpl -> uint16 device type and index */
    int keyset;         /* TensorImpl -> uint64 dispatch key set */
    int storage_offset; /* TensorImpl -> int64, in elements */
    int storage;        /* TensorImpl -> StorageImpl* */
    int storage_data;   /* StorageImpl -> address of the first byte */
    int use_count;      /* TensorImpl, StorageImpl -> uint32 number of references in C++ */
    int version_counter; /* TensorImpl -> VersionCounter* or NULL */
    int version;        /* VersionCounter -> uint32 */
    int autograd_meta;  /* TensorImpl -> AutogradMeta* or NULL */
    int requires_grad;  /* AutogradMeta -> bool */
    int grad_fn;        /* AutogradMeta -> pointer or NULL */
    uint64_t leaf_autograd_vtable;  /* first word of an AutogradMeta of a tensor that is no view */
    uint8_t itemsize[256];         /* bytes per element by type code; 0: unknown */
} StatorTensorLayout;

/* Install the tuple of `TensorLayout.as_tuple()` (14 offsets, vtable, itemsize bytes). -1 with an exception on
   error. */
static inline int stator_layout_install(StatorTensorLayout *layout, PyObject *tuple)
{
    StatorTensorLayout new_layout;
    const char *itemsize;
    Py_ssize_t itemsize_length;
    unsigned long long vtable;
    memset(&new_layout, 0, sizeof new_layout);
    if (!PyArg_ParseTuple(tuple, "iiiiiiiiiiiiiiKy#;a TensorLayout tuple is expected",
                          &new_layout.cdata, &new_layout.sizes, &new_layout.dtype, &new_layout.device,
                          &new_layout.keyset, &new_layout.storage_offset, &new_layout.storage,
                          &new_layout.storage_data, &new_layout.use_count, &new_layout.version_counter,
                          &new_layout.version, &new_layout.autograd_meta, &new_layout.requires_grad,
                          &new_layout.grad_fn, &vtable, &itemsize, &itemsize_length)) {
        return -1;
    }
    if (itemsize_length != (Py_ssize_t)sizeof new_layout.itemsize) {
        PyErr_SetString(PyExc_ValueError, "the itemsize table of a TensorLayout has 256 bytes");
        return -1;
    }
    memcpy(new_layout.itemsize, itemsize, sizeof new_layout.itemsize);
    new_layout.leaf_autograd_vtable = vtable;
    new_layout.valid = 1;
    *layout = new_layout;
    return 0;
}

#define STATOR_AT(type, base, offset) (*(type const *)((char const *)(base) + (offset)))

/* The readers below expect a torch.Tensor (or subclass); NULL: the tensor has no C++ object. */
static inline char const *stator_tensor_impl(StatorTensorLayout const *layout, PyObject *tensor)
{
    return STATOR_AT(char const *, tensor, layout->cdata);
}

static inline int64_t stator_tensor_ndim(StatorTensorLayout const *layout, char const *impl)
{
    return STATOR_AT(int64_t, impl, layout->sizes);
}

static inline int64_t const *stator_tensor_sizes(StatorTensorLayout const *layout, char const *impl)
{
    char const *behind = impl + layout->sizes + sizeof(int64_t);
    return stator_tensor_ndim(layout, impl) <= STATOR_INLINE_DIMS ? (int64_t const *)behind
                                                                  : *(int64_t const *const *)behind;
}

static inline int64_t const *stator_tensor_strides(StatorTensorLayout const *layout, char const *impl)
{
    int64_t ndim = stator_tensor_ndim(layout, impl);
    return stator_tensor_sizes(layout, impl) + (ndim <= STATOR_INLINE_DIMS ? STATOR_INLINE_DIMS : ndim);
}

static inline uint16_t stator_tensor_dtype(StatorTensorLayout const *layout, char const *impl)
{
    return STATOR_AT(uint16_t, impl, layout->dtype);
}

static inline uint16_t stator_tensor_device(StatorTensorLayout const *layout, char const *impl)
{
    return STATOR_AT(uint16_t, impl, layout->device);
}

static inline uint64_t stator_tensor_keyset(StatorTensorLayout const *layout, char const *impl)
{
    return STATOR_AT(uint64_t, impl, layout->keyset);
}

static inline int64_t stator_tensor_storage_offset(StatorTensorLayout const *layout, char const *impl)
{
    return STATOR_AT(int64_t, impl, layout->storage_offset);
}

static inline int stator_tensor_itemsize(StatorTensorLayout const *layout, char const *impl)
{
    return layout->itemsize[stator_tensor_dtype(layout, impl) & 0xff];
}

/* Address of the storage's first byte; NULL without a storage or memory. */
static inline char *stator_tensor_storage_data(StatorTensorLayout const *layout, char const *impl)
{
    char const *storage = STATOR_AT(char const *, impl, layout->storage);
    return storage ? STATOR_AT(char *, storage, layout->storage_data) : NULL;
}

/* Address of element 0. Only for strided tensors whose storage has memory. */
static inline char *stator_tensor_data(StatorTensorLayout const *layout, char const *impl)
{
    char *data = stator_tensor_storage_data(layout, impl);
    int64_t offset = stator_tensor_storage_offset(layout, impl) * stator_tensor_itemsize(layout, impl);
    return data ? data + offset : NULL;
}

/* The version of a tensor; -1 for one made in inference mode, which has none. */
static inline int64_t stator_tensor_version(StatorTensorLayout const *layout, char const *impl)
{
    char const *counter = STATOR_AT(char const *, impl, layout->version_counter);
    return counter ? (int64_t)STATOR_AT(uint32_t, counter, layout->version) : -1;
}

/* 1 or 0; -1 if only the getter knows (a differentiable view asks its base). */
static inline int stator_tensor_requires_grad(StatorTensorLayout const *layout, char const *impl)
{
    char const *meta = STATOR_AT(char const *, impl, layout->autograd_meta);
    if (!meta) {
        return 0;
    }
    if (STATOR_AT(uint8_t, meta, layout->requires_grad) || STATOR_AT(void *, meta, layout->grad_fn)) {
        return 1;
    }
    return STATOR_AT(uint64_t, meta, 0) == layout->leaf_autograd_vtable ? 0 : -1;
}

#endif
