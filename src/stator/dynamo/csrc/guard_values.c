/* Reads Python values for guards, past any override by user classes. */
#include "guards.h"

static PyObject *builtins_dict;
/* types whose == is written in C without side effects, besides those of guard_constant_equal; e.g. torch.device */
static PyTypeObject *plain_types[16];
static int plain_type_count = 0;
/* types, and their subclasses, whose instances do not tell their weak references that they end */
static PyTypeObject *never_weak[4];
static int never_weak_count = 0;
static vectorcallfunc usual_call = NULL; /* the vectorcall of untouched Python functions */

int guard_can_be_weak(PyObject *object)
{
    for (int i = 0; i < never_weak_count; i++) {
        if (PyObject_TypeCheck(object, never_weak[i])) {
            return 0;
        }
    }
    return PyType_SUPPORTS_WEAKREFS(Py_TYPE(object));
}

int guard_identity_set(Identity *identity, PyObject *object, PyObject *callback)
{
    identity->weak = guard_can_be_weak(object)
        && !(PyType_Check(object) && !(((PyTypeObject *)object)->tp_flags & Py_TPFLAGS_HEAPTYPE));
    identity->reference = identity->weak ? PyWeakref_NewRef(object, callback) : Py_NewRef(object);
    return identity->reference ? 0 : -1;
}

PyObject *guard_held_weakly(PyObject *tuple)
{
    PyObject *held = PyTuple_New(PyTuple_GET_SIZE(tuple));
    for (Py_ssize_t i = 0; held && i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        int weak = PyFunction_Check(item)
            || (PyType_Check(item) && PyType_HasFeature((PyTypeObject *)item, Py_TPFLAGS_HEAPTYPE));
        PyObject *kept = weak ? PyWeakref_NewRef(item, NULL) : Py_NewRef(item);
        if (!kept) {
            Py_CLEAR(held);
            break;
        }
        PyTuple_SET_ITEM(held, i, kept);
    }
    return held;
}

/* ---- constants ---- */

static int tuples_equal(PyObject *found, PyObject *expected)
{
    if (PyTuple_GET_SIZE(found) != PyTuple_GET_SIZE(expected)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found); i++) {
        if (!guard_constant_equal(PyTuple_GET_ITEM(found, i), PyTuple_GET_ITEM(expected, i))) {
            return 0;
        }
    }
    return 1;
}

int guard_rich_equal(PyObject *found, PyObject *expected)
{
    int equal = PyObject_RichCompareBool(found, expected, Py_EQ);
    if (equal < 0) {
        PyErr_Clear();
        return 0;
    }
    return equal;
}

int guard_constant_equal(PyObject *found, PyObject *expected)
{
    if (found == expected) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(found);
    if (type != Py_TYPE(expected)) {
        return 0;
    }
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type || type == &PyRange_Type) {
        return guard_rich_equal(found, expected);
    }
    if (type == &PyFloat_Type) {
        double a = PyFloat_AS_DOUBLE(found), b = PyFloat_AS_DOUBLE(expected);
        return memcmp(&a, &b, sizeof a) == 0;
    }
    if (type == &PyComplex_Type) {
        return memcmp(&((PyComplexObject *)found)->cval, &((PyComplexObject *)expected)->cval, sizeof(Py_complex)) == 0;
    }
    if (type == &PyTuple_Type) {
        return tuples_equal(found, expected);
    }
    if (type == &PySlice_Type) {
        PySliceObject *a = (PySliceObject *)found, *b = (PySliceObject *)expected;
        return guard_constant_equal(a->start, b->start) && guard_constant_equal(a->stop, b->stop) && guard_constant_equal(a->step, b->step);
    }
    for (int i = 0; i < plain_type_count; i++) {
        if (type == plain_types[i]) {
            return PyTuple_Check(found) ? tuples_equal(found, expected) : guard_rich_equal(found, expected);
        }
    }
    return 0; /* enums, dtypes, bool, None: only identity */
}
/* ---- containers ---- */

/* E.g. the classes' __dict__, or signature.parameters. */
PyObject *guard_behind_proxy(PyObject *value)
{
    struct {
        PyObject_HEAD
        PyObject *mapping;
    } *proxy = (void *)value; /* CPython's mappingproxyobject */
    return Py_IS_TYPE(value, &PyDictProxy_Type) && PyDict_Check(proxy->mapping) ? proxy->mapping : value;
}

Py_ssize_t guard_length(PyObject *value)
{
    value = guard_behind_proxy(value);
    if (PyList_Check(value)) {
        return PyList_GET_SIZE(value);
    }
    if (PyTuple_Check(value)) {
        return PyTuple_GET_SIZE(value);
    }
    if (PyDict_Check(value)) {
        return PyDict_GET_SIZE(value);
    }
    if (PyAnySet_Check(value)) {
        return PySet_GET_SIZE(value);
    }
    if (PyUnicode_Check(value)) {
        return PyUnicode_GET_LENGTH(value);
    }
    return -1;
}

static int key_is(PyObject *key, PyObject *item)
{
    PyObject *expected = guard_held(item);
    return expected && guard_constant_equal(key, expected);
}

/* The keys of an OrderedDict, which keeps an order of its own (move_to_end), past an override of __iter__. */
static PyObject *ordered_keys(PyObject *value)
{
    PyObject *iterator = PyODict_Type.tp_iter(value);
    PyObject *keys = iterator ? PySequence_Tuple(iterator) : NULL;
    Py_XDECREF(iterator);
    return keys;
}

static int ordered_keys_are(PyObject *value, PyObject *expected)
{
    PyObject *keys = ordered_keys(value);
    int same = keys && PyTuple_GET_SIZE(keys) == PyTuple_GET_SIZE(expected);
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(expected); i++) {
        same = key_is(PyTuple_GET_ITEM(keys, i), PyTuple_GET_ITEM(expected, i));
    }
    Py_XDECREF(keys);
    return same;
}

int guard_keys_are(PyObject *value, PyObject *expected)
{
    value = guard_behind_proxy(value);
    if (PyAnySet_Check(value)) {
        if (PySet_GET_SIZE(value) != PyTuple_GET_SIZE(expected)) {
            return 0;
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
            PyObject *member = guard_held(PyTuple_GET_ITEM(expected, i));
            if (!member || PySet_Contains(value, member) != 1) {
                return 0;
            }
        }
        return 1;
    }
    if (!PyDict_Check(value) || PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(expected)) {
        return 0;
    }
    if (PyODict_Check(value)) {
        return ordered_keys_are(value, expected);
    }
    Py_ssize_t position = 0, i = 0;
    PyObject *key;
    while (PyDict_Next(value, &position, &key, NULL)) {
        if (!key_is(key, PyTuple_GET_ITEM(expected, i++))) {
            return 0;
        }
    }
    return 1;
}

PyObject *guard_instance_dict(PyObject *value)
{
    if (PyType_Check(value)) {
        return type_dict((PyTypeObject *)value);
    }
    PyObject **place = _PyObject_GetDictPtr(value);
    if (place && *place) {
        return Py_NewRef(*place);
    }
    return place ? PyObject_GenericGetDict(value, NULL) : NULL;
}

/* 1: the instance lacks the attribute, and so does its type if it lacked it at first. Runs no user code. */
int guard_attribute_is_absent(Check *check, PyObject *value)
{
    PyObject *dict = guard_instance_dict(value);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    int in_dict = dict ? PyDict_Contains(dict, check->expected) : 0;
    Py_XDECREF(dict);
    if (in_dict != 0) {
        return 0;
    }
    int type_has = _PyType_Lookup(Py_TYPE(value), check->expected) != NULL;
    if (!type_has && PyType_Check(value)) {
        type_has = _PyType_Lookup((PyTypeObject *)value, check->expected) != NULL;
    }
    int now = type_has ? 1 : 2;
    if (check->number == 0) {
        check->number = now;
    }
    return check->number == now;
}

/* ---- classes ---- */

/* The class in the resolution order that has the attribute (borrowed), or NULL. */
static PyObject *defining_class(PyTypeObject *type, PyObject *name)
{
    PyObject *order = type->tp_mro;
    for (Py_ssize_t i = 0; order && i < PyTuple_GET_SIZE(order); i++) {
        PyObject *base = PyTuple_GET_ITEM(order, i);
        PyObject *dict = guard_instance_dict(base);
        int has = dict ? PyDict_Contains(dict, name) : 0;
        Py_XDECREF(dict);
        if (has > 0) {
            return base;
        }
    }
    return NULL;
}

static int lookup_holds(PyTypeObject *type, PyObject *name, PyObject *found, PyObject *owner)
{
    if (found != Py_None) {
        found = guard_held(found);
        return found && _PyType_Lookup(type, name) == found;
    }
    if (owner != Py_None) {
        owner = guard_held(owner);
        return owner && _PyType_Lookup(type, name) != NULL && defining_class(type, name) == owner;
    }
    return _PyType_Lookup(type, name) == NULL;
}

int guard_lookups_hold(Check *check, PyObject *cls)
{
    if (!PyType_Check(cls)) {
        return 0;
    }
    PyTypeObject *type = (PyTypeObject *)cls;
    if (check->number != 0 && check->number == (Py_ssize_t)type_version(type)) {
        return 1;
    }
    for (Py_ssize_t i = 0; i + 2 < PyTuple_GET_SIZE(check->expected); i += 3) {
        PyObject **lookup = &PyTuple_GET_ITEM(check->expected, i);
        if (!lookup_holds(type, lookup[0], lookup[1], lookup[2])) {
            return 0;
        }
    }
    /* the lookup gave the class a version, if it can have one; any change of the class removes the version */
    check->number = type_version(type);
    return 1;
}

int guard_lookups_are_valid(PyObject *payload)
{
    if (!PyTuple_Check(payload) || PyTuple_GET_SIZE(payload) % 3 != 0) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(payload); i += 3) {
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(payload, i))) {
            return 0;
        }
    }
    return 1;
}

PyObject *guard_sequence_item(PyObject *value, PyObject *key, Py_ssize_t index)
{
    value = guard_behind_proxy(value);
    if (PyDict_Check(value)) {
        return Py_XNewRef(PyDict_GetItemWithError(value, key));
    }
    Py_ssize_t length = guard_length(value);
    if (index < 0) {
        index += length;
    }
    if (index < 0 || index >= length) {
        return NULL;
    }
    if (PyList_Check(value)) {
        return Py_NewRef(PyList_GET_ITEM(value, index));
    }
    if (PyTuple_Check(value)) {
        return Py_NewRef(PyTuple_GET_ITEM(value, index));
    }
    return NULL;
}

/* 1: a Python function whose call runs its code; C code may have replaced its vectorcall (PyFunction_SetVectorcall). */
int guard_is_called_as_usual(PyObject *value)
{
    return PyFunction_Check(value) && ((PyFunctionObject *)value)->vectorcall == usual_call;
}

PyObject *guard_closure_content(PyObject *value, Py_ssize_t index)
{
    if (!PyFunction_Check(value)) {
        return NULL;
    }
    PyObject *closure = PyFunction_GET_CLOSURE(value);
    if (!closure || index < 0 || index >= PyTuple_GET_SIZE(closure)) {
        return NULL;
    }
    PyObject *cell = PyTuple_GET_ITEM(closure, index);
    return PyCell_Check(cell) ? PyCell_Get(cell) : NULL;
}

PyObject *guard_module_dict(PyObject *name)
{
    PyObject *module = PyImport_GetModule(name);
    PyObject *dict = module ? guard_instance_dict(module) : NULL;
    Py_XDECREF(module);
    return dict;
}

PyObject *guard_dict_item(PyObject *value, PyObject *key)
{
    value = guard_behind_proxy(value);
    return PyDict_Check(value) ? Py_XNewRef(PyDict_GetItemWithError(value, key)) : NULL;
}

PyObject *guard_builtins_dict(void)
{
    return Py_NewRef(builtins_dict);
}

int guard_not_in(PyObject *value, PyObject *key)
{
    value = guard_behind_proxy(value);
    int contained = PyDict_Check(value) ? PyDict_Contains(value, key) : PyAnySet_Check(value) ? PySet_Contains(value, key) : -1;
    return contained == 0;
}

/* ---- for Python ---- */

static PyObject *called_as_usual(PyObject *Py_UNUSED(self), PyObject *function)
{
    return PyBool_FromLong(guard_is_called_as_usual(function));
}

static PyObject *has_names_only(PyObject *Py_UNUSED(self), PyObject *type)
{
    PyObject *order = PyType_Check(type) ? ((PyTypeObject *)type)->tp_mro : NULL;
    int only = 1;
    for (Py_ssize_t i = 0; only && order && i < PyTuple_GET_SIZE(order); i++) {
        PyObject *dict = guard_instance_dict(PyTuple_GET_ITEM(order, i));
        only = !dict || dict_has_names_only(dict);
        Py_XDECREF(dict);
    }
    return PyBool_FromLong(only);
}

static PyObject *add_type(PyTypeObject **types, int *count, size_t room, PyObject *type)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "a type is expected");
        return NULL;
    }
    for (int i = 0; i < *count; i++) {
        if (types[i] == (PyTypeObject *)type) {
            Py_RETURN_NONE;
        }
    }
    if (*count == (int)room) {
        PyErr_SetString(PyExc_RuntimeError, "too many types");
        return NULL;
    }
    types[(*count)++] = (PyTypeObject *)Py_NewRef(type);
    Py_RETURN_NONE;
}

static PyObject *register_plain_type(PyObject *Py_UNUSED(self), PyObject *type)
{
    return add_type(plain_types, &plain_type_count, sizeof plain_types / sizeof *plain_types, type);
}

static PyObject *hold_strongly(PyObject *Py_UNUSED(self), PyObject *type)
{
    return add_type(never_weak, &never_weak_count, sizeof never_weak / sizeof *never_weak, type);
}

static PyObject *set_own_callback_type(PyObject *Py_UNUSED(self), PyObject *type)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "callbacks are recognized by their class");
        return NULL;
    }
    Py_XSETREF(guard_own_callback_type, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_own_callback_type", set_own_callback_type, METH_O, "CALLBACKS ignores callbacks of exactly this class."},
    {"register_plain_type", register_plain_type, METH_O, "Allow EQUALS by the == of this C type."},
    {"hold_strongly", hold_strongly, METH_O, "Never refer weakly to instances of this class."},
    {"called_as_usual", called_as_usual, METH_O, "Does the call of this Python function run its code?"},
    {"has_names_only", has_names_only, METH_O,
     "Do this class and its bases hold nothing but names? The == of another key would run when a name is looked up."},
    {0},
};

/* Find the vectorcall of an untouched function. */
static int find_usual_call(void)
{
    PyObject *code = (PyObject *)PyCode_NewEmpty("<stator>", "untouched", 1), *globals = PyDict_New();
    PyObject *function = code && globals ? PyFunction_New(code, globals) : NULL;
    if (function) {
        usual_call = ((PyFunctionObject *)function)->vectorcall;
    }
    Py_XDECREF(code);
    Py_XDECREF(globals);
    Py_XDECREF(function);
    return usual_call ? 0 : -1;
}

int guard_values_add_to(PyObject *module)
{
    if (find_usual_call() < 0) {
        return -1;
    }
    PyObject *builtins = PyImport_ImportModule("builtins");
    if (builtins) {
        builtins_dict = Py_XNewRef(PyModule_GetDict(builtins));
    }
    Py_XDECREF(builtins);
    return builtins_dict ? PyModule_AddFunctions(module, methods) : -1;
}
