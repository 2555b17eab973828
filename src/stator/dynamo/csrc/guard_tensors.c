/* Compares a tensor's metadata with a guard: read from its TensorImpl, or by its getters. */
#include "guards.h"

static StatorTensorLayout layout;
static PyObject *name_dtype, *name_device, *name_shape, *name_stride, *name_requires_grad;
static unsigned long long getter_checks = 0;

static int getter_is(PyObject *tensor, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(tensor, name);
    int same = value && guard_rich_equal(value, expected);
    Py_XDECREF(value);
    return same;
}

static int getter_integers_are(PyObject *sequence, int ndim, int64_t const *relied)
{
    if (!sequence || !PyTuple_Check(sequence) || PyTuple_GET_SIZE(sequence) != ndim) {
        return 0;
    }
    for (int i = 0; i < ndim; i++) {
        if (relied[i] >= 0 && PyLong_AsLongLong(PyTuple_GET_ITEM(sequence, i)) != relied[i]) {
            return 0;
        }
    }
    return 1;
}

static int requires_grad_by_getter(PyObject *tensor, int expected)
{
    return getter_is(tensor, name_requires_grad, expected ? Py_True : Py_False);
}

/* The slow path: for tensor subclasses, which may override metadata, and if calibration failed. */
static int tensor_holds_by_getters(TensorCheck const *check, PyObject *tensor)
{
    getter_checks++;
    if (!getter_is(tensor, name_dtype, check->dtype_object) || !getter_is(tensor, name_device, check->device_object)
        || !requires_grad_by_getter(tensor, check->requires_grad)) {
        return 0;
    }
    PyObject *shape = PyObject_GetAttr(tensor, name_shape);
    PyObject *stride = PyObject_CallMethodNoArgs(tensor, name_stride);
    int same = getter_integers_are(shape, check->ndim, check->relied_sizes)
        && getter_integers_are(stride, check->ndim, check->relied_strides);
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    return same;
}

int guard_tensor_holds(TensorCheck const *check, PyObject *tensor)
{
    if (!check->direct) {
        return tensor_holds_by_getters(check, tensor);
    }
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
        if ((check->relied_sizes[i] >= 0 && sizes[i] != check->relied_sizes[i])
            || (check->relied_strides[i] >= 0 && strides[i] != check->relied_strides[i])) {
            return 0;
        }
    }
    int requires_grad = stator_tensor_requires_grad(&layout, impl);
    return requires_grad == check->requires_grad
        || (requires_grad < 0 && requires_grad_by_getter(tensor, check->requires_grad));
}

void guard_tensor_check_free(TensorCheck *check)
{
    if (check) {
        PyMem_Free(check->relied_sizes);
        Py_XDECREF(check->dtype_object);
        Py_XDECREF(check->device_object);
        PyMem_Free(check);
    }
}

/* Reads (size or None, ...) into relied[0..ndim). */
static int relied_from_tuple(PyObject *tuple, int64_t *relied)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        relied[i] = item == Py_None ? -1 : PyLong_AsLongLong(item);
        if (relied[i] < 0 && item != Py_None) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "sizes and strides are not negative");
            }
            return -1;
        }
    }
    return 0;
}

/* payload: (dtype, device, shape, stride, requires_grad, codes) with codes None (use the getters) or
 * (dtype code, device code, keyset, other keyset). */
TensorCheck *guard_tensor_check_make(PyObject *payload)
{
    PyObject *dtype, *device, *shape, *stride, *codes;
    int requires_grad;
    if (!PyArg_ParseTuple(payload, "OOO!O!pO", &dtype, &device, &PyTuple_Type, &shape, &PyTuple_Type, &stride,
                          &requires_grad, &codes)) {
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
    check->relied_sizes = block;
    check->relied_strides = block + ndim;
    check->dtype_object = Py_NewRef(dtype);
    check->device_object = Py_NewRef(device);
    check->direct = layout.valid && codes != Py_None;
    int ok = relied_from_tuple(shape, check->relied_sizes) == 0 && relied_from_tuple(stride, check->relied_strides) == 0;
    if (ok && check->direct) {
        unsigned long long keyset, other;
        ok = PyArg_ParseTuple(codes, "HHKK", &check->dtype, &check->device, &keyset, &other);
        check->keysets[0] = keyset;
        check->keysets[1] = other;
    }
    if (!ok) {
        guard_tensor_check_free(check);
        return NULL;
    }
    return check;
}

/* ---- for Python ---- */

static PyObject *set_tensor_layout(PyObject *Py_UNUSED(self), PyObject *argument)
{
    if (argument == Py_None) {
        layout.valid = 0;
    } else if (stator_layout_install(&layout, argument) < 0) {
        return NULL;
    }
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

static PyObject *getter_check_count(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLongLong(getter_checks);
}

static PyMethodDef methods[] = {
    {"set_tensor_layout", set_tensor_layout, METH_O, "Install a calibrated TensorLayout tuple; None: use getters."},
    {"tensor_codes", tensor_codes, METH_O, "(dtype code, device code, keyset) of a tensor; None without a layout."},
    {"getter_check_count", getter_check_count, METH_NOARGS, "How many tensor checks had to use attribute getters."},
    {0},
};

int guard_tensors_add_to(PyObject *module)
{
    name_dtype = PyUnicode_InternFromString("dtype");
    name_device = PyUnicode_InternFromString("device");
    name_shape = PyUnicode_InternFromString("shape");
    name_stride = PyUnicode_InternFromString("stride");
    name_requires_grad = PyUnicode_InternFromString("requires_grad");
    int complete = name_dtype && name_device && name_shape && name_stride && name_requires_grad;
    return complete ? PyModule_AddFunctions(module, methods) : -1;
}
