/* The memo of a guard tree. Walking a tree costs thousands of lookups in dicts that have not changed since the last
 * call. So a successful evaluation is recorded as a list of steps, each of which verifies that one thing is unchanged: a
 * dict's state, an instance's dict, a type, a tensor's metadata. If all steps hold, everything behind them is unchanged,
 * too.
 *
 * Which objects may be touched: a value is *held* if the verified values before it keep it alive and determine it (an
 * item of an unchanged dict, an item of a held tuple). Of any other value (an argument, the content of a cell) only the
 * address is known, where another object may be by now: nothing is assumed about it that is not verified again.
 *
 * Checks that may run user code, and values that differ in every call, come last and are evaluated without the memo.
 * Before the first of them runs, the memo owns every value that they need, so that user code cannot free it. */
#include "guard_memo.h"

#include "dict_states.h"

#define WARM_UP 2        /* successes before the first memo is written */
#define MAX_UNSTABLE 3   /* changes of a node's value before it is evaluated anew in each call */

typedef enum {
    STEP_LOCAL,     /* locals[number] is `object` */
    STEP_FUNCTION,  /* the function is `object` */
    STEP_GLOBALS,   /* the globals of function `object` are `expected` */
    STEP_CELL,      /* cell `number` of function `object` holds `expected` */
    STEP_PLACE,     /* at address `object` lies the instance dict `expected` */
    STEP_TYPE,      /* the type of `object` is `expected` */
    STEP_DICT,      /* the state `object` of a dict holds */
    STEP_CLASS,     /* the class `object` has version `number` */
    STEP_LIST_ITEM, /* item `number` of list `object` is `expected` */
    STEP_ITEM,      /* the item of dict `object` that node's key names is `expected` */
    STEP_ALIVE,     /* the weak reference `object` leads to `expected` */
    STEP_CHECK,     /* check `number` holds for `object`, without user code */
} StepKind;

typedef struct {
    StepKind kind;
    int node; /* the node whose value has changed if the step fails */
    void *object, *expected;
    uint64_t number;
} Step;

/* A part of the tree that is evaluated without the memo. */
typedef struct {
    int check;       /* of `value`; or -1: */
    int child;       /* the node below `value` */
    PyObject *value; /* borrowed */
} Late;

struct Memo {
    Step *steps;
    Late *late;
    PyObject **saved; /* borrowed values of the slots; NULL: found by the late part */
    int step_count, step_capacity, late_count, late_capacity;
    int relations; /* whether relations are evaluated */
    int users;     /* running evaluations, and the tree */
};

/* ---- evaluation ---- */

static int step_holds(GuardTree *tree, Run const *run, Step const *step)
{
    switch (step->kind) {
    case STEP_LOCAL:
        return (Py_ssize_t)step->number < run->local_count && run->locals[step->number] == step->object;
    case STEP_FUNCTION:
        return run->function == step->object;
    case STEP_GLOBALS:
        return PyFunction_GET_GLOBALS(step->object) == step->expected;
    case STEP_CELL: {
        PyObject *closure = PyFunction_GET_CLOSURE(step->object);
        return closure && (Py_ssize_t)step->number < PyTuple_GET_SIZE(closure)
            && PyCell_GET(PyTuple_GET_ITEM(closure, step->number)) == step->expected;
    }
    case STEP_PLACE:
        return *(void **)step->object == step->expected;
    case STEP_TYPE:
        return (void *)Py_TYPE((PyObject *)step->object) == step->expected;
    case STEP_DICT:
        return dict_state_holds(step->object);
    case STEP_CLASS:
        return type_version(step->object) == step->number;
    case STEP_LIST_ITEM:
        return (Py_ssize_t)step->number < PyList_GET_SIZE(step->object)
            && PyList_GET_ITEM(step->object, step->number) == step->expected;
    case STEP_ITEM: {
        PyObject *key = tree->nodes[step->node].key; /* a string: looking it up raises nothing */
        return PyDict_GetItemWithError(step->object, key) == step->expected;
    }
    case STEP_ALIVE:
        return (void *)weakref_peek(step->object) == step->expected;
    case STEP_CHECK:
        return guard_check_holds(&tree->checks[step->number], step->object);
    }
    return 0;
}

/* Evaluate the late part; the memo and all its values stay alive during this call. */
static int late_holds(Memo *memo, GuardTree *tree, Run *run)
{
    int holds = 1;
    for (int i = 0; i < memo->late_count; i++) {
        Py_INCREF(memo->late[i].value);
    }
    for (int i = 0; memo->relations && i < tree->saved_count; i++) {
        run->saved[i] = Py_XNewRef(memo->saved[i]);
    }
    for (int i = 0; holds && i < memo->late_count; i++) {
        Late const *late = &memo->late[i];
        holds = late->check >= 0 ? guard_check_of_run_holds(run, late->check, late->value)
                                 : guard_child_holds(run, late->child, late->value);
    }
    holds = holds && (!memo->relations || guard_relations_hold(run));
    for (int i = 0; i < memo->late_count; i++) {
        Py_DECREF(memo->late[i].value);
    }
    return holds;
}

void guard_memo_release(Memo *memo)
{
    if (!memo || --memo->users > 0) {
        return;
    }
    for (int i = 0; i < memo->step_count; i++) {
        if (memo->steps[i].kind == STEP_DICT) {
            dict_state_release(memo->steps[i].object);
        }
    }
    PyMem_Free(memo->steps);
    PyMem_Free(memo->late);
    PyMem_Free(memo->saved);
    PyMem_Free(memo);
}

/* -1: no memo, or a step failed: evaluate the tree. Otherwise whether the guards hold. */
static int memo_holds(GuardTree *tree, Run *run)
{
    Memo *memo = tree->memo;
    if (!memo || run->failure) {
        return -1;
    }
    for (Step const *step = memo->steps, *end = step + memo->step_count; step < end; step++) {
        if (!step_holds(tree, run, step)) {
            tree->memo_mismatch = step->node;
            return step->kind == STEP_CHECK ? 0 : -1; /* the value is unchanged, so the guard itself fails */
        }
    }
    memo->users++;
    int holds = late_holds(memo, tree, run);
    guard_memo_release(memo);
    tree->memo_hits += holds;
    return holds;
}

/* ---- writing it down ---- */

typedef struct {
    GuardTree *tree;
    Run *run;
    Memo *memo;
    int failed; /* out of memory */
} Writer;

static int add_step(Writer *writer, StepKind kind, int node, void *object, void *expected, uint64_t number)
{
    Memo *memo = writer->memo;
    Step *steps = guard_grown(memo->steps, &memo->step_capacity, memo->step_count, sizeof *steps);
    if (!steps) {
        writer->failed = 1;
        return 0;
    }
    memo->steps = steps;
    steps[memo->step_count++] = (Step){kind, node, object, expected, number};
    return 1;
}

static void add_late(Writer *writer, int check, int child, PyObject *value)
{
    Memo *memo = writer->memo;
    Late *late = guard_grown(memo->late, &memo->late_capacity, memo->late_count, sizeof *late);
    if (!late) {
        writer->failed = 1;
        return;
    }
    memo->late = late;
    late[memo->late_count++] = (Late){check, child, value};
}

static int is_unstable(Writer const *writer, int node)
{
    return writer->tree->nodes[node].unstable >= MAX_UNSTABLE;
}

/* 1: a step verifies the content of `dict`, which is held, or was just seen to be the parent's. */
static int settle_dict(Writer *writer, int node, PyObject *dict)
{
    DictState *state = writer->tree->nodes[node].unstable ? NULL : dict_state_take(dict);
    if (!state) {
        return 0;
    }
    if (!add_step(writer, STEP_DICT, node, state, NULL, 0)) {
        dict_state_release(state);
        return 0;
    }
    return 1;
}

static void settle_type(Writer *writer, int node, PyObject *value)
{
    add_step(writer, STEP_TYPE, node, value, Py_TYPE(value), 0);
}

/* 1: no attribute that lookup in the class `type` finds has changed while the step holds. */
static int settle_class(Writer *writer, int node, PyTypeObject *type)
{
    unsigned int const version = type_version(type);
    return version && add_step(writer, STEP_CLASS, node, type, NULL, version);
}

/* The facts about a node's value that a step has verified. */
typedef struct {
    int held;    /* it is this object, and it stays alive */
    int content; /* a dict: and it is unchanged */
} Known;

static int keeps_own_order(PyObject *value)
{
    return PyODict_Check(value) && PyDict_GET_SIZE(value) > 1;
}

/* Whether the check can be left out as long as the value and its type are unchanged. */
static int follows(CheckKind kind, PyObject *value, Known known)
{
    switch (kind) {
    case CHECK_IS:
    case CHECK_EQUALS:
        return known.held;
    case CHECK_LENGTH:
        return known.content || (known.held && (PyTuple_Check(value) || PyUnicode_Check(value)));
    case CHECK_DICT_KEYS:
        return known.content && !keeps_own_order(value);
    case CHECK_NOT_IN:
        return known.content;
    default:
        return 0;
    }
}

/* Whether the check runs no user code for any value. */
static int is_plain(CheckKind kind, Check const *check)
{
    switch (kind) {
    case CHECK_IS:
    case CHECK_TYPE:
    case CHECK_EQUALS:
    case CHECK_TENSOR:
    case CHECK_CONTENT:
    case CHECK_LENGTH:
    case CHECK_CODE:
    case CHECK_LOOKUPS:
        return 1;
    case CHECK_STATE:
        return !check->expected;
    default:
        return 0;
    }
}

/* Steps for CHECK_ABSENT: the instance lacks the entry, and the type is unchanged. 0: no steps can verify that. */
static int settle_absence(Writer *writer, int node, PyObject *value, Known known)
{
    if (!known.held || PyType_Check(value)) {
        return 0;
    }
    PyObject **place = _PyObject_GetDictPtr(value);
    if (place && (!*place || writer->tree->nodes[node].unstable)) {
        return 0;
    }
    settle_type(writer, node, value);
    if (place) {
        add_step(writer, STEP_PLACE, node, place, *place, 0);
        if (!settle_dict(writer, node, *place)) {
            return 0;
        }
    }
    return settle_class(writer, node, Py_TYPE(value));
}

static void write_check(Writer *writer, int node, int at, PyObject *value, Known known)
{
    Check const *check = &writer->tree->checks[at];
    if (check->kind == CHECK_TYPE && known.held) {
        if (PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) || PyModule_Check(value)) {
            settle_type(writer, node, value); /* other objects cannot change their class */
        }
    } else if (follows(check->kind, value, known)
               || (check->kind == CHECK_ABSENT && settle_absence(writer, node, value, known))
               || (check->kind == CHECK_LOOKUPS && known.held && settle_class(writer, node, (PyTypeObject *)value))) {
        return;
    } else if (is_plain(check->kind, check)) {
        add_step(writer, STEP_CHECK, node, value, NULL, at);
    } else {
        add_late(writer, at, -1, value);
    }
}

static void write_node(Writer *writer, int node, PyObject *value, Known known);

static void write_late(Writer *writer, int node, PyObject *parent)
{
    add_late(writer, -1, node, parent);
}

/* The dict of an instance: reached by its address, which depends on the type. */
static void write_instance_dict(Writer *writer, int node, PyObject *parent, Known known)
{
    if (PyType_Check(parent)) {
        PyObject *dict = known.held ? guard_instance_dict(parent) : NULL;
        if (dict && settle_dict(writer, node, dict)) {
            write_node(writer, node, dict, (Known){1, 1});
        } else {
            write_late(writer, node, parent);
        }
        Py_XDECREF(dict);
        return;
    }
    PyObject **place = _PyObject_GetDictPtr(parent);
    if (!place || !*place) {
        write_late(writer, node, parent);
        return;
    }
    PyObject *dict = *place;
    if (!known.held) {
        settle_type(writer, node, parent);
    }
    add_step(writer, STEP_PLACE, node, place, dict, 0);
    int content = settle_dict(writer, node, dict);
    write_node(writer, node, dict, (Known){content, content});
}

/* An item of the parent, a dict: certain if the dict is unchanged, otherwise looked up again. */
static void write_dict_item(Writer *writer, int node, PyObject *parent, Known known)
{
    Node const *at = &writer->tree->nodes[node];
    PyObject *dict = guard_behind_proxy(parent);
    if (!PyDict_Check(dict) || (dict != parent && !known.held)) {
        write_late(writer, node, parent);
        return;
    }
    int content = known.content || (dict != parent && settle_dict(writer, node, dict));
    PyObject *key = Py_XNewRef(guard_node_key(at));
    PyObject *value = key ? PyDict_GetItemWithError(dict, key) : NULL;
    Py_XDECREF(key);
    if (!value || (!content && !PyUnicode_CheckExact(at->key))) { /* the == of other keys may run user code */
        PyErr_Clear();
        write_late(writer, node, parent);
        return;
    }
    if (!content) {
        add_step(writer, STEP_ITEM, node, dict, value, 0);
    }
    int inside = content && PyDict_Check(value) && settle_dict(writer, node, value);
    write_node(writer, node, value, (Known){content, inside});
}

static void write_sequence_item(Writer *writer, int node, PyObject *parent, Known known)
{
    Node const *at = &writer->tree->nodes[node];
    if (PyDict_Check(parent) && known.content) {
        write_dict_item(writer, node, parent, known);
    } else if (PyTuple_Check(parent) && known.held) {
        Py_ssize_t index = at->index < 0 ? at->index + PyTuple_GET_SIZE(parent) : at->index;
        write_node(writer, node, PyTuple_GET_ITEM(parent, index), (Known){1, 0});
    } else if (PyList_CheckExact(parent) && known.held && at->index >= 0) {
        PyObject *value = PyList_GET_ITEM(parent, at->index);
        add_step(writer, STEP_LIST_ITEM, node, parent, value, at->index);
        write_node(writer, node, value, (Known){0, 0});
    } else {
        write_late(writer, node, parent);
    }
}

static void write_closure_content(Writer *writer, int node, PyObject *parent)
{
    Py_ssize_t index = writer->tree->nodes[node].index;
    PyObject *value = guard_closure_content(parent, index);
    if (!value) {
        PyErr_Clear();
        write_late(writer, node, parent);
        return;
    }
    add_step(writer, STEP_CELL, node, parent, value, index);
    write_node(writer, node, value, (Known){0, 0});
    Py_DECREF(value);
}

static void write_module_dict(Writer *writer, int node, PyObject *parent)
{
    PyObject *modules = PyImport_GetModuleDict(), *key = writer->tree->nodes[node].key;
    PyObject *module = PyDict_CheckExact(modules) ? PyDict_GetItemWithError(modules, key) : NULL;
    PyObject **place = module && PyModule_Check(module) ? _PyObject_GetDictPtr(module) : NULL;
    if (!place || !*place || !settle_dict(writer, node, modules)) {
        PyErr_Clear();
        write_late(writer, node, parent);
        return;
    }
    settle_type(writer, node, module);
    add_step(writer, STEP_PLACE, node, place, *place, 0);
    int content = settle_dict(writer, node, *place);
    write_node(writer, node, *place, (Known){content, content});
}

static int has_instance_dict_below(GuardTree const *tree, int node)
{
    for (int at = tree->nodes[node].first_child; at >= 0; at = tree->nodes[at].next_sibling) {
        if (tree->nodes[at].access == ACCESS_INSTANCE_DICT) {
            return 1;
        }
    }
    return 0;
}

/* An argument: worth a memo if it is an object with attributes, and the object of the last call. */
static void write_local(Writer *writer, int node)
{
    Py_ssize_t index = writer->tree->nodes[node].index;
    PyObject *value = writer->run->locals[index];
    if (!has_instance_dict_below(writer->tree, node)) {
        write_late(writer, node, Py_None);
        return;
    }
    add_step(writer, STEP_LOCAL, node, value, NULL, index);
    write_node(writer, node, value, (Known){0, 0});
}

static void write_constant(Writer *writer, int node, PyObject *parent)
{
    Node const *at = &writer->tree->nodes[node];
    PyObject *value = guard_node_key(at);
    if (!value) {
        write_late(writer, node, parent);
        return;
    }
    if (at->weak) {
        add_step(writer, STEP_ALIVE, node, at->key, value, 0);
    }
    write_node(writer, node, value, (Known){1, 0});
}

static void write_child(Writer *writer, int node, PyObject *parent, Known known)
{
    if (is_unstable(writer, node)) {
        write_late(writer, node, parent);
        return;
    }
    switch (writer->tree->nodes[node].access) {
    case ACCESS_LOCAL:
        write_local(writer, node);
        break;
    case ACCESS_FUNCTION:
        add_step(writer, STEP_FUNCTION, node, writer->run->function, NULL, 0);
        write_node(writer, node, writer->run->function, (Known){0, 0});
        break;
    case ACCESS_CLOSURE:
        write_closure_content(writer, node, parent);
        break;
    case ACCESS_GLOBALS: {
        PyObject *globals = PyFunction_GET_GLOBALS(parent);
        add_step(writer, STEP_GLOBALS, node, parent, globals, 0);
        int content = settle_dict(writer, node, globals);
        write_node(writer, node, globals, (Known){content, content});
        break;
    }
    case ACCESS_BUILTINS: {
        PyObject *builtins = guard_builtins_dict();
        write_node(writer, node, builtins, (Known){1, settle_dict(writer, node, builtins)});
        Py_DECREF(builtins);
        break;
    }
    case ACCESS_MODULE_DICT:
        write_module_dict(writer, node, parent);
        break;
    case ACCESS_CONSTANT:
        write_constant(writer, node, parent);
        break;
    case ACCESS_INSTANCE_DICT:
        write_instance_dict(writer, node, parent, known);
        break;
    case ACCESS_DICT_ITEM:
        write_dict_item(writer, node, parent, known);
        break;
    case ACCESS_SEQUENCE_ITEM:
        write_sequence_item(writer, node, parent, known);
        break;
    default:
        write_late(writer, node, parent);
    }
}

static void write_node(Writer *writer, int node, PyObject *value, Known known)
{
    GuardTree const *tree = writer->tree;
    for (int at = tree->nodes[node].first_check; at >= 0 && !writer->failed; at = tree->checks[at].next) {
        write_check(writer, node, at, value, known);
    }
    if (tree->nodes[node].saved >= 0) {
        writer->memo->saved[tree->nodes[node].saved] = value;
    }
    for (int at = tree->nodes[node].first_child; at >= 0 && !writer->failed; at = tree->nodes[at].next_sibling) {
        write_child(writer, at, value, known);
    }
}

/* Relations between unchanged values still hold, except those of sizes: a tensor may be resized. Calls take saved values. */
static int needs_relations(GuardTree const *tree, Memo const *memo)
{
    if (tree->checks_sizes) {
        return 1;
    }
    for (int i = 0; i < tree->saved_count; i++) {
        if (!memo->saved[i]) {
            return 1;
        }
    }
    for (int at = tree->nodes[0].first_child; at >= 0; at = tree->nodes[at].next_sibling) {
        if (tree->nodes[at].access == ACCESS_CALL) {
            return 1;
        }
    }
    return 0;
}

/* Called after an evaluation in which all guards held. Never leaves an exception. */
static void after_success(GuardTree *tree, Run *run)
{
    if (tree->memo && tree->memo_mismatch >= 0 && tree->nodes[tree->memo_mismatch].unstable < MAX_UNSTABLE) {
        tree->nodes[tree->memo_mismatch].unstable++;
    }
    tree->memo_mismatch = -1;
    if (++tree->successes < WARM_UP) {
        return;
    }
    Memo *memo = PyMem_Calloc(1, sizeof *memo);
    PyObject **saved = PyMem_Calloc(tree->saved_count + 1, sizeof *saved);
    if (!memo || !saved) {
        PyMem_Free(memo);
        PyMem_Free(saved);
        return;
    }
    memo->saved = saved;
    memo->users = 1;
    Writer writer = {tree, run, memo, 0};
    write_node(&writer, 0, Py_None, (Known){1, 0});
    memo->relations = needs_relations(tree, memo);
    PyErr_Clear();
    Memo *old = tree->memo;
    tree->memo = writer.failed ? NULL : memo;
    guard_memo_release(writer.failed ? memo : NULL);
    guard_memo_release(old);
}

/* ---- a whole evaluation ---- */

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
    int holds = memo_holds(tree, &run);
    if (holds < 0) {
        holds = guard_node_holds(&run, &tree->nodes[0], Py_None) && guard_relations_hold(&run);
        if (holds) {
            after_success(tree, &run);
        }
    }
    for (int i = 0; i < tree->saved_count; i++) {
        Py_XDECREF(saved[i]);
    }
    if (saved != on_stack) {
        PyMem_Free(saved);
    }
    return holds;
}
