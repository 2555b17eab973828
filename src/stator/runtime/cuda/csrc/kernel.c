/* Launches of one kernel on tensors: all of its host time per call. */
#include "driver.h"
#include "tensor_address.h"

#include <stddef.h>

#define INLINE_PARAMETERS 64
#define SCRATCH_PARAMETERS 2 /* Triton's kernels end in pointers to scratch memory, which no kernel here uses */
#define ALIGNMENT 16         /* bytes; promised of all tensors to the compiler of a kernel's aligned variant */

StatorTensorLayout stator_cuda_layout;
static PyTypeObject *tensor_type;  /* torch.Tensor */
static PyObject *data_ptr;         /* torch.Tensor.data_ptr */
static PyObject *get_device;       /* torch.Tensor.get_device: the index of the device, -1 for a CPU */
static PyObject *current_stream;   /* from the index of a device to the address of its current stream */
static void *nothing;              /* the scratch memory of all kernels */
static _Thread_local void *recording_stream; /* not NULL: this thread records what it launches */
static _Thread_local int recording_failed;

typedef struct {
    void *function; /* CUfunction, or NULL: not loaded yet */
    unsigned threads, shared;
} Variant;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Variant variants[2]; /* for tensors at any address; for tensors at multiples of ALIGNMENT */
    PyObject *load;      /* from the number of a variant to (function, threads, shared) */
    PyObject *name;
    void *context;       /* of the device */
    int64_t *sizes;      /* size arguments, passed in every call */
    Py_ssize_t count, size_count;
    unsigned grid[3];
    int device;          /* the driver's number, and torch's index */
    uint16_t code;       /* of the device, as TensorImpl holds it: type, index */
} Kernel;

int stator_cuda_is_tensor(PyObject *object)
{
    return Py_TYPE(object) == tensor_type || PyType_IsSubtype(Py_TYPE(object), tensor_type);
}

static PyObject *other_device(Kernel *self, Py_ssize_t position, PyObject *tensor)
{
    PyObject *device = PyObject_GetAttrString(tensor, "device");
    if (device) {
        PyErr_Format(PyExc_RuntimeError, "argument %zd of kernel %U is on %S, but the kernel was made for CUDA device %d",
                     position, self->name, device, self->device);
        Py_DECREF(device);
    }
    return NULL;
}

/* -1: an exception. */
static int read_address(Kernel *self, Py_ssize_t position, PyObject *tensor, void **address)
{
    if (!stator_cuda_is_tensor(tensor)) {
        PyErr_Format(PyExc_TypeError, "argument %zd of kernel %U must be a tensor, not %.100s", position, self->name,
                     Py_TYPE(tensor)->tp_name);
        return -1;
    }
    int known, here;
    if (stator_cuda_layout.valid) {
        char const *impl = stator_tensor_impl(&stator_cuda_layout, tensor);
        here = impl && stator_tensor_device(&stator_cuda_layout, impl) == self->code;
        known = stator_address_by_offset(&stator_cuda_layout, tensor, address);
    } else {
        PyObject *index = PyObject_CallOneArg(get_device, tensor);
        here = index && PyLong_AsLong(index) == (int8_t)(self->code >> 8);
        Py_XDECREF(index);
        known = PyErr_Occurred() ? -1 : stator_address_by_getter(data_ptr, tensor, address);
    }
    if (known < 0) {
        return -1;
    }
    if (!here) {
        other_device(self, position, tensor);
        return -1;
    }
    if (!known) {
        PyErr_Format(PyExc_RuntimeError, "argument %zd of kernel %U is a tensor without memory", position, self->name);
        return -1;
    }
    return 0;
}

static int load_variant(Kernel *self, int aligned)
{
    unsigned long long function;
    Variant variant;
    PyObject *loaded = PyObject_CallFunction(self->load, "i", aligned);
    if (!loaded || !PyArg_ParseTuple(loaded, "KII", &function, &variant.threads, &variant.shared)) {
        Py_XDECREF(loaded);
        return -1;
    }
    Py_DECREF(loaded);
    variant.function = (void *)(uintptr_t)function;
    self->variants[aligned] = variant;
    return 0;
}

void *stator_cuda_recording_stream(void)
{
    return recording_stream;
}

void stator_cuda_fail_recording(void)
{
    recording_failed = 1;
}

void stator_cuda_begin_recording(void *stream)
{
    recording_stream = stream;
    recording_failed = 0;
}

int stator_cuda_end_recording(void)
{
    recording_stream = NULL;
    return recording_failed;
}

int stator_cuda_stream(int device, void **stream)
{
    if ((*stream = recording_stream)) {
        return 0;
    }
    if (stator_cuda.current_stream) {
        if (stator_cuda.current_stream(device, stream)) {
            PyErr_Format(PyExc_RuntimeError, "torch knows no current stream of CUDA device %d", device);
            return -1;
        }
        return 0;
    }
    PyObject *number = PyObject_CallFunction(current_stream, "i", device);
    *stream = number ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* In a thread that has not used the device yet, or works on another one, its context is not the current one. */
static CudaResult launch(Kernel const *self, Variant const *variant, void *stream, void **parameters)
{
    void *current = NULL;
    CudaResult code = stator_cuda.current_context(&current);
    int push = !code && current != self->context;
    if (push) {
        code = stator_cuda.push_context(self->context);
    }
    if (code) {
        return code;
    }
    /* A launch waits while the queue of the GPU is full, perhaps for a collective that another thread has to launch. */
    Py_BEGIN_ALLOW_THREADS
    code = stator_cuda.launch(variant->function, self->grid[0], self->grid[1], self->grid[2], variant->threads, 1, 1,
                              variant->shared, stream, parameters, NULL);
    Py_END_ALLOW_THREADS
    if (push) {
        stator_cuda.pop_context(&current);
    }
    return code;
}

/* `addresses` holds a place for each tensor, `parameters` one for each parameter. */
static PyObject *launch_on(Kernel *self, PyObject *const *args, void **addresses, void **parameters)
{
    uintptr_t bits = 0;
    void *stream;
    for (Py_ssize_t i = 0; i < self->count; ++i) {
        if (read_address(self, i, args[i], &addresses[i]) < 0) {
            return NULL;
        }
        bits |= (uintptr_t)addresses[i];
        parameters[i] = &addresses[i];
    }
    for (Py_ssize_t i = 0; i < self->size_count; ++i) {
        parameters[self->count + i] = &self->sizes[i]; /* the first bytes, where the parameter has 32 bits */
    }
    for (Py_ssize_t i = 0; i < SCRATCH_PARAMETERS; ++i) {
        parameters[self->count + self->size_count + i] = &nothing;
    }
    int aligned = bits % ALIGNMENT == 0;
    if ((!self->variants[aligned].function && load_variant(self, aligned) < 0) || stator_cuda_stream(self->device, &stream) < 0) {
        return NULL;
    }
    CudaResult code = launch(self, &self->variants[aligned], stream, parameters);
    return code ? stator_cuda_error(code, "launching", self->name) : Py_NewRef(Py_None);
}

static PyObject *Kernel_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Kernel *self = (Kernel *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    void *inline_addresses[INLINE_PARAMETERS], *inline_parameters[INLINE_PARAMETERS];
    if (count != self->count || (kwnames && PyTuple_GET_SIZE(kwnames))) {
        return PyErr_Format(PyExc_TypeError, "kernel %U takes %zd tensors, not %zd arguments", self->name, self->count,
                            count);
    }
    if (!self->grid[0] || !self->grid[1] || !self->grid[2]) {
        Py_RETURN_NONE;
    }
    Py_ssize_t all = count + self->size_count + SCRATCH_PARAMETERS;
    if (all <= INLINE_PARAMETERS) {
        return launch_on(self, args, inline_addresses, inline_parameters);
    }
    void **places = PyMem_Malloc(2 * (size_t)all * sizeof *places);
    PyObject *result = places ? launch_on(self, args, places, places + all) : PyErr_NoMemory();
    PyMem_Free(places);
    return result;
}

/* -1: an exception, such as an OverflowError for a size of more than 64 bits. */
static int add_sizes(Kernel *self, PyObject *sizes)
{
    self->size_count = PyTuple_GET_SIZE(sizes);
    self->sizes = PyMem_Calloc((size_t)self->size_count + 1, sizeof *self->sizes);
    if (!self->sizes) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->size_count; ++i) {
        self->sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i));
        if (self->sizes[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

static PyObject *Kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "count", "device", "code", "grid", "sizes", "load", NULL};
    PyObject *name, *sizes, *load;
    Py_ssize_t count;
    int device;
    unsigned short code;
    unsigned long long grid[3] = {1, 1, 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UniH(KKK)O!O", names, &name, &count, &device, &code, &grid[0],
                                     &grid[1], &grid[2], &PyTuple_Type, &sizes, &load)) {
        return NULL;
    }
    if (count < 0 || grid[0] > INT32_MAX || grid[1] > UINT16_MAX || grid[2] > UINT16_MAX) {
        return PyErr_Format(PyExc_OverflowError, "kernel %U cannot run %llu x %llu x %llu programs", name, grid[0],
                            grid[1], grid[2]);
    }
    if (!tensor_type) {
        PyErr_SetString(PyExc_RuntimeError, "stator.runtime._cuda.install was not called");
        return NULL;
    }
    void *context = stator_cuda_context(device);
    Kernel *self = context ? (Kernel *)type->tp_alloc(type, 0) : NULL;
    if (self) {
        self->vectorcall = Kernel_call;
        self->count = count;
        self->device = device;
        self->code = code;
        self->context = context;
        self->name = Py_NewRef(name);
        self->load = Py_NewRef(load);
        for (int i = 0; i < 3; ++i) {
            self->grid[i] = (unsigned)grid[i];
        }
        if (add_sizes(self, sizes) < 0) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

static void Kernel_dealloc(PyObject *object)
{
    Py_XDECREF(((Kernel *)object)->name);
    Py_XDECREF(((Kernel *)object)->load);
    PyMem_Free(((Kernel *)object)->sizes);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *Kernel_repr(PyObject *object)
{
    Kernel *self = (Kernel *)object;
    return PyUnicode_FromFormat("<kernel %U of %zd tensors on CUDA device %d>", self->name, self->count,
                                self->device);
}

PyTypeObject StatorCudaKernelType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._cuda.Kernel",
    .tp_doc = PyDoc_STR("Kernel(name, count, device, code, grid, sizes, load): call it with `count` tensors to launch a kernel on the "
                        "current stream of their device. load(aligned) returns (function, threads, bytes of shared memory)."),
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Kernel, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = Kernel_new,
    .tp_dealloc = Kernel_dealloc,
    .tp_repr = Kernel_repr,
};

PyObject *stator_cuda_install(PyObject *module, PyObject *args)
{
    PyObject *offsets, *tensor, *data_ptr_, *get_device_, *current_stream_;
    if (!PyArg_ParseTuple(args, "OO!OOO", &offsets, &PyType_Type, &tensor, &data_ptr_, &get_device_, &current_stream_)) {
        return NULL;
    }
    stator_cuda_layout.valid = 0;
    if (offsets != Py_None && stator_layout_install(&stator_cuda_layout, offsets) < 0) {
        return NULL;
    }
    Py_XSETREF(tensor_type, (PyTypeObject *)Py_NewRef(tensor));
    Py_XSETREF(data_ptr, Py_NewRef(data_ptr_));
    Py_XSETREF(get_device, Py_NewRef(get_device_));
    Py_XSETREF(current_stream, Py_NewRef(current_stream_));
    Py_RETURN_NONE;
}
