/* Reads facts of many tensors in one call: layouts, versions, and where they lie. The checks of training steps need them
 * in every call. */
#include "tensor_lists.h"

#include <stdlib.h>

StatorTensorLayout stator_layout;
PyTypeObject *stator_tensor_type;
PyObject *stator_untyped_storage;

/* Return the dispatch keys of a tensor as a number; None if the layout is unknown. */
static PyObject *dispatch_keys(PyObject *module, PyObject *tensor)
{
    char const *impl = stator_layout.valid && stator_is_tensor(tensor) ? stator_tensor_impl(&stator_layout, tensor) : NULL;
    if (!impl) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(stator_tensor_keyset(&stator_layout, impl));
}

/* The C++ object of the item at `at` of a list or tuple; NULL with an exception if that is no tensor. */
static char const *impl_at(PyObject *tensors, Py_ssize_t at)
{
    PyObject *tensor = PySequence_Fast_GET_ITEM(tensors, at);
    char const *impl = stator_is_tensor(tensor) ? stator_tensor_impl(&stator_layout, tensor) : NULL;
    if (!impl) {
        PyErr_Format(PyExc_TypeError, "a tensor is expected, not %.100s", Py_TYPE(tensor)->tp_name);
    }
    return impl;
}

/* -1 with an exception if the object is no list or tuple. */
static Py_ssize_t count_of(PyObject *tensors)
{
    if (!PyList_Check(tensors) && !PyTuple_Check(tensors)) {
        PyErr_Format(PyExc_TypeError, "a list or tuple is expected, not %.100s", Py_TYPE(tensors)->tp_name);
        return -1;
    }
    return PySequence_Fast_GET_SIZE(tensors);
}

/* Return the places of tensors as bytes: an address of the storage object and an offset for each. */
static PyObject *places(PyObject *module, PyObject *tensors)
{
    Py_ssize_t count = count_of(tensors);
    if (count < 0) {
        return NULL;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, 2 * count * (Py_ssize_t)sizeof(int64_t));
    int64_t *numbers = result ? (int64_t *)PyBytes_AS_STRING(result) : NULL;
    for (Py_ssize_t at = 0; result && at < count; ++at) {
        char const *impl = impl_at(tensors, at);
        if (!impl) {
            Py_CLEAR(result);
            break;
        }
        *numbers++ = (int64_t)(intptr_t)STATOR_AT(char const *, impl, stator_layout.storage);
        *numbers++ = stator_tensor_storage_offset(&stator_layout, impl);
    }
    return result;
}

/* Return whether tensors lie at the places that `places` returned. */
static PyObject *lie_at(PyObject *module, PyObject *args)
{
    PyObject *tensors;
    char const *numbers;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Oy#", &tensors, &numbers, &size)) {
        return NULL;
    }
    Py_ssize_t count = count_of(tensors);
    if (count < 0) {
        return NULL;
    }
    int same = size == 2 * count * (Py_ssize_t)sizeof(int64_t);
    for (Py_ssize_t at = 0; same && at < count; ++at, numbers += 2 * sizeof(int64_t)) {
        char const *impl = impl_at(tensors, at);
        if (!impl) {
            return NULL;
        }
        same = STATOR_AT(char const *, impl, stator_layout.storage) == STATOR_AT(char const *, numbers, 0)
               && stator_tensor_storage_offset(&stator_layout, impl) == STATOR_AT(int64_t, numbers, sizeof(int64_t));
    }
    return PyBool_FromLong(same);
}

/* Return the addresses of the first elements of tensors as bytes, one int64 for each. */
static PyObject *addresses(PyObject *module, PyObject *tensors)
{
    Py_ssize_t count = count_of(tensors);
    if (count < 0) {
        return NULL;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    int64_t *numbers = result ? (int64_t *)PyBytes_AS_STRING(result) : NULL;
    for (Py_ssize_t at = 0; result && at < count; ++at) {
        char const *impl = impl_at(tensors, at);
        if (!impl) {
            Py_CLEAR(result);
            break;
        }
        *numbers++ = (int64_t)(intptr_t)stator_tensor_data(&stator_layout, impl);
    }
    return result;
}

/* Call `of` on every tensor of a list or tuple. Returns a list. */
static PyObject *map_tensors(PyObject *given, PyObject *(*of)(PyObject *))
{
    Py_ssize_t count = count_of(given);
    PyObject *tensors = count < 0 ? NULL : PySequence_Tuple(given); /* the getters of subclasses may change a list */
    PyObject *result = tensors ? PyList_New(count) : NULL;
    for (Py_ssize_t at = 0; result && at < count; ++at) {
        PyObject *item = impl_at(tensors, at) ? of(PyTuple_GET_ITEM(tensors, at)) : NULL;
        if (!item) {
            Py_CLEAR(result);
            break;
        }
        PyList_SET_ITEM(result, at, item);
    }
    Py_XDECREF(tensors);
    return result;
}

static PyObject *storage_of(PyObject *tensor)
{
    return PyObject_CallOneArg(stator_untyped_storage, tensor);
}

PyObject *stator_version(PyObject *tensor)
{
    char const *impl = stator_is_tensor(tensor) ? stator_tensor_impl(&stator_layout, tensor) : NULL;
    if (!impl) {
        PyErr_Format(PyExc_TypeError, "a tensor is expected, not %.100s", Py_TYPE(tensor)->tp_name);
        return NULL;
    }
    return PyLong_FromLongLong(stator_tensor_version(&stator_layout, impl));
}

PyObject *stator_memory(PyObject *tensors)
{
    PyObject *found = map_tensors(tensors, storage_of);
    PyObject *where = found ? places(NULL, tensors) : NULL;
    PyObject *result = where ? PyTuple_Pack(2, where, found) : NULL;
    Py_XDECREF(found);
    Py_XDECREF(where);
    return result;
}

static PyObject *memory(PyObject *Py_UNUSED(module), PyObject *tensors)
{
    return stator_memory(tensors);
}

static PyObject *versions(PyObject *Py_UNUSED(module), PyObject *tensors)
{
    return map_tensors(tensors, stator_version);
}

/* Return a list of (position, weak reference, version) of the tensors at some positions. */
static PyObject *references(PyObject *module, PyObject *args)
{
    PyObject *tensors, *positions;
    if (!PyArg_ParseTuple(args, "OO", &tensors, &positions) || count_of(tensors) < 0 || count_of(positions) < 0) {
        return NULL;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(positions);
    PyObject *result = PyList_New(count);
    for (Py_ssize_t at = 0; result && at < count; ++at) {
        PyObject *position = PySequence_Fast_GET_ITEM(positions, at);
        Py_ssize_t index = PyLong_AsSsize_t(position);
        PyObject *item = NULL;
        if (index < 0 || index >= PySequence_Fast_GET_SIZE(tensors)) {
            PyErr_Format(PyExc_IndexError, "there is no tensor at position %R", position);
        } else if (impl_at(tensors, index)) {
            PyObject *reference = PyWeakref_NewRef(PySequence_Fast_GET_ITEM(tensors, index), NULL);
            PyObject *version = reference ? stator_version(PySequence_Fast_GET_ITEM(tensors, index)) : NULL;
            item = version ? PyTuple_Pack(3, position, reference, version) : NULL;
            Py_XDECREF(reference);
            Py_XDECREF(version);
        }
        if (!item) {
            Py_CLEAR(result);
            break;
        }
        PyList_SET_ITEM(result, at, item);
    }
    return result;
}

/* Return whether no written tensor shares a byte with the span of another. `order` are places by rising addresses in an
 * earlier call: most tensors are where they were, so that few have to move in it. */
static PyObject *spans_are_disjoint(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensors, *order_bytes;
    char const *sizes_bytes, *written;
    Py_ssize_t sizes_count, written_count;
    if (!PyArg_ParseTuple(args, "Oy#y#O!", &tensors, &sizes_bytes, &sizes_count, &written, &written_count,
                          &PyByteArray_Type, &order_bytes)) {
        return NULL;
    }
    Py_ssize_t const count = count_of(tensors);
    if (count < 0) {
        return NULL;
    }
    if (sizes_count != count * 8 || written_count != count || PyByteArray_GET_SIZE(order_bytes) != count * 8) {
        PyErr_SetString(PyExc_ValueError, "a size, a flag and a place are expected for each tensor");
        return NULL;
    }
    uintptr_t *starts = PyMem_Malloc((size_t)(count + 1) * sizeof *starts);
    if (!starts) {
        return PyErr_NoMemory();
    }
    char const *impl = "";
    for (Py_ssize_t at = 0; impl && at < count; ++at) {
        if ((impl = impl_at(tensors, at))) {
            starts[at] = (uintptr_t)stator_tensor_data(&stator_layout, impl);
        }
    }
    int64_t *order = (int64_t *)PyByteArray_AS_STRING(order_bytes);
    uintptr_t end = 0, end_of_written = 0;
    int disjoint = 1;
    for (Py_ssize_t i = 1; impl && i < count; ++i) {
        int64_t const one = order[i];
        Py_ssize_t to = i;
        for (; to && starts[order[to - 1]] > starts[one]; --to) {
            order[to] = order[to - 1];
        }
        order[to] = one;
    }
    for (Py_ssize_t i = 0; impl && disjoint && i < count; ++i) {
        int64_t const at = order[i];
        uintptr_t const size = (uintptr_t)STATOR_AT(int64_t, sizes_bytes, 8 * at), stop = starts[at] + size;
        if (!size) {
            continue;
        }
        disjoint = starts[at] >= (written[at] ? end : end_of_written);
        end = stop > end ? stop : end;
        end_of_written = written[at] && stop > end_of_written ? stop : end_of_written;
    }
    PyMem_Free(starts);
    return impl ? PyBool_FromLong(disjoint) : NULL;
}

static int compare_addresses(void const *one, void const *other)
{
    uintptr_t left = (uintptr_t)*(void *const *)one, right = (uintptr_t)*(void *const *)other;
    return (left > right) - (left < right);
}

int stator_are_distinct(PyObject *objects)
{
    Py_ssize_t given = count_of(objects), count = 0;
    void **sorted = given < 0 ? NULL : PyMem_Malloc((size_t)(given + 1) * sizeof *sorted);
    if (!sorted) {
        if (given >= 0) {
            PyErr_NoMemory();
        }
        return -1;
    }
    for (Py_ssize_t at = 0; at < given; ++at) {
        PyObject *object = PySequence_Fast_GET_ITEM(objects, at);
        if (object != Py_None) {
            sorted[count++] = object;
        }
    }
    qsort(sorted, (size_t)count, sizeof *sorted, compare_addresses);
    int distinct = 1;
    for (Py_ssize_t at = 1; distinct && at < count; ++at) {
        distinct = sorted[at] != sorted[at - 1];
    }
    PyMem_Free(sorted);
    return distinct;
}

/* Return whether no object but None occurs twice in a list or tuple. */
static PyObject *are_distinct(PyObject *Py_UNUSED(module), PyObject *objects)
{
    int const distinct = stator_are_distinct(objects);
    return distinct < 0 ? NULL : PyBool_FromLong(distinct);
}

/* Return the layouts of tensors as bytes: number of dimensions, dispatch keys and strides of each. */
static PyObject *layouts(PyObject *module, PyObject *tensors)
{
    Py_ssize_t count = count_of(tensors);
    if (count < 0) {
        return NULL;
    }
    Py_ssize_t size = 2 * count;
    char const *impl;
    for (Py_ssize_t at = 0; at < count; ++at) {
        if (!(impl = impl_at(tensors, at))) {
            return NULL;
        }
        size += stator_tensor_ndim(&stator_layout, impl);
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, size * (Py_ssize_t)sizeof(int64_t));
    int64_t *numbers = result ? (int64_t *)PyBytes_AS_STRING(result) : NULL;
    for (Py_ssize_t at = 0; result && at < count; ++at) {
        impl = impl_at(tensors, at);
        int64_t ndim = stator_tensor_ndim(&stator_layout, impl);
        *numbers++ = ndim;
        *numbers++ = (int64_t)stator_tensor_keyset(&stator_layout, impl);
        memcpy(numbers, stator_tensor_strides(&stator_layout, impl), (size_t)ndim * sizeof *numbers);
        numbers += ndim;
    }
    return result;
}

PyMethodDef stator_tensor_list_methods[] = {
    {"dispatch_keys", dispatch_keys, METH_O, PyDoc_STR("dispatch_keys(tensor) -> its dispatch keys as a number, or None")},
    {"layouts", layouts, METH_O, PyDoc_STR("layouts(list_of_tensors) -> bytes: dimensions, dispatch keys, strides")},
    {"places", places, METH_O, PyDoc_STR("places(list_of_tensors) -> bytes: storage objects, offsets")},
    {"addresses", addresses, METH_O, PyDoc_STR("addresses(list_of_tensors) -> bytes: where each begins")},
    {"lie_at", lie_at, METH_VARARGS, PyDoc_STR("lie_at(list_of_tensors, places) -> whether they lie there")},
    {"memory", memory, METH_O, PyDoc_STR("memory(list_of_tensors) -> (places, list of torch.UntypedStorage)")},
    {"references", references, METH_VARARGS,
     PyDoc_STR("references(list_of_tensors, positions) -> list of (position, weak reference, version)")},
    {"are_distinct", are_distinct, METH_O, PyDoc_STR("are_distinct(list) -> whether no object but None occurs twice")},
    {"spans_are_disjoint", spans_are_disjoint, METH_VARARGS,
     PyDoc_STR("spans_are_disjoint(list_of_tensors, sizes, written, order) -> whether no written one overlaps another")},
    {"versions", versions, METH_O, PyDoc_STR("versions(list_of_tensors) -> list of numbers, -1 where there is none")},
    {NULL, NULL, 0, NULL},
};
