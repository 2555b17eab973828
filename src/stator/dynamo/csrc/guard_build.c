/* Builds guard trees: the Python type GuardTree, its nodes and checks, and their lifetime. dynamo/guards/guard_tree.py
 * decides the contents of a tree. */
#include "dict_states.h"
#include "guard_memo.h"
#include "native.h"

static int new_node(GuardTree *tree, Access access, PyObject *key, Py_ssize_t index, Py_ssize_t guard)
{
    Node *nodes = guard_grown(tree->nodes, &tree->node_capacity, tree->node_count, sizeof(Node));
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

/* Whether the key may be an object of the program that only the tree would keep alive, which must not happen. */
static int is_held_weakly(Access access, PyObject *key)
{
    if (access == ACCESS_CONSTANT) {
        return PyFunction_Check(key) || (PyType_Check(key) && PyType_HasFeature((PyTypeObject *)key, Py_TPFLAGS_HEAPTYPE));
    }
    return access == ACCESS_DICT_ITEM && guard_can_be_weak(key)
        && !(PyType_Check(key) && !PyType_HasFeature((PyTypeObject *)key, Py_TPFLAGS_HEAPTYPE));
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
    int weak = is_held_weakly(access, key);
    PyObject *held = weak ? PyWeakref_NewRef(key, tree->invalidated) : Py_NewRef(key);
    int node = held ? new_node(tree, access, held, index, guard) : -1;
    Py_XDECREF(held);
    if (node < 0) {
        return NULL;
    }
    tree->nodes[node].weak = weak;
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

/* payload: None: the state must stay as it is now; a predicate: only it decides; (predicate,): both. */
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
        return guard_identity_set(&check->identity, payload, tree->invalidated);
    case CHECK_TENSOR:
        if (!PyTuple_Check(payload) || PyTuple_GET_SIZE(payload) != 2) {
            PyErr_SetString(PyExc_TypeError, "a tensor check takes (type, metadata)");
            return -1;
        }
        check->tensor = guard_tensor_check_make(PyTuple_GET_ITEM(payload, 1));
        return check->tensor ? guard_identity_set(&check->identity, PyTuple_GET_ITEM(payload, 0), tree->invalidated) : -1;
    case CHECK_CONTENT:
        return guard_content_check_set(&check->content, payload);
    case CHECK_LENGTH:
        check->number = PyLong_AsSsize_t(payload);
        return PyErr_Occurred() ? -1 : 0;
    case CHECK_DICT_KEYS:
        if (!PyTuple_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "a key check takes a tuple");
            return -1;
        }
        check->expected = guard_held_weakly(payload);
        return check->expected ? 0 : -1;
    case CHECK_ABSENT:
        if (!PyUnicode_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "an absence check takes an attribute name");
            return -1;
        }
        check->expected = Py_NewRef(payload);
        return 0;
    case CHECK_LOOKUPS:
        if (!guard_lookups_are_valid(payload)) {
            PyErr_SetString(PyExc_TypeError, "a check of lookups takes a tuple of name, what is found or None, owner or None, ...");
            return -1;
        }
        check->expected = guard_held_weakly(payload);
        return check->expected ? 0 : -1;
    case CHECK_STATE:
        return fill_state_check(check, payload);
    case CHECK_SIZES:
        check->sizes = guard_size_check_make(payload, tree->saved_count);
        return check->sizes ? 0 : -1;
    default:
        check->expected = Py_NewRef(payload);
        return 0;
    }
}

static void check_release(Check *check)
{
    Py_CLEAR(check->identity.reference);
    Py_CLEAR(check->expected);
    guard_tensor_check_free(check->tensor);
    check->tensor = NULL;
    guard_size_check_free(check->sizes);
    check->sizes = NULL;
    PyMem_Free(check->state);
    check->state = NULL;
}

/* Index of a new check that is linked to nothing yet, or -1. */
static int new_check(GuardTree *tree, int kind, PyObject *payload, Py_ssize_t guard)
{
    Check *checks = guard_grown(tree->checks, &tree->check_capacity, tree->check_count, sizeof(Check));
    if (!checks) {
        return -1;
    }
    tree->checks = checks;
    Check check = {.kind = kind, .next = -1, .guard = guard};
    if (fill_check(tree, &check, payload) < 0) {
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
    if (kind < 0 || kind >= CHECK_COUNT || kind == CHECK_SAME || kind == CHECK_DISTINCT
        || kind == CHECK_SIZES) {
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
    int kind;
    PyObject *slots;
    Py_ssize_t guard;
    if (!PyArg_ParseTuple(args, "iO!n", &kind, &PyTuple_Type, &slots, &guard)) {
        return NULL;
    }
    Py_ssize_t const count = PyTuple_GET_SIZE(slots);
    int valid = count == 2 ? kind == CHECK_SAME || kind == CHECK_DISTINCT : count > 2 && kind == CHECK_DISTINCT;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(slots, i));
        valid &= slot >= 0 && slot < tree->saved_count;
    }
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "bad relation");
        return NULL;
    }
    int check = new_check(tree, kind, slots, guard);
    if (check < 0) {
        return NULL;
    }
    link_check(tree, &tree->first_relation, &tree->last_relation, check);
    Py_RETURN_NONE;
}

static PyObject *tree_add_sizes(PyObject *self, PyObject *args)
{
    GuardTree *tree = (GuardTree *)self;
    PyObject *payload;
    Py_ssize_t guard;
    if (!PyArg_ParseTuple(args, "O!n", &PyTuple_Type, &payload, &guard)) {
        return NULL;
    }
    int check = new_check(tree, CHECK_SIZES, payload, guard);
    if (check < 0) {
        return NULL;
    }
    tree->checks_sizes = 1;
    link_check(tree, &tree->first_relation, &tree->last_relation, check);
    Py_RETURN_NONE;
}

static PyObject *tree_check(PyObject *self, PyObject *args)
{
    PyObject *locals, *function;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &locals, &function)) {
        return NULL;
    }
    int holds = stator_guards_hold(self, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals), function, NULL);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(holds);
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
    if (PyErr_Occurred()) {
        Py_XDECREF(failure.found);
        return NULL;
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
    tree->first_relation = tree->last_relation = tree->memo_mismatch = -1;
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
    Memo *memo = tree->memo;
    int node_count = tree->node_count, check_count = tree->check_count;
    tree->nodes = NULL;
    tree->checks = NULL;
    tree->memo = NULL;
    tree->node_count = tree->check_count = tree->node_capacity = tree->check_capacity = 0;
    tree->first_relation = tree->last_relation = -1;
    for (int i = 0; i < node_count; i++) {
        Py_XDECREF(nodes[i].key);
    }
    for (int i = 0; i < check_count; i++) {
        check_release(&checks[i]);
    }
    guard_memo_release(memo);
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
    {"add_relation", tree_add_relation, METH_VARARGS, "add_relation(kind, slots, guard)"},
    {"add_sizes", tree_add_sizes, METH_VARARGS, "add_sizes((inputs, program), guard)"},
    {"check", tree_check, METH_VARARGS, "check(locals, function) -> do all guards hold?"},
    {"explain", tree_explain, METH_VARARGS, "explain(locals, function) -> None, (guard, found) or (guard,): unreadable"},
    {0},
};

static PyMemberDef tree_members[] = {
    {"node_count", T_INT, offsetof(GuardTree, node_count), READONLY, NULL},
    {"check_count", T_INT, offsetof(GuardTree, check_count), READONLY, NULL},
    {"memo_hits", T_ULONGLONG, offsetof(GuardTree, memo_hits), READONLY, "how often a memo stood for the whole tree"},
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
    {"ACCESS_TYPE", ACCESS_TYPE},
    {"ACCESS_CALL", ACCESS_CALL},
    {"CHECK_IS", CHECK_IS},
    {"CHECK_TYPE", CHECK_TYPE},
    {"CHECK_EQUALS", CHECK_EQUALS},
    {"CHECK_TENSOR", CHECK_TENSOR},
    {"CHECK_CONTENT", CHECK_CONTENT},
    {"CHECK_LENGTH", CHECK_LENGTH},
    {"CHECK_DICT_KEYS", CHECK_DICT_KEYS},
    {"CHECK_ABSENT", CHECK_ABSENT},
    {"CHECK_NOT_IN", CHECK_NOT_IN},
    {"CHECK_CODE", CHECK_CODE},
    {"CHECK_DISTINCT", CHECK_DISTINCT},
    {"CHECK_SAME", CHECK_SAME},
    {"CHECK_STATE", CHECK_STATE},
    {"CHECK_PREDICATE", CHECK_PREDICATE},
    {"CHECK_CALLBACKS", CHECK_CALLBACKS},
    {"CHECK_LOOKUPS", CHECK_LOOKUPS},
};

int stator_guards_add_to(PyObject *module)
{
    if (dict_states_ready() < 0 || guard_values_add_to(module) < 0 || guard_tensors_add_to(module) < 0
        || guard_sizes_add_to(module) < 0
        || PyModule_AddType(module, &GuardTreeType) < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}
