/* GuardTree: paths from the frame's inputs to objects (shared prefixes are shared nodes), and the checks of what is found
 * there. An evaluation runs no user code except through attribute access, calls and predicates that were asked for by
 * name, and never leaves an exception behind: what cannot be read does not hold. */
#include "native.h"

typedef enum {
    ACCESS_ROOT,          /* no value; parent of the others */
    ACCESS_LOCAL,         /* locals[index] */
    ACCESS_FUNCTION,      /* the function object */
    ACCESS_CLOSURE,       /* content of cell `index` of the parent, a function */
    ACCESS_GLOBALS,       /* globals dict of the parent, a function */
    ACCESS_BUILTINS,      /* dict of the builtins module */
    ACCESS_MODULE_DICT,   /* dict of sys.modules[key] */
    ACCESS_CONSTANT,      /* key itself */
    ACCESS_ATTR,          /* getattr(parent, key) */
    ACCESS_INSTANCE_DICT, /* parent.__dict__, past any __getattribute__ */
    ACCESS_DICT_ITEM,     /* parent[key], parent a dict */
    ACCESS_SEQUENCE_ITEM, /* parent[index], parent a list or tuple (or a dict with an int key) */
    ACCESS_DICT_KEY,      /* index-th key of the parent, a dict */
    ACCESS_TYPE,          /* type(parent) */
    ACCESS_CALL,          /* key[0](*saved values): evaluated after everything else */
    ACCESS_COUNT,
} Access;

typedef enum {
    CHECK_IS,
    CHECK_TYPE,
    CHECK_EQUALS,
    CHECK_TENSOR,
    CHECK_LENGTH,
    CHECK_DICT_KEYS,
    CHECK_ABSENT,
    CHECK_NOT_IN,
    CHECK_CODE,
    CHECK_DISTINCT, /* of two saved values */
    CHECK_SAME,     /* of two saved values */
    CHECK_STATE,
    CHECK_PREDICATE,
    CHECK_COUNT,
} CheckKind;

/* An object to compare identities with: held weakly where it can be. */
typedef struct {
    PyObject *reference; /* owned: a weak reference, or the object */
    int weak;
} Identity;

typedef struct {
    uint64_t keysets[2]; /* either is accepted */
    uint16_t dtype, device;
    int8_t requires_grad;
    int ndim;
    int64_t *relied_sizes, *relied_strides; /* in one block: ndim each, -1 where not relied on */
    PyObject *dtype_object, *device_object; /* for the getters */
    uint8_t direct;                         /* metadata is read from the TensorImpl, not by getters */
} TensorCheck;

typedef struct {
    CheckKind kind;
    int next; /* of the same node; -1: last */
    Py_ssize_t guard;
    Identity identity;  /* IS, TYPE, CODE */
    PyObject *expected; /* EQUALS, DICT_KEYS, ABSENT, NOT_IN, PREDICATE */
    Py_ssize_t number;  /* LENGTH: length; ABSENT: 0 unknown, 1 the type has it, 2 it has not; SAME, DISTINCT: slots */
    Py_ssize_t other;
    TensorCheck *tensor;
    StateSnapshot *state;
} Check;

typedef struct {
    Access access;
    int first_child, last_child, next_sibling, first_check, last_check;
    int saved; /* slot that keeps the value for relations and calls; -1: none */
    Py_ssize_t index;
    Py_ssize_t guard; /* ordinal of the first guard that needed this node */
    PyObject *key;
} Node;

typedef struct {
    PyObject_HEAD
    Node *nodes;
    Check *checks;
    int node_count, check_count, node_capacity, check_capacity, saved_count;
    int first_relation, last_relation; /* checks between saved values */
    PyObject *invalidated;             /* called when an object held weakly dies, or NULL */
    PyObject *weakrefs;
} GuardTree;

typedef struct {
    GuardTree *tree;
    PyObject *const *locals;
    Py_ssize_t local_count;
    PyObject *function;
    PyObject **saved;
    Failure *failure;
} Run;

static StatorTensorLayout layout;
static PyObject *builtins_dict, *deque_type;
static PyObject *name_dtype, *name_device, *name_shape, *name_stride, *name_requires_grad;
/* types whose == is written in C and has no effects, beyond the ones that constant_equal knows; e.g. torch.device */
static PyTypeObject *plain_types[16];
static int plain_type_count = 0;
static unsigned long long getter_checks = 0;

/* ---- identities ---- */

static int identity_set(Identity *identity, PyObject *object, PyObject *callback)
{
    identity->weak = PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))
        && !(PyType_Check(object) && !(((PyTypeObject *)object)->tp_flags & Py_TPFLAGS_HEAPTYPE));
    identity->reference = identity->weak ? PyWeakref_NewRef(object, callback) : Py_NewRef(object);
    return identity->reference ? 0 : -1;
}

/* A dead weak reference points at None, so None is never held weakly (it does not support it). */
static inline int identity_is(Identity const *identity, PyObject *object)
{
    PyObject *expected
        = identity->weak ? ((PyWeakReference *)identity->reference)->wr_object : identity->reference;
    return expected == object && !(identity->weak && object == Py_None);
}

/* ---- constants ---- */

static int constant_equal(PyObject *found, PyObject *expected);

static int tuples_equal(PyObject *found, PyObject *expected)
{
    if (PyTuple_GET_SIZE(found) != PyTuple_GET_SIZE(expected)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found); i++) {
        if (!constant_equal(PyTuple_GET_ITEM(found, i), PyTuple_GET_ITEM(expected, i))) {
            return 0;
        }
    }
    return 1;
}

static int rich_equal(PyObject *found, PyObject *expected)
{
    int equal = PyObject_RichCompareBool(found, expected, Py_EQ);
    if (equal < 0) {
        PyErr_Clear();
        return 0;
    }
    return equal;
}

/* Same exact type and value. Floats compare by their bits: -0.0 is not 0.0, and a NaN is itself. */
static int constant_equal(PyObject *found, PyObject *expected)
{
    if (found == expected) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(found);
    if (type != Py_TYPE(expected)) {
        return 0;
    }
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type || type == &PyRange_Type) {
        return rich_equal(found, expected);
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
        return constant_equal(a->start, b->start) && constant_equal(a->stop, b->stop) && constant_equal(a->step, b->step);
    }
    for (int i = 0; i < plain_type_count; i++) {
        if (type == plain_types[i]) {
            return PyTuple_Check(found) ? tuples_equal(found, expected) : rich_equal(found, expected);
        }
    }
    return 0; /* enums, dtypes, bool, None: only identity */
}

/* ---- tensors ---- */

static int getter_is(PyObject *tensor, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(tensor, name);
    int same = value && rich_equal(value, expected);
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

/* The slow path: for tensor subclasses, which may answer for themselves, and where calibration failed. */
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

static int tensor_holds(TensorCheck const *check, PyObject *tensor)
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

static void tensor_check_free(TensorCheck *check)
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
static TensorCheck *tensor_check_make(PyObject *payload)
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
        tensor_check_free(check);
        return NULL;
    }
    return check;
}

/* ---- containers ---- */

/* The dict behind an exact mappingproxy (the classes' __dict__, signature.parameters); anything else as it is. */
static PyObject *behind_proxy(PyObject *value)
{
    struct {
        PyObject_HEAD
        PyObject *mapping;
    } *proxy = (void *)value; /* CPython's mappingproxyobject */
    return Py_IS_TYPE(value, &PyDictProxy_Type) && PyDict_Check(proxy->mapping) ? proxy->mapping : value;
}

static Py_ssize_t builtin_length(PyObject *value)
{
    value = behind_proxy(value);
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
    if (PyObject_TypeCheck(value, (PyTypeObject *)deque_type)) {
        return ((PyTypeObject *)deque_type)->tp_as_sequence->sq_length(value);
    }
    return -1;
}

static int ordered_keys_are(PyObject *value, PyObject *expected)
{
    /* an OrderedDict keeps an order of its own (move_to_end) */
    PyObject *keys = PyODict_Check(value) ? PyObject_CallOneArg((PyObject *)&PyTuple_Type, value) : NULL;
    int same = keys ? tuples_equal(keys, expected) : 0;
    Py_XDECREF(keys);
    return same;
}

static int keys_are(PyObject *value, PyObject *expected)
{
    value = behind_proxy(value);
    if (PyAnySet_Check(value)) {
        if (PySet_GET_SIZE(value) != PyTuple_GET_SIZE(expected)) {
            return 0;
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
            if (PySet_Contains(value, PyTuple_GET_ITEM(expected, i)) != 1) {
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
        if (!constant_equal(key, PyTuple_GET_ITEM(expected, i++))) {
            return 0;
        }
    }
    return 1;
}

static PyObject *key_at(PyObject *value, Py_ssize_t index)
{
    value = behind_proxy(value);
    if (!PyDict_Check(value)) {
        return NULL;
    }
    if (PyODict_Check(value)) {
        PyObject *keys = PyObject_CallOneArg((PyObject *)&PyTuple_Type, value);
        PyObject *found = keys && index < PyTuple_GET_SIZE(keys) ? Py_NewRef(PyTuple_GET_ITEM(keys, index)) : NULL;
        Py_XDECREF(keys);
        return found;
    }
    Py_ssize_t position = 0;
    PyObject *key;
    while (PyDict_Next(value, &position, &key, NULL)) {
        if (index-- == 0) {
            return Py_NewRef(key);
        }
    }
    return NULL;
}

static PyObject *instance_dict(PyObject *value)
{
    if (PyType_Check(value)) {
#if PY_VERSION_HEX >= 0x030C0000
        return PyType_GetDict((PyTypeObject *)value);
#else
        return Py_XNewRef(((PyTypeObject *)value)->tp_dict);
#endif
    }
    PyObject **place = _PyObject_GetDictPtr(value);
    if (place && *place) {
        return Py_NewRef(*place);
    }
    return place ? PyObject_GenericGetDict(value, NULL) : NULL;
}

/* 1: neither the instance nor, if it was so when first seen, its type has the attribute. Runs no user code. */
static int attribute_is_absent(Check *check, PyObject *value)
{
    PyObject *dict = instance_dict(value);
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

static PyObject *sequence_item(PyObject *value, PyObject *key, Py_ssize_t index)
{
    value = behind_proxy(value);
    if (PyDict_Check(value)) {
        return Py_XNewRef(PyDict_GetItemWithError(value, key));
    }
    Py_ssize_t length = builtin_length(value);
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
    if (PyObject_TypeCheck(value, (PyTypeObject *)deque_type)) {
        return ((PyTypeObject *)deque_type)->tp_as_sequence->sq_item(value, index);
    }
    return NULL;
}

static PyObject *closure_content(PyObject *value, Py_ssize_t index)
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

static PyObject *module_dict(PyObject *name)
{
    PyObject *module = PyImport_GetModule(name);
    PyObject *dict = module ? instance_dict(module) : NULL;
    Py_XDECREF(module);
    return dict;
}

static PyObject *call_saved(Run *run, Node const *node)
{
    PyObject *arguments[8];
    PyObject *slots = PyTuple_GET_ITEM(node->key, 1);
    Py_ssize_t count = PyTuple_GET_SIZE(slots);
    for (Py_ssize_t i = 0; i < count; i++) {
        arguments[i] = run->saved[PyLong_AsSsize_t(PyTuple_GET_ITEM(slots, i))];
        if (!arguments[i]) {
            return NULL;
        }
    }
    return PyObject_Vectorcall(PyTuple_GET_ITEM(node->key, 0), arguments, count, NULL);
}

/* New reference, or NULL (perhaps with an exception): there is nothing at this path. */
static PyObject *access_value(Run *run, Node const *node, PyObject *parent)
{
    switch (node->access) {
    case ACCESS_LOCAL:
        return node->index < run->local_count ? Py_XNewRef(run->locals[node->index]) : NULL;
    case ACCESS_FUNCTION:
        return Py_XNewRef(run->function);
    case ACCESS_CLOSURE:
        return closure_content(parent, node->index);
    case ACCESS_GLOBALS:
        return PyFunction_Check(parent) ? Py_NewRef(PyFunction_GET_GLOBALS(parent)) : NULL;
    case ACCESS_BUILTINS:
        return Py_NewRef(builtins_dict);
    case ACCESS_MODULE_DICT:
        return module_dict(node->key);
    case ACCESS_CONSTANT:
        return Py_NewRef(node->key);
    case ACCESS_ATTR:
        return PyObject_GetAttr(parent, node->key);
    case ACCESS_INSTANCE_DICT:
        return instance_dict(parent);
    case ACCESS_DICT_ITEM:
        parent = behind_proxy(parent);
        return PyDict_Check(parent) ? Py_XNewRef(PyDict_GetItemWithError(parent, node->key)) : NULL;
    case ACCESS_SEQUENCE_ITEM:
        return sequence_item(parent, node->key, node->index);
    case ACCESS_DICT_KEY:
        return key_at(parent, node->index);
    case ACCESS_TYPE:
        return Py_NewRef((PyObject *)Py_TYPE(parent));
    case ACCESS_CALL:
        return call_saved(run, node);
    default:
        return NULL;
    }
}

static int predicate_holds(PyObject *predicate, PyObject *value)
{
    PyObject *result = PyObject_CallOneArg(predicate, value);
    int truth = result ? PyObject_IsTrue(result) : 0;
    Py_XDECREF(result);
    return truth > 0;
}

static int not_in(PyObject *value, PyObject *key)
{
    value = behind_proxy(value);
    int contained = PyDict_Check(value) ? PyDict_Contains(value, key) : PyAnySet_Check(value) ? PySet_Contains(value, key) : -1;
    return contained == 0;
}

static int check_holds(Check *check, PyObject *value)
{
    switch (check->kind) {
    case CHECK_IS:
        return identity_is(&check->identity, value);
    case CHECK_TYPE:
        return identity_is(&check->identity, (PyObject *)Py_TYPE(value));
    case CHECK_EQUALS:
        return constant_equal(value, check->expected);
    case CHECK_TENSOR:
        return identity_is(&check->identity, (PyObject *)Py_TYPE(value)) && tensor_holds(check->tensor, value);
    case CHECK_LENGTH:
        return builtin_length(value) == check->number;
    case CHECK_DICT_KEYS:
        return keys_are(value, check->expected);
    case CHECK_ABSENT:
        return attribute_is_absent(check, value);
    case CHECK_NOT_IN:
        return not_in(value, check->expected);
    case CHECK_CODE:
        return PyFunction_Check(value) && identity_is(&check->identity, PyFunction_GET_CODE(value));
    case CHECK_PREDICATE:
        return predicate_holds(check->expected, value);
    case CHECK_STATE:
        return (!check->state || stator_state_is(check->state)) && (!check->expected || predicate_holds(check->expected, Py_None));
    default:
        return 0;
    }
}

static int failed(Run *run, Py_ssize_t guard, PyObject *found)
{
    PyErr_Clear();
    if (run->failure) {
        run->failure->guard = guard;
        run->failure->found = Py_XNewRef(found);
    }
    return 0;
}

/* Checks of one node, then its children. */
static int node_holds(Run *run, Node const *node, PyObject *value)
{
    GuardTree *tree = run->tree;
    for (int at = node->first_check; at >= 0; at = tree->checks[at].next) {
        Check *check = &tree->checks[at];
        if (!check_holds(check, value)) {
            return failed(run, check->guard, value);
        }
    }
    if (node->saved >= 0) {
        run->saved[node->saved] = Py_NewRef(value);
    }
    for (int at = node->first_child; at >= 0; at = tree->nodes[at].next_sibling) {
        Node const *child = &tree->nodes[at];
        PyObject *found = access_value(run, child, value);
        if (!found) {
            return failed(run, child->guard, NULL);
        }
        int holds = node_holds(run, child, found);
        Py_DECREF(found);
        if (!holds) {
            return 0;
        }
    }
    return 1;
}

static int relations_hold(Run *run)
{
    for (int at = run->tree->first_relation; at >= 0; at = run->tree->checks[at].next) {
        Check const *check = &run->tree->checks[at];
        PyObject *one = run->saved[check->number], *other = run->saved[check->other];
        if (!one || !other || (one == other) != (check->kind == CHECK_SAME)) {
            return failed(run, check->guard, one);
        }
    }
    return 1;
}

#define SAVED_ON_STACK 32

int stator_guards_hold(PyObject *self, PyObject *const *locals, Py_ssize_t count, PyObject *function, Failure *failure)
{
    GuardTree *tree = (GuardTree *)self;
    if (tree->node_count == 0) {
        return 0; /* cleared by the collector */
    }
    PyObject *on_stack[SAVED_ON_STACK];
    PyObject **saved = on_stack;
    if (tree->saved_count > SAVED_ON_STACK) {
        saved = PyMem_Malloc(tree->saved_count * sizeof *saved);
        if (!saved) {
            return 0;
        }
    }
    for (int i = 0; i < tree->saved_count; i++) {
        saved[i] = NULL;
    }
    if (failure) {
        *failure = (Failure){-1, NULL};
    }
    Run run = {tree, locals, count, function, saved, failure};
    int holds = node_holds(&run, &tree->nodes[0], Py_None) && relations_hold(&run);
    for (int i = 0; i < tree->saved_count; i++) {
        Py_XDECREF(saved[i]);
    }
    if (saved != on_stack) {
        PyMem_Free(saved);
    }
    return holds;
}

/* ---- building ---- */

static void *grown(void *block, int *capacity, int count, size_t size)
{
    if (count < *capacity) {
        return block;
    }
    int wanted = *capacity ? *capacity * 2 : 16;
    void *bigger = PyMem_Realloc(block, wanted * size);
    if (!bigger) {
        PyErr_NoMemory();
        return NULL;
    }
    *capacity = wanted;
    return bigger;
}

static int new_node(GuardTree *tree, Access access, PyObject *key, Py_ssize_t index, Py_ssize_t guard)
{
    Node *nodes = grown(tree->nodes, &tree->node_capacity, tree->node_count, sizeof(Node));
    if (!nodes) {
        return -1;
    }
    tree->nodes = nodes;
    nodes[tree->node_count] = (Node){
        .access = access, .first_child = -1, .last_child = -1, .next_sibling = -1, .first_check = -1, .last_check = -1,
        .saved = -1, .index = index, .guard = guard, .key = Py_XNewRef(key),
    };
    return tree->node_count++;
}

static int valid_node(GuardTree *tree, int node)
{
    if (node < 0 || node >= tree->node_count) {
        PyErr_SetString(PyExc_IndexError, "no such node");
        return 0;
    }
    return 1;
}

static int needs_string(Access access)
{
    return access == ACCESS_ATTR || access == ACCESS_MODULE_DICT;
}

static PyObject *tree_add_node(PyObject *self, PyObject *args)
{
    GuardTree *tree = (GuardTree *)self;
    int parent, access;
    Py_ssize_t index, guard;
    PyObject *key;
    if (!PyArg_ParseTuple(args, "iiOnn", &parent, &access, &key, &index, &guard) || !valid_node(tree, parent)) {
        return NULL;
    }
    if (access <= ACCESS_ROOT || access >= ACCESS_COUNT || (needs_string(access) && !PyUnicode_Check(key))) {
        PyErr_SetString(PyExc_ValueError, "bad accessor");
        return NULL;
    }
    if (access == ACCESS_CALL
        && !(PyTuple_Check(key) && PyTuple_GET_SIZE(key) == 2 && PyTuple_Check(PyTuple_GET_ITEM(key, 1))
             && PyTuple_GET_SIZE(PyTuple_GET_ITEM(key, 1)) <= 8)) {
        PyErr_SetString(PyExc_ValueError, "a call takes (function, up to 8 slots)");
        return NULL;
    }
    int node = new_node(tree, access, key, index, guard);
    if (node < 0) {
        return NULL;
    }
    Node *above = &tree->nodes[parent];
    if (above->last_child >= 0) {
        tree->nodes[above->last_child].next_sibling = node;
    } else {
        above->first_child = node;
    }
    above->last_child = node;
    return PyLong_FromLong(node);
}

/* Keep the node's value in a slot for relations and calls. */
static PyObject *tree_save(PyObject *self, PyObject *argument)
{
    GuardTree *tree = (GuardTree *)self;
    int node = PyLong_AsLong(argument);
    if (PyErr_Occurred() || !valid_node(tree, node)) {
        return NULL;
    }
    if (tree->nodes[node].saved < 0) {
        tree->nodes[node].saved = tree->saved_count++;
    }
    return PyLong_FromLong(tree->nodes[node].saved);
}

/* payload: None: the state is to stay as it is now; a predicate: that decides alone; (predicate,): both. */
static int fill_state_check(Check *check, PyObject *payload)
{
    int both = PyTuple_Check(payload) && PyTuple_GET_SIZE(payload) == 1;
    if (both || payload == Py_None) {
        if (!stator_state_ready()) {
            PyErr_SetString(PyExc_ValueError, "without probes a state check needs a predicate");
            return -1;
        }
        check->state = PyMem_Malloc(sizeof *check->state);
        if (!check->state) {
            PyErr_NoMemory();
            return -1;
        }
        stator_state_read(check->state);
    }
    check->expected = payload == Py_None ? NULL : Py_NewRef(both ? PyTuple_GET_ITEM(payload, 0) : payload);
    return 0;
}

static int fill_check(GuardTree *tree, Check *check, PyObject *payload)
{
    switch (check->kind) {
    case CHECK_IS:
    case CHECK_TYPE:
    case CHECK_CODE:
        return identity_set(&check->identity, payload, tree->invalidated);
    case CHECK_TENSOR:
        if (!PyTuple_Check(payload) || PyTuple_GET_SIZE(payload) != 2) {
            PyErr_SetString(PyExc_TypeError, "a tensor check takes (type, metadata)");
            return -1;
        }
        check->tensor = tensor_check_make(PyTuple_GET_ITEM(payload, 1));
        return check->tensor ? identity_set(&check->identity, PyTuple_GET_ITEM(payload, 0), tree->invalidated) : -1;
    case CHECK_LENGTH:
        check->number = PyLong_AsSsize_t(payload);
        return PyErr_Occurred() ? -1 : 0;
    case CHECK_DICT_KEYS:
        if (!PyTuple_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "a key check takes a tuple");
            return -1;
        }
        check->expected = Py_NewRef(payload);
        return 0;
    case CHECK_ABSENT:
        if (!PyUnicode_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "an absence check takes an attribute name");
            return -1;
        }
        check->expected = Py_NewRef(payload);
        return 0;
    case CHECK_STATE:
        return fill_state_check(check, payload);
    default:
        check->expected = Py_NewRef(payload);
        return 0;
    }
}

static void check_release(Check *check)
{
    Py_CLEAR(check->identity.reference);
    Py_CLEAR(check->expected);
    tensor_check_free(check->tensor);
    check->tensor = NULL;
    PyMem_Free(check->state);
    check->state = NULL;
}

/* Index of a new check that is linked to nothing yet, or -1. */
static int new_check(GuardTree *tree, int kind, PyObject *payload, Py_ssize_t guard)
{
    Check *checks = grown(tree->checks, &tree->check_capacity, tree->check_count, sizeof(Check));
    if (!checks) {
        return -1;
    }
    tree->checks = checks;
    Check check = {.kind = kind, .next = -1, .guard = guard};
    if (payload && fill_check(tree, &check, payload) < 0) {
        check_release(&check);
        return -1;
    }
    tree->checks[tree->check_count] = check;
    return tree->check_count++;
}

static void link_check(GuardTree *tree, int *first, int *last, int check)
{
    if (*last >= 0) {
        tree->checks[*last].next = check;
    } else {
        *first = check;
    }
    *last = check;
}

static PyObject *tree_add_check(PyObject *self, PyObject *args)
{
    GuardTree *tree = (GuardTree *)self;
    int node, kind;
    PyObject *payload;
    Py_ssize_t guard;
    if (!PyArg_ParseTuple(args, "iiOn", &node, &kind, &payload, &guard) || !valid_node(tree, node)) {
        return NULL;
    }
    if (kind < 0 || kind >= CHECK_COUNT || kind == CHECK_SAME || kind == CHECK_DISTINCT) {
        PyErr_SetString(PyExc_ValueError, "bad check");
        return NULL;
    }
    int check = new_check(tree, kind, payload, guard);
    if (check < 0) {
        return NULL;
    }
    link_check(tree, &tree->nodes[node].first_check, &tree->nodes[node].last_check, check);
    Py_RETURN_NONE;
}

static PyObject *tree_add_relation(PyObject *self, PyObject *args)
{
    GuardTree *tree = (GuardTree *)self;
    int kind, one, other;
    Py_ssize_t guard;
    if (!PyArg_ParseTuple(args, "iiin", &kind, &one, &other, &guard)) {
        return NULL;
    }
    if ((kind != CHECK_SAME && kind != CHECK_DISTINCT) || one < 0 || other < 0 || one >= tree->saved_count
        || other >= tree->saved_count) {
        PyErr_SetString(PyExc_ValueError, "bad relation");
        return NULL;
    }
    int check = new_check(tree, kind, NULL, guard);
    if (check < 0) {
        return NULL;
    }
    tree->checks[check].number = one;
    tree->checks[check].other = other;
    link_check(tree, &tree->first_relation, &tree->last_relation, check);
    Py_RETURN_NONE;
}

static PyObject *tree_check(PyObject *self, PyObject *args)
{
    PyObject *locals, *function;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &locals, &function)) {
        return NULL;
    }
    return PyBool_FromLong(stator_guards_hold(self, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals), function, NULL));
}

static PyObject *tree_explain(PyObject *self, PyObject *args)
{
    PyObject *locals, *function;
    Failure failure;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &locals, &function)) {
        return NULL;
    }
    if (stator_guards_hold(self, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals), function, &failure)) {
        Py_RETURN_NONE;
    }
    PyObject *result = failure.found ? Py_BuildValue("(nO)", failure.guard, failure.found) : Py_BuildValue("(n)", failure.guard);
    Py_XDECREF(failure.found);
    return result;
}

/* ---- life of a tree ---- */

static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"invalidated", NULL};
    PyObject *invalidated = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &invalidated)) {
        return NULL;
    }
    GuardTree *tree = (GuardTree *)type->tp_alloc(type, 0);
    if (!tree) {
        return NULL;
    }
    tree->first_relation = tree->last_relation = -1;
    tree->invalidated = invalidated == Py_None ? NULL : Py_NewRef(invalidated);
    if (new_node(tree, ACCESS_ROOT, NULL, 0, -1) < 0) {
        Py_DECREF(tree);
        return NULL;
    }
    return (PyObject *)tree;
}

static int tree_traverse(PyObject *self, visitproc visit, void *arg)
{
    GuardTree *tree = (GuardTree *)self;
    Py_VISIT(tree->invalidated);
    for (int i = 0; i < tree->node_count; i++) {
        Py_VISIT(tree->nodes[i].key);
    }
    for (int i = 0; i < tree->check_count; i++) {
        Py_VISIT(tree->checks[i].identity.reference);
        Py_VISIT(tree->checks[i].expected);
    }
    return 0;
}

static int tree_clear(PyObject *self)
{
    GuardTree *tree = (GuardTree *)self;
    Node *nodes = tree->nodes;
    Check *checks = tree->checks;
    int node_count = tree->node_count, check_count = tree->check_count;
    tree->nodes = NULL;
    tree->checks = NULL;
    tree->node_count = tree->check_count = tree->node_capacity = tree->check_capacity = 0;
    tree->first_relation = tree->last_relation = -1;
    for (int i = 0; i < node_count; i++) {
        Py_XDECREF(nodes[i].key);
    }
    for (int i = 0; i < check_count; i++) {
        check_release(&checks[i]);
    }
    PyMem_Free(nodes);
    PyMem_Free(checks);
    Py_CLEAR(tree->invalidated);
    return 0;
}

static void tree_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (((GuardTree *)self)->weakrefs) {
        PyObject_ClearWeakRefs(self);
    }
    tree_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef tree_methods[] = {
    {"add_node", tree_add_node, METH_VARARGS, "add_node(parent, access, key, index, guard) -> node"},
    {"save", tree_save, METH_O, "save(node) -> slot that keeps its value for relations and calls"},
    {"add_check", tree_add_check, METH_VARARGS, "add_check(node, kind, payload, guard)"},
    {"add_relation", tree_add_relation, METH_VARARGS, "add_relation(kind, slot, other slot, guard)"},
    {"check", tree_check, METH_VARARGS, "check(locals, function) -> do all guards hold?"},
    {"explain", tree_explain, METH_VARARGS, "explain(locals, function) -> None, (guard, found) or (guard,): unreadable"},
    {0},
};

static PyMemberDef tree_members[] = {
    {"node_count", T_INT, offsetof(GuardTree, node_count), READONLY, NULL},
    {"check_count", T_INT, offsetof(GuardTree, check_count), READONLY, NULL},
    {0},
};

PyTypeObject GuardTreeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.GuardTree",
    .tp_doc = "Accessors and checks over a frame's inputs, evaluated in C.",
    .tp_basicsize = sizeof(GuardTree),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = tree_new,
    .tp_dealloc = tree_dealloc,
    .tp_traverse = tree_traverse,
    .tp_clear = tree_clear,
    .tp_methods = tree_methods,
    .tp_members = tree_members,
    .tp_weaklistoffset = offsetof(GuardTree, weakrefs),
};

/* ---- module ---- */

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

static PyObject *register_plain_type(PyObject *Py_UNUSED(self), PyObject *type)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "a type is expected");
        return NULL;
    }
    for (int i = 0; i < plain_type_count; i++) {
        if (plain_types[i] == (PyTypeObject *)type) {
            Py_RETURN_NONE;
        }
    }
    if (plain_type_count == (int)(sizeof plain_types / sizeof *plain_types)) {
        PyErr_SetString(PyExc_RuntimeError, "too many plain types");
        return NULL;
    }
    plain_types[plain_type_count++] = (PyTypeObject *)Py_NewRef(type);
    Py_RETURN_NONE;
}

static PyObject *getter_check_count(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLongLong(getter_checks);
}

static PyMethodDef methods[] = {
    {"set_tensor_layout", set_tensor_layout, METH_O, "Install a calibrated TensorLayout tuple; None: use getters."},
    {"tensor_codes", tensor_codes, METH_O, "(dtype code, device code, keyset) of a tensor; None without a layout."},
    {"register_plain_type", register_plain_type, METH_O, "Allow EQUALS by the == of this C type."},
    {"getter_check_count", getter_check_count, METH_NOARGS, "How many tensor checks had to use attribute getters."},
    {0},
};

static struct {
    const char *name;
    int value;
} const constants[] = {
    {"ACCESS_LOCAL", ACCESS_LOCAL},
    {"ACCESS_FUNCTION", ACCESS_FUNCTION},
    {"ACCESS_CLOSURE", ACCESS_CLOSURE},
    {"ACCESS_GLOBALS", ACCESS_GLOBALS},
    {"ACCESS_BUILTINS", ACCESS_BUILTINS},
    {"ACCESS_MODULE_DICT", ACCESS_MODULE_DICT},
    {"ACCESS_CONSTANT", ACCESS_CONSTANT},
    {"ACCESS_ATTR", ACCESS_ATTR},
    {"ACCESS_INSTANCE_DICT", ACCESS_INSTANCE_DICT},
    {"ACCESS_DICT_ITEM", ACCESS_DICT_ITEM},
    {"ACCESS_SEQUENCE_ITEM", ACCESS_SEQUENCE_ITEM},
    {"ACCESS_DICT_KEY", ACCESS_DICT_KEY},
    {"ACCESS_TYPE", ACCESS_TYPE},
    {"ACCESS_CALL", ACCESS_CALL},
    {"CHECK_IS", CHECK_IS},
    {"CHECK_TYPE", CHECK_TYPE},
    {"CHECK_EQUALS", CHECK_EQUALS},
    {"CHECK_TENSOR", CHECK_TENSOR},
    {"CHECK_LENGTH", CHECK_LENGTH},
    {"CHECK_DICT_KEYS", CHECK_DICT_KEYS},
    {"CHECK_ABSENT", CHECK_ABSENT},
    {"CHECK_NOT_IN", CHECK_NOT_IN},
    {"CHECK_CODE", CHECK_CODE},
    {"CHECK_DISTINCT", CHECK_DISTINCT},
    {"CHECK_SAME", CHECK_SAME},
    {"CHECK_STATE", CHECK_STATE},
    {"CHECK_PREDICATE", CHECK_PREDICATE},
};

static int import_names(void)
{
    PyObject *builtins = PyImport_ImportModule("builtins"), *collections = PyImport_ImportModule("collections");
    if (builtins && collections) {
        builtins_dict = Py_XNewRef(PyModule_GetDict(builtins));
        deque_type = PyObject_GetAttrString(collections, "deque");
    }
    Py_XDECREF(builtins);
    Py_XDECREF(collections);
    name_dtype = PyUnicode_InternFromString("dtype");
    name_device = PyUnicode_InternFromString("device");
    name_shape = PyUnicode_InternFromString("shape");
    name_stride = PyUnicode_InternFromString("stride");
    name_requires_grad = PyUnicode_InternFromString("requires_grad");
    return builtins_dict && deque_type && name_dtype && name_device && name_shape && name_stride && name_requires_grad ? 0
                                                                                                                       : -1;
}

int stator_guards_add_to(PyObject *module)
{
    if (import_names() < 0 || PyModule_AddType(module, &GuardTreeType) < 0 || PyModule_AddFunctions(module, methods) < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}
