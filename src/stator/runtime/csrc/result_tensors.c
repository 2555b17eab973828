/* Results of recorded programs: whether anybody but their owner uses them, and further tensors of their memory. A step
 * has hundreds of results, so each function handles all of them. */
#include "result_tensors.h"

/* All that changes when somebody takes or leaves a reference to a tensor, to its storage, or to one of their Python
 * objects, or changes the tensor: reference counts, the memory, and the part of the TensorImpl behind these. */
typedef struct {
    Py_ssize_t references, storage_references;
    char const *storage, *data;
    uint32_t count, storage_count;
} Use;

static void read_use(PyObject *tensor, PyObject *storage, char const *impl, Use *use)
{
    memset(use, 0, sizeof *use);
    use->references = Py_REFCNT(tensor);
    use->storage_references = Py_REFCNT(storage);
    use->count = STATOR_AT(uint32_t, impl, stator_layout.use_count);
    use->storage = STATOR_AT(char const *, impl, stator_layout.storage);
    if (use->storage) {
        use->storage_count = STATOR_AT(uint32_t, use->storage, stator_layout.use_count);
        use->data = STATOR_AT(char const *, use->storage, stator_layout.storage_data);
    }
}

/* The part of a TensorImpl that describes the tensor: from its record of autograd to its dispatch keys. */
static size_t described_bytes(void)
{
    int const bytes = stator_layout.keyset + (int)sizeof(uint64_t) - stator_layout.autograd_meta;
    return bytes > 0 ? (size_t)bytes : 0;
}

/* Check the arguments (tensors, storages): lists of equal lengths. -1 with an exception. */
static Py_ssize_t count_of(PyObject *tensors, PyObject *storages)
{
    if (!PyList_CheckExact(tensors) || !PyList_CheckExact(storages) || PyList_GET_SIZE(tensors) != PyList_GET_SIZE(storages)
        || !stator_layout.valid) {
        PyErr_SetString(PyExc_TypeError, "a list of tensors and a list of their storages are expected");
        return -1;
    }
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(tensors); ++at) {
        PyObject *tensor = PyList_GET_ITEM(tensors, at);
        if (!stator_is_tensor(tensor) || !stator_tensor_impl(&stator_layout, tensor)) {
            PyErr_Format(PyExc_TypeError, "a tensor is expected, not %.100s", Py_TYPE(tensor)->tp_name);
            return -1;
        }
    }
    return PyList_GET_SIZE(tensors);
}

static PyObject *uses(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensors, *storages;
    if (!PyArg_ParseTuple(args, "OO", &tensors, &storages)) {
        return NULL;
    }
    Py_ssize_t const count = count_of(tensors, storages);
    size_t const described = described_bytes();
    PyObject *result = count < 0 ? NULL : PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)(sizeof(Use) + described));
    char *bytes = result ? PyBytes_AS_STRING(result) : NULL;
    for (Py_ssize_t at = 0; result && at < count; ++at, bytes += sizeof(Use) + described) {
        char const *impl = stator_tensor_impl(&stator_layout, PyList_GET_ITEM(tensors, at));
        Use use;
        read_use(PyList_GET_ITEM(tensors, at), PyList_GET_ITEM(storages, at), impl, &use);
        memcpy(bytes, &use, sizeof use);
        memcpy(bytes + sizeof use, impl + stator_layout.autograd_meta, described);
    }
    return result;
}

static PyObject *uses_are(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensors, *storages;
    char const *bytes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OOy#", &tensors, &storages, &bytes, &size)) {
        return NULL;
    }
    Py_ssize_t const count = count_of(tensors, storages);
    if (count < 0) {
        return NULL;
    }
    size_t const described = described_bytes();
    int same = size == count * (Py_ssize_t)(sizeof(Use) + described);
    for (Py_ssize_t at = 0; same && at < count; ++at, bytes += sizeof(Use) + described) {
        char const *impl = stator_tensor_impl(&stator_layout, PyList_GET_ITEM(tensors, at));
        Use use;
        read_use(PyList_GET_ITEM(tensors, at), PyList_GET_ITEM(storages, at), impl, &use);
        same = !memcmp(bytes, &use, sizeof use) && !memcmp(bytes + sizeof use, impl + stator_layout.autograd_meta, described);
    }
    return PyBool_FromLong(same);
}

/* Another tensor of a tensor's memory and layout, without a history. */
static PyObject *alias_of(PyObject *tensor)
{
    static PyObject *detach; /* lives as long as the process */
    char const *impl = stator_layout.valid && stator_is_tensor(tensor) ? stator_tensor_impl(&stator_layout, tensor) : NULL;
    void *made = NULL;
    if (impl && stator_torch_c.reinterpret
        && !stator_torch_c.reinterpret((char *)tensor + stator_layout.cdata, stator_tensor_ndim(&stator_layout, impl),
                                       stator_tensor_sizes(&stator_layout, impl), stator_tensor_strides(&stator_layout, impl),
                                       0, &made)) {
        return stator_wrap_tensor(made);
    }
    if (!detach && !(detach = PyUnicode_InternFromString("detach"))) {
        return NULL;
    }
    return PyObject_CallMethodNoArgs(tensor, detach);
}

static PyObject *with_aliases(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *items, *positions, *tensors;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &items, &PyList_Type, &positions, &PyList_Type, &tensors)) {
        return NULL;
    }
    Py_ssize_t const count = PyList_GET_SIZE(positions);
    PyObject *result = PyList_GetSlice(items, 0, PyList_GET_SIZE(items));
    for (Py_ssize_t i = 0; result && i < count; ++i) {
        Py_ssize_t const at = PyLong_AsSsize_t(PyList_GET_ITEM(positions, i));
        if (at < 0 || at >= PyList_GET_SIZE(result) || i >= PyList_GET_SIZE(tensors)) {
            PyErr_SetString(PyExc_IndexError, "there is no result at this position");
            Py_CLEAR(result);
            break;
        }
        PyObject *alias = alias_of(PyList_GET_ITEM(tensors, i));
        if (!alias || PyList_SetItem(result, at, alias) < 0) {
            Py_CLEAR(result);
        }
    }
    return result;
}

PyMethodDef stator_result_tensor_methods[] = {
    {"uses", uses, METH_VARARGS, PyDoc_STR("uses(tensors, storages) -> bytes: who refers to them, and what they are")},
    {"uses_are", uses_are, METH_VARARGS, PyDoc_STR("uses_are(tensors, storages, uses) -> whether `uses` gives this again")},
    {"with_aliases", with_aliases, METH_VARARGS,
     PyDoc_STR("with_aliases(list, positions, tensors) -> the list, with another tensor of a tensor's memory at each position")},
    {NULL, NULL, 0, NULL},
};
