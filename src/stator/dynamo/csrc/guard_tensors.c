/* Compares a tensor's metadata, read from its TensorImpl, with a guard. */
#include "guards.h"

static StatorTensorLayout layout;
static PyObject *name_requires_grad;
static PyObject *plain_requires_grad; /* reads it past a subclass's `__torch_function__` */

static int requires_grad_by_getter(TensorCheck const *check, PyObject *tensor, int expected)
{
    PyObject *value = check->is_subclass ? PyObject_CallOneArg(plain_requires_grad, tensor)
                                         : PyObject_GetAttr(tensor, name_requires_grad);
    Py_XDECREF(value);
    return value == (expected ? Py_True : Py_False);
}

int guard_tensor_holds(TensorCheck const *check, PyObject *tensor)
{
    char const *impl = stator_tensor_impl(&layout, tensor);
    if (!impl) {
        return 0;
    }
    uint64_t keyset = stator_tensor_keyset(&layout, impl);
    if ((keyset != check->keysets[0] && keyset != check->keysets[1])
        || stator_tensor_dtype(&layout, impl) != check->dtype || stator_tensor_device(&layout, impl) != check->device
        || stator_tensor_ndim(&layout, impl) != check->ndim) {
        return 0;
    }
    int64_t const *sizes = stator_tensor_sizes(&layout, impl), *strides = stator_tensor_strides(&layout, impl);
    for (int i = 0; i < check->ndim; i++) {
        int64_t size = check->relied_sizes[i], stride = check->relied_strides[i];
        if (size >= 0 ? sizes[i] != size : size == -2 && (uint64_t)sizes[i] - 1 >= LARGEST_SIZE) {
            return 0;
        }
        if (stride >= 0 ? strides[i] != stride : stride != -1 && strides[i] != sizes[-2 - stride] * strides[-2 - stride]) {
            return 0;
        }
    }
    int requires_grad = stator_tensor_requires_grad(&layout, impl);
    return requires_grad == check->requires_grad
        || (requires_grad < 0 && requires_grad_by_getter(check, tensor, check->requires_grad));
}

int guard_content_holds(ContentCheck const *check, PyObject *tensor)
{
    char const *impl = stator_tensor_impl(&layout, tensor);
    if (!impl || stator_tensor_version(&layout, impl) != check->version
        || stator_tensor_data(&layout, impl) != check->data) {
        return 0;
    }
    for (int i = 0; i < check->samples; i++) {
        if (memcmp(check->data + check->offsets[i], &check->words[i], sizeof check->words[i])) {
            return 0;
        }
    }
    return 1;
}

int guard_content_check_set(ContentCheck *check, PyObject *payload)
{
    long long version;
    unsigned long long data;
    PyObject *sample;
    if (!PyArg_ParseTuple(payload, "LKO!", &version, &data, &PyTuple_Type, &sample)) {
        return -1;
    }
    if (!layout.valid) {
        PyErr_SetString(PyExc_ValueError, "without a layout a tensor is checked by a predicate");
        return -1;
    }
    *check = (ContentCheck){.version = version, .data = (char *)(uintptr_t)data};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sample); i++) {
        long long offset;
        unsigned int word;
        if (i == CONTENT_SAMPLES) {
            PyErr_SetString(PyExc_ValueError, "too many samples");
            return -1;
        }
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sample, i), "LI", &offset, &word)) {
            return -1;
        }
        check->offsets[i] = offset;
        check->words[i] = word;
        check->samples++;
    }
    return 0;
}

int guard_tensor_size(PyObject *tensor, int dim, int64_t *size)
{
    char const *impl = layout.valid ? stator_tensor_impl(&layout, tensor) : NULL;
    int at = dim < 0 ? -2 - dim : dim;
    if (!impl || at >= stator_tensor_ndim(&layout, impl)) {
        return 0;
    }
    *size = (dim < 0 ? stator_tensor_strides(&layout, impl) : stator_tensor_sizes(&layout, impl))[at];
    return 1;
}

void guard_tensor_check_free(TensorCheck *check)
{
    if (check) {
        PyMem_Free(check->relied_sizes);
        PyMem_Free(check);
    }
}

/* Reads numbers of at least `low` into relied[0..ndim); see TensorCheck for the negative ones. */
static int relied_from_tuple(PyObject *tuple, int64_t *relied, int64_t low)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        relied[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (PyErr_Occurred()) {
            return -1;
        }
        if (relied[i] < low) {
            PyErr_SetString(PyExc_ValueError, "a size or stride that no tensor has");
            return -1;
        }
    }
    return 0;
}

/* payload: (shape, stride, requires_grad, dtype code, device code, keyset, other keyset, is of a subclass?) */
TensorCheck *guard_tensor_check_make(PyObject *payload)
{
    PyObject *shape, *stride;
    int requires_grad, is_subclass;
    unsigned short dtype, device;
    unsigned long long keyset, other;
    if (!PyArg_ParseTuple(payload, "O!O!pHHKKp", &PyTuple_Type, &shape, &PyTuple_Type, &stride, &requires_grad, &dtype,
                          &device, &keyset, &other, &is_subclass)) {
        return NULL;
    }
    if (!layout.valid) {
        PyErr_SetString(PyExc_ValueError, "without a layout a tensor is checked by a predicate");
        return NULL;
    }
    Py_ssize_t ndim = PyTuple_GET_SIZE(shape);
    if (PyTuple_GET_SIZE(stride) != ndim) {
        PyErr_SetString(PyExc_ValueError, "a tensor guard needs as many strides as sizes");
        return NULL;
    }
    TensorCheck *check = PyMem_Calloc(1, sizeof *check);
    int64_t *block = PyMem_Calloc(2 * ndim + 1, sizeof *block);
    if (!check || !block) {
        PyMem_Free(check);
        PyMem_Free(block);
        PyErr_NoMemory();
        return NULL;
    }
    check->ndim = (int)ndim;
    check->requires_grad = (int8_t)requires_grad;
    check->is_subclass = (int8_t)is_subclass;
    check->relied_sizes = block;
    check->relied_strides = block + ndim;
    check->dtype = dtype;
    check->device = device;
    check->keysets[0] = keyset;
    check->keysets[1] = other;
    if (relied_from_tuple(shape, check->relied_sizes, -2) < 0
        || relied_from_tuple(stride, check->relied_strides, -1 - ndim) < 0) {
        guard_tensor_check_free(check);
        return NULL;
    }
    return check;
}

/* ---- for Python ---- */

static PyObject *set_tensor_layout(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *argument, *reader;
    if (!PyArg_ParseTuple(args, "OO", &argument, &reader) || stator_layout_install(&layout, argument) < 0) {
        return NULL;
    }
    Py_XSETREF(plain_requires_grad, Py_NewRef(reader));
    Py_RETURN_NONE;
}

static PyObject *tensor_codes(PyObject *Py_UNUSED(self), PyObject *tensor)
{
    if (!layout.valid) {
        Py_RETURN_NONE;
    }
    char const *impl = stator_tensor_impl(&layout, tensor);
    return Py_BuildValue("(iiK)", stator_tensor_dtype(&layout, impl), stator_tensor_device(&layout, impl),
                         (unsigned long long)stator_tensor_keyset(&layout, impl));
}

static PyMethodDef methods[] = {
    {"set_tensor_layout", set_tensor_layout, METH_VARARGS, "Install a calibrated TensorLayout tuple, and a reader of `requires_grad`."},
    {"tensor_codes", tensor_codes, METH_O, "(dtype code, device code, keyset) of a tensor; None without a layout."},
    {0},
};

int guard_tensors_add_to(PyObject *module)
{
    name_requires_grad = PyUnicode_InternFromString("requires_grad");
    return name_requires_grad ? PyModule_AddFunctions(module, methods) : -1;
}
