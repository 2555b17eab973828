/* Evaluation of a guard tree: follows the accessors, runs the checks, and leaves no Exception set: a source that cannot
 * be read fails its guards. User code runs only by attribute access, calls and predicates. */
#include "guards.h"

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

static PyObject *item_by_key(PyObject *parent, Node const *node)
{
    PyObject *key = Py_XNewRef(guard_node_key(node)); /* the == of other keys may free this key */
    PyObject *found = key ? guard_dict_item(parent, key) : NULL;
    Py_XDECREF(key);
    return found;
}

/* New reference, or NULL (perhaps with an exception) if the path leads nowhere. */
static PyObject *access_value(Run *run, Node const *node, PyObject *parent)
{
    switch (node->access) {
    case ACCESS_LOCAL:
        return node->index < run->local_count ? Py_XNewRef(run->locals[node->index]) : NULL;
    case ACCESS_FUNCTION:
        return Py_XNewRef(run->function);
    case ACCESS_CLOSURE:
        return guard_closure_content(parent, node->index);
    case ACCESS_GLOBALS:
        return PyFunction_Check(parent) ? Py_NewRef(PyFunction_GET_GLOBALS(parent)) : NULL;
    case ACCESS_BUILTINS:
        return guard_builtins_dict();
    case ACCESS_MODULE_DICT:
        return guard_module_dict(node->key);
    case ACCESS_CONSTANT:
        return Py_XNewRef(guard_node_key(node));
    case ACCESS_ATTR:
        return PyObject_GetAttr(parent, node->key);
    case ACCESS_INSTANCE_DICT:
        return guard_instance_dict(parent);
    case ACCESS_DICT_ITEM:
        return item_by_key(parent, node);
    case ACCESS_SEQUENCE_ITEM:
        return guard_sequence_item(parent, node->key, node->index);
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

PyTypeObject *guard_own_callback_type;

/* Whether no weak reference to the object has a callback, except for those of guards. */
static int has_no_callback(PyObject *object)
{
    Py_ssize_t offset = Py_TYPE(object)->tp_weaklistoffset;
    PyWeakReference *reference = offset ? *(PyWeakReference **)((char *)object + offset) : NULL;
    while (reference && (!reference->wr_callback || Py_IS_TYPE(reference->wr_callback, guard_own_callback_type))) {
        reference = reference->wr_next;
    }
    return !reference;
}

int guard_check_holds(Check *check, PyObject *value)
{
    switch (check->kind) {
    case CHECK_IS:
        return identity_is(&check->identity, value);
    case CHECK_TYPE:
        return identity_is(&check->identity, (PyObject *)Py_TYPE(value));
    case CHECK_EQUALS:
        return guard_constant_equal(value, check->expected);
    case CHECK_TENSOR:
        return identity_is(&check->identity, (PyObject *)Py_TYPE(value)) && guard_tensor_holds(check->tensor, value);
    case CHECK_CONTENT:
        return guard_content_holds(&check->content, value);
    case CHECK_LENGTH:
        return guard_length(value) == check->number;
    case CHECK_DICT_KEYS:
        return guard_keys_are(value, check->expected);
    case CHECK_ABSENT:
        return guard_attribute_is_absent(check, value);
    case CHECK_NOT_IN:
        return guard_not_in(value, check->expected);
    case CHECK_CODE:
        return guard_is_called_as_usual(value) && identity_is(&check->identity, PyFunction_GET_CODE(value));
    case CHECK_PREDICATE:
        return predicate_holds(check->expected, value);
    case CHECK_CALLBACKS:
        return has_no_callback(value) || predicate_holds(check->expected, value);
    case CHECK_LOOKUPS:
        return guard_lookups_hold(check, value);
    case CHECK_STATE:
        return (!check->state || stator_state_is(check->state)) && (!check->expected || predicate_holds(check->expected, Py_None));
    default:
        return 0;
    }
}

/* An exception that is no Exception (KeyboardInterrupt, SystemExit) comes from outside of the guards and stays set. */
static int failed(Run *run, Py_ssize_t guard, PyObject *found)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
    if (run->failure) {
        run->failure->guard = guard;
        run->failure->found = Py_XNewRef(found);
    }
    return 0;
}

int guard_check_of_run_holds(Run *run, int at, PyObject *value)
{
    Check *check = &run->tree->checks[at];
    return guard_check_holds(check, value) || failed(run, check->guard, value);
}

int guard_node_holds(Run *run, Node const *node, PyObject *value)
{
    GuardTree *tree = run->tree;
    for (int at = node->first_check; at >= 0; at = tree->checks[at].next) {
        if (!guard_check_of_run_holds(run, at, value)) {
            return 0;
        }
    }
    if (node->saved >= 0) {
        run->saved[node->saved] = Py_NewRef(value);
    }
    for (int at = node->first_child; at >= 0; at = tree->nodes[at].next_sibling) {
        if (!guard_child_holds(run, at, value)) {
            return 0;
        }
    }
    return 1;
}

int guard_child_holds(Run *run, int child, PyObject *parent)
{
    Node const *node = &run->tree->nodes[child];
    PyObject *found = access_value(run, node, parent);
    if (!found) {
        return failed(run, node->guard, NULL);
    }
    int holds = guard_node_holds(run, node, found);
    Py_DECREF(found);
    return holds;
}

static PyObject *saved_at(Run const *run, PyObject *slots, Py_ssize_t index)
{
    return run->saved[PyLong_AsSsize_t(PyTuple_GET_ITEM(slots, index))];
}

/* Whether all saved values in `slots` are distinct objects, by a hash table that is at most half full. */
static int all_distinct(Run *run, PyObject *slots)
{
    size_t count = PyTuple_GET_SIZE(slots), size = 8;
    while (size < 2 * count) {
        size *= 2;
    }
    PyObject **table = PyMem_Calloc(size, sizeof *table);
    if (!table) {
        return 0;
    }
    int distinct = 1;
    for (size_t i = 0; i < count && distinct; i++) {
        PyObject *value = saved_at(run, slots, i);
        size_t at = (((uintptr_t)value >> 4) * 0x9E3779B97F4A7C15u >> 20) & (size - 1);
        while (table[at] && table[at] != value) {
            at = (at + 1) & (size - 1);
        }
        distinct = value && !table[at];
        table[at] = value;
    }
    PyMem_Free(table);
    return distinct;
}

static int relation_holds(Run *run, Check const *check)
{
    if (check->kind == CHECK_SIZES) {
        return guard_sizes_hold(check->sizes, run->saved);
    }
    if (PyTuple_GET_SIZE(check->expected) > 2) {
        return all_distinct(run, check->expected);
    }
    PyObject *one = saved_at(run, check->expected, 0), *other = saved_at(run, check->expected, 1);
    return one && other && (one == other) == (check->kind == CHECK_SAME);
}

static int sizes_failed(Run *run, Check const *check)
{
    PyObject *found = run->failure ? guard_sizes_found(check->sizes, run->saved) : NULL;
    failed(run, check->guard, found);
    Py_XDECREF(found);
    return 0;
}

int guard_relations_hold(Run *run)
{
    for (int at = run->tree->first_relation; at >= 0; at = run->tree->checks[at].next) {
        Check const *check = &run->tree->checks[at];
        if (!relation_holds(run, check)) {
            return check->kind == CHECK_SIZES ? sizes_failed(run, check)
                                              : failed(run, check->guard, saved_at(run, check->expected, 0));
        }
    }
    return 1;
}
