/* Calls generated kernels on tensors, and caches views of parameters: the work of compiled code per call. No
 * computation and no allocation decisions live here. No torch headers; tensor_impl.h reads metadata by offset. */
#include "result_tensors.h"
#include "sized_call.h"
#include "step_call.h"
#include "tensor_address.h"

#include <stddef.h>

#define INLINE_ARGUMENTS 48

static PyObject *data_ptr;            /* torch.Tensor.data_ptr: reads an address without a calibrated layout */
static PyObject *as_strided;          /* torch.as_strided */
static PyObject *storage_offset;      /* torch.Tensor.storage_offset */
static PyObject *get_num_threads;     /* torch.get_num_threads */
static _Thread_local int thread_ready; /* torch has set OpenMP's number of threads for this thread */

/* torch sets OpenMP's number of threads lazily, per thread: make sure that it has done so before a parallel region. */
static int prepare_thread(void)
{
    PyObject *number = PyObject_CallNoArgs(get_num_threads);
    if (!number) {
        return -1;
    }
    Py_DECREF(number);
    thread_ready = 1;
    return 0;
}

/* ---- Kernel ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    void *function; /* void(void *const *), or with sizes void(void *const *, int64_t const *) */
    Py_ssize_t count;
    int64_t *sizes; /* passed in every call, or NULL */
    int small; /* so short that releasing the interpreter lock would cost more than it gains */
    PyObject *name;
    PyObject *owner; /* the address as a number, which keeps the code mapped */
} Kernel;

static PyObject *raise_index_error(Kernel *self, int64_t const *error)
{
    if (error[2] == 0) {
        PyErr_Format(PyExc_IndexError, "index is out of bounds for dimension with size 0 (in kernel %U)", self->name);
        return NULL;
    }
    PyErr_Format(PyExc_IndexError, "index %lld is out of bounds for dimension with size %lld (in kernel %U)",
                 (long long)error[1], (long long)error[2], self->name);
    return NULL;
}

static PyObject *raise_no_memory(Kernel *self, Py_ssize_t position)
{
    PyErr_Format(PyExc_RuntimeError, "argument %zd of kernel %U is a tensor without memory", position, self->name);
    return NULL;
}

static void run(Kernel const *self, void *const *pointers)
{
    if (self->sizes) {
        ((void (*)(void *const *, int64_t const *))self->function)(pointers, self->sizes);
    } else {
        ((void (*)(void *const *))self->function)(pointers);
    }
}

static PyObject *Kernel_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Kernel *self = (Kernel *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    void *inline_pointers[INLINE_ARGUMENTS + 1];
    void **pointers = inline_pointers;
    int64_t error[3] = {0, 0, 0};
    PyObject *result = NULL;

    if (count != self->count || (kwnames && PyTuple_GET_SIZE(kwnames))) {
        PyErr_Format(PyExc_TypeError, "kernel %U takes %zd tensors, not %zd arguments", self->name, self->count, count);
        return NULL;
    }
    if (count > INLINE_ARGUMENTS) {
        pointers = PyMem_Malloc(sizeof(void *) * (size_t)(count + 1));
        if (!pointers) {
            return PyErr_NoMemory();
        }
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (!stator_is_tensor(args[i])) {
            PyErr_Format(PyExc_TypeError, "argument %zd of kernel %U must be a tensor, not %.100s", i, self->name,
                         Py_TYPE(args[i])->tp_name);
            goto done;
        }
        int known = stator_layout.valid ? stator_address_by_offset(&stator_layout, args[i], &pointers[i])
                                        : stator_address_by_getter(data_ptr, args[i], &pointers[i]);
        if (known != 1) {
            if (known == 0) {
                raise_no_memory(self, i);
            }
            goto done;
        }
    }
    pointers[count] = error;
    if (!thread_ready && prepare_thread() < 0) {
        goto done;
    }
    if (self->small) {
        run(self, pointers);
    } else {
        Py_BEGIN_ALLOW_THREADS
        run(self, pointers);
        Py_END_ALLOW_THREADS
    }
    result = error[0] ? raise_index_error(self, error) : Py_NewRef(Py_None);
done:
    if (pointers != inline_pointers) {
        PyMem_Free(pointers);
    }
    return result;
}

/* Keep the size arguments. -1: an exception, such as an OverflowError for a size of more than 64 bits. */
static int add_sizes(Kernel *self, PyObject *sizes)
{
    Py_ssize_t count = PyTuple_GET_SIZE(sizes);
    if (!count) {
        return 0;
    }
    self->sizes = PyMem_Calloc((size_t)count, sizeof *self->sizes);
    if (!self->sizes) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        self->sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i));
        if (self->sizes[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

static PyObject *Kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "count", "name", "small", "sizes", NULL};
    Py_ssize_t count;
    PyObject *owner, *name, *sizes = NULL;
    int small = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nU|pO!", names, &PyLong_Type, &owner, &count, &name, &small,
                                     &PyTuple_Type, &sizes)) {
        return NULL;
    }
    void *address = PyLong_AsVoidPtr(owner);
    if (!address && PyErr_Occurred()) {
        return NULL;
    }
    if (!address || count < 0) {
        PyErr_SetString(PyExc_ValueError, "a kernel needs an address and a number of arguments");
        return NULL;
    }
    if (!stator_tensor_type) {
        PyErr_SetString(PyExc_RuntimeError, "stator.runtime._launch.install was not called");
        return NULL;
    }
    Kernel *self = (Kernel *)type->tp_alloc(type, 0);
    if (self) {
        self->vectorcall = Kernel_call;
        self->function = address;
        self->owner = Py_NewRef(owner);
        self->count = count;
        self->small = small;
        self->name = Py_NewRef(name);
        if (sizes && add_sizes(self, sizes) < 0) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

static void Kernel_dealloc(PyObject *object)
{
    Py_XDECREF(((Kernel *)object)->owner);
    Py_XDECREF(((Kernel *)object)->name);
    PyMem_Free(((Kernel *)object)->sizes);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *Kernel_repr(PyObject *object)
{
    Kernel *self = (Kernel *)object;
    return PyUnicode_FromFormat("<kernel %U of %zd tensors at %p>", self->name, self->count, self->function);
}

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._launch.Kernel",
    .tp_doc = PyDoc_STR("Kernel(address, count, name, small=False, sizes=()): call a generated kernel on `count` tensors, with these sizes."),
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Kernel, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = Kernel_new,
    .tp_dealloc = Kernel_dealloc,
    .tp_repr = Kernel_repr,
};

/* ---- StaticView ------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *size, *stride;
    Py_ssize_t offset;
    PyObject *view;      /* the view made last, or NULL */
    char const *storage; /* storage of the viewed tensor; `view` keeps it alive, so its address is not reused */
    char const *data;
} StaticView;

static PyObject *make_view(StaticView *self, PyObject *tensor)
{
    PyObject *number = PyObject_CallOneArg(storage_offset, tensor);
    Py_ssize_t start = number ? PyNumber_AsSsize_t(number, PyExc_OverflowError) : -1;
    Py_XDECREF(number);
    if (start == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *offset = PyLong_FromSsize_t(start + self->offset);
    if (!offset) {
        return NULL;
    }
    PyObject *arguments[] = {tensor, self->size, self->stride, offset};
    PyObject *view = PyObject_Vectorcall(as_strided, arguments, 4, NULL);
    Py_DECREF(offset);
    return view;
}

/* The cached view is valid as long as the tensor has this StorageImpl and address. The view keeps the StorageImpl
 * alive, so an equal pointer means the same object, even if `.data` was assigned in between. */
static PyObject *StaticView_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    StaticView *self = (StaticView *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames)) || !stator_is_tensor(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a static view takes one tensor");
        return NULL;
    }
    if (!stator_layout.valid) {
        return make_view(self, args[0]);
    }
    char const *impl = stator_tensor_impl(&stator_layout, args[0]);
    char const *storage = impl ? STATOR_AT(char const *, impl, stator_layout.storage) : NULL;
    char const *data = storage ? stator_tensor_data(&stator_layout, impl) : NULL;
    if (self->view && data && storage == self->storage && data == self->data) {
        return Py_NewRef(self->view);
    }
    PyObject *view = make_view(self, args[0]);
    if (view) {
        Py_XSETREF(self->view, Py_NewRef(view));
        self->storage = storage;
        self->data = data;
    }
    return view;
}

static PyObject *StaticView_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"size", "stride", "offset", NULL};
    PyObject *size, *stride;
    Py_ssize_t offset = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|n", names, &PyTuple_Type, &size, &PyTuple_Type, &stride,
                                     &offset)) {
        return NULL;
    }
    StaticView *self = (StaticView *)type->tp_alloc(type, 0);
    if (self) {
        self->vectorcall = StaticView_call;
        self->size = Py_NewRef(size);
        self->stride = Py_NewRef(stride);
        self->offset = offset;
    }
    return (PyObject *)self;
}

static void StaticView_dealloc(PyObject *object)
{
    StaticView *self = (StaticView *)object;
    Py_XDECREF(self->size);
    Py_XDECREF(self->stride);
    Py_XDECREF(self->view);
    Py_TYPE(object)->tp_free(object);
}

static PyTypeObject StaticViewType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._launch.StaticView",
    .tp_doc = PyDoc_STR("StaticView(size, stride, offset=0): call it with a tensor to get that view of its memory, "
                        "relative to the tensor's own start; made once per storage."),
    .tp_basicsize = sizeof(StaticView),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(StaticView, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = StaticView_new,
    .tp_dealloc = StaticView_dealloc,
};

/* ---- LayoutCheck ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *repair;  /* called with a tensor that does not match; its result is returned */
    int64_t ndim;
    int64_t *sizes;    /* sizes, then strides */
    uint16_t dtype, device;
} LayoutCheck;

/* Strides of dimensions of size one, and of tensors without elements, address nothing. */
static int keeps(LayoutCheck const *self, PyObject *tensor)
{
    char const *impl = stator_layout.valid && self->sizes && stator_is_tensor(tensor) ? stator_tensor_impl(&stator_layout, tensor) : NULL;
    if (!impl || stator_tensor_ndim(&stator_layout, impl) != self->ndim || stator_tensor_dtype(&stator_layout, impl) != self->dtype
        || stator_tensor_device(&stator_layout, impl) != self->device) {
        return 0;
    }
    int64_t const *sizes = stator_tensor_sizes(&stator_layout, impl), *strides = stator_tensor_strides(&stator_layout, impl);
    int same = 1, empty = 0;
    for (int64_t i = 0; i < self->ndim; ++i) {
        if (sizes[i] != self->sizes[i]) {
            return 0;
        }
        empty |= sizes[i] == 0;
        same &= sizes[i] == 1 || strides[i] == self->sizes[self->ndim + i];
    }
    return same || empty;
}

static PyObject *LayoutCheck_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    LayoutCheck *self = (LayoutCheck *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "a layout check takes one tensor");
        return NULL;
    }
    return keeps(self, args[0]) ? Py_NewRef(args[0]) : PyObject_CallOneArg(self->repair, args[0]);
}

static PyObject *LayoutCheck_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"template", "repair", NULL};
    PyObject *template, *repair;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O", names, stator_tensor_type, &template, &repair)) {
        return NULL;
    }
    LayoutCheck *self = (LayoutCheck *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->vectorcall = LayoutCheck_call;
    self->repair = Py_NewRef(repair);
    char const *impl = stator_layout.valid ? stator_tensor_impl(&stator_layout, template) : NULL;
    if (impl) {
        self->ndim = stator_tensor_ndim(&stator_layout, impl);
        self->dtype = stator_tensor_dtype(&stator_layout, impl);
        self->device = stator_tensor_device(&stator_layout, impl);
        self->sizes = PyMem_Calloc(2 * (size_t)self->ndim + 1, sizeof *self->sizes);
        if (!self->sizes) {
            Py_DECREF(self);
            return PyErr_NoMemory();
        }
        memcpy(self->sizes, stator_tensor_sizes(&stator_layout, impl), self->ndim * sizeof *self->sizes);
        memcpy(self->sizes + self->ndim, stator_tensor_strides(&stator_layout, impl), self->ndim * sizeof *self->sizes);
    }
    return (PyObject *)self;
}

static void LayoutCheck_dealloc(PyObject *object)
{
    LayoutCheck *self = (LayoutCheck *)object;
    Py_XDECREF(self->repair);
    PyMem_Free(self->sizes);
    Py_TYPE(object)->tp_free(object);
}

static PyTypeObject LayoutCheckType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._launch.LayoutCheck",
    .tp_doc = PyDoc_STR("LayoutCheck(template, repair): call it with a tensor to get it back if it has the template's layout, "
                        "dtype and device; else what repair(tensor) gives."),
    .tp_basicsize = sizeof(LayoutCheck),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(LayoutCheck, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = LayoutCheck_new,
    .tp_dealloc = LayoutCheck_dealloc,
};

/* ---- module ------------------------------------------------------------------------------------------------------ */

static PyObject *install(PyObject *module, PyObject *args)
{
    PyObject *offsets, *tensor, *data_ptr_, *as_strided_, *storage_offset_, *untyped_storage_, *get_num_threads_;
    if (!PyArg_ParseTuple(args, "OO!OOOOO", &offsets, &PyType_Type, &tensor, &data_ptr_, &as_strided_,
                          &storage_offset_, &untyped_storage_, &get_num_threads_)) {
        return NULL;
    }
    stator_layout.valid = 0;
    if (offsets != Py_None && stator_layout_install(&stator_layout, offsets) < 0) {
        return NULL;
    }
    Py_XSETREF(stator_tensor_type, (PyTypeObject *)Py_NewRef(tensor));
    Py_XSETREF(data_ptr, Py_NewRef(data_ptr_));
    Py_XSETREF(as_strided, Py_NewRef(as_strided_));
    Py_XSETREF(storage_offset, Py_NewRef(storage_offset_));
    Py_XSETREF(stator_untyped_storage, Py_NewRef(untyped_storage_));
    Py_XSETREF(get_num_threads, Py_NewRef(get_num_threads_));
    stator_find_torch_c();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"install", install, METH_VARARGS,
     PyDoc_STR("install(layout_tuple_or_None, Tensor, data_ptr, as_strided, storage_offset, untyped_storage, "
                "get_num_threads)")},
    {"step_forward", stator_step_forward, METH_VARARGS, PyDoc_STR("step_forward(context, StepCall, *primals) -> tuple")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "stator.runtime._launch",
    .m_doc = PyDoc_STR("Calls generated kernels on tensors."),
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__launch(void)
{
    if (PyType_Ready(&KernelType) < 0 || PyType_Ready(&StaticViewType) < 0 || PyType_Ready(&LayoutCheckType) < 0
        || stator_step_call_ready() < 0 || PyType_Ready(&StatorSizedCallType) < 0 || PyType_Ready(&StatorAllocationType) < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&module_definition);
    if (!module) {
        return NULL;
    }
    if (PyModule_AddObjectRef(module, "Kernel", (PyObject *)&KernelType) < 0
        || PyModule_AddObjectRef(module, "StaticView", (PyObject *)&StaticViewType) < 0
        || PyModule_AddObjectRef(module, "LayoutCheck", (PyObject *)&LayoutCheckType) < 0
        || PyModule_AddObjectRef(module, "SizedCall", (PyObject *)&StatorSizedCallType) < 0
        || PyModule_AddObjectRef(module, "StepCall", (PyObject *)&StatorStepCallType) < 0
        || PyModule_AddObjectRef(module, "Allocation", (PyObject *)&StatorAllocationType) < 0
        || PyModule_AddFunctions(module, stator_tensor_list_methods) < 0
        || PyModule_AddFunctions(module, stator_result_tensor_methods) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
