/* The data of a guard tree and the functions shared by its parts: guard_values.c (constants and containers),
 * guard_tensors.c, guard_sizes.c, guard_tree.c (evaluation), guard_build.c (construction, the Python type). */
#ifndef STATOR_GUARDS_H
#define STATOR_GUARDS_H

#include "cpython_compat.h"
#include "state.h"
#include "tensor_impl.h"

typedef enum {
    ACCESS_ROOT,          /* no value; parent of the others */
    ACCESS_LOCAL,         /* locals[index] */
    ACCESS_FUNCTION,      /* the function object */
    ACCESS_CLOSURE,       /* content of cell `index` of the parent, a function */
    ACCESS_GLOBALS,       /* globals dict of the parent, a function */
    ACCESS_BUILTINS,      /* dict of the builtins module */
    ACCESS_MODULE_DICT,   /* dict of sys.modules[key] */
    ACCESS_CONSTANT,      /* key itself; classes and functions of the program are held weakly */
    ACCESS_ATTR,          /* getattr(parent, key) */
    ACCESS_INSTANCE_DICT, /* parent.__dict__, past any __getattribute__ */
    ACCESS_DICT_ITEM,     /* parent[key], parent a dict; keys that are objects of the program are held weakly */
    ACCESS_SEQUENCE_ITEM, /* parent[index], parent a list or tuple (or a dict with an int key) */
    ACCESS_TYPE,          /* type(parent) */
    ACCESS_CALL,          /* key[0](*saved values): evaluated after everything else */
    ACCESS_COUNT,
} Access;

typedef enum {
    CHECK_IS,
    CHECK_TYPE,
    CHECK_EQUALS,
    CHECK_TENSOR,
    CHECK_CONTENT, /* nobody wrote to a tensor, and it lies where it lay */
    CHECK_LENGTH,
    CHECK_DICT_KEYS,
    CHECK_ABSENT,
    CHECK_NOT_IN,
    CHECK_CODE,
    CHECK_DISTINCT, /* no two of many saved values are one object */
    CHECK_SAME,     /* two saved values are one object */
    CHECK_STATE,
    CHECK_PREDICATE,
    CHECK_CALLBACKS,
    CHECK_LOOKUPS, /* results of attribute lookups in a class */
    CHECK_SIZES,   /* facts about sizes of saved tensors and about saved ints */
    CHECK_COUNT,
} CheckKind;

/* An object whose identity is compared: held weakly if possible. */
typedef struct {
    PyObject *reference; /* owned: a weak reference, or the object */
    int weak;
} Identity;

#define LARGEST_SIZE ((uint64_t)1 << 40) /* as in shapes/environment.py */

typedef struct {
    uint64_t keysets[2]; /* either is accepted */
    uint16_t dtype, device;
    int8_t requires_grad, is_subclass;
    int ndim;
    /* in one block, ndim each. -1: any number. Size -2: 1 to LARGEST_SIZE. Stride -2 - d: size times stride of dimension
       d */
    int64_t *relied_sizes, *relied_strides;
} TensorCheck;

enum { CONTENT_SAMPLES = 3 };

typedef struct {
    int64_t version;
    char *data; /* of the first element */
    /* words of the data, which show most writes that no version counts */
    int64_t offsets[CONTENT_SAMPLES];
    uint32_t words[CONTENT_SAMPLES];
    int samples;
} ContentCheck;

/* Operations of the stack machine of a size check. Operands are the next words of the program: of CONSTANT a number, of
 * INPUT an input, of SAME two inputs, of AT_LEAST and AT_MOST an input and a number. */
typedef enum {
    SIZE_CONSTANT,
    SIZE_INPUT,
    SIZE_ADD,
    SIZE_MULTIPLY,
    SIZE_QUOTIENT, /* rounds towards minus infinity, as Python does */
    SIZE_REMAINDER,
    SIZE_LEAST,
    SIZE_LARGEST,
    SIZE_IS_ZERO,
    SIZE_IS_NOT_ZERO,
    SIZE_IS_NOT_NEGATIVE,
    SIZE_AND,
    SIZE_OR,
    SIZE_RELY, /* the check fails if the number is zero */
    SIZE_SAME, /* the check fails if the inputs differ: the most frequent facts need no stack */
    SIZE_AT_LEAST,
    SIZE_AT_MOST,
    SIZE_OP_COUNT,
} SizeOp;

enum { SIZE_MOST_INPUTS = 128, SIZE_MOST_STACK = 64 };

typedef struct {
    int slot; /* of a saved tensor or int */
    int dim;  /* whose size; -2 - d: dimension d, whose stride; -1: an int */
} SizeInput;

typedef struct {
    SizeInput *inputs;
    int64_t *program;
    int input_count, length;
} SizeCheck;

typedef struct {
    CheckKind kind;
    int next; /* of the same node; -1: last */
    Py_ssize_t guard;
    Identity identity;  /* IS, TYPE, CODE */
    /* EQUALS, DICT_KEYS, ABSENT, NOT_IN, PREDICATE, LOOKUPS; SAME, DISTINCT: tuple of slots. Classes and functions in the
     * tuples of DICT_KEYS and LOOKUPS are held weakly: such a tuple has weak references in their places */
    PyObject *expected;
    /* LENGTH: length; ABSENT: 0 unknown, 1 the type has it, 2 the type lacks it; LOOKUPS: version of the class when they
     * last held, 0: never */
    Py_ssize_t number;
    TensorCheck *tensor;
    ContentCheck content;
    SizeCheck *sizes;
    StateSnapshot *state;
} Check;

typedef struct {
    Access access;
    int first_child, last_child, next_sibling, first_check, last_check;
    int unstable; /* number of memos that failed at this node's value */
    int saved; /* slot that keeps the value for relations and calls; -1: none */
    Py_ssize_t index;
    Py_ssize_t guard; /* ordinal of the first guard that needed this node */
    PyObject *key; /* owned; a weak reference to it where `weak` */
    int weak;
} Node;

/* The reason of a failed evaluation; filled only on request. */
typedef struct {
    Py_ssize_t guard; /* ordinal of the guard in the list that the tree was built from; -1: unknown */
    PyObject *found;  /* owned: the source's present content; NULL: it could not be read */
} Failure;

typedef struct Memo Memo;

typedef struct {
    PyObject_HEAD
    Node *nodes;
    Check *checks;
    int node_count, check_count, node_capacity, check_capacity, saved_count;
    int first_relation, last_relation; /* checks between saved values */
    int checks_sizes;                  /* whether one of them is CHECK_SIZES */
    PyObject *invalidated;             /* called when an object held weakly dies, or NULL */
    PyObject *weakrefs;
    Memo *memo;        /* of the last evaluation that succeeded, or NULL (guard_memo.c) */
    int memo_mismatch; /* the node at which the memo failed; -1: none */
    int successes;
    unsigned long long memo_hits;
} GuardTree;

extern PyTypeObject GuardTreeType;
extern PyTypeObject *guard_own_callback_type; /* of the callbacks that trees get as `invalidated`, or NULL */

/* One evaluation. */
typedef struct {
    GuardTree *tree;
    PyObject *const *locals;
    Py_ssize_t local_count;
    PyObject *function;
    PyObject **saved;
    Failure *failure;
} Run;

/* ---- evaluation (guard_tree.c) ---- */

/* Checks of one node, then its children. */
int guard_node_holds(Run *run, Node const *node, PyObject *value);
int guard_check_holds(Check *check, PyObject *value);
int guard_check_of_run_holds(Run *run, int check, PyObject *value);
/* The node `child` below `parent`: it can be read, and all checks there and below hold. */
int guard_child_holds(Run *run, int child, PyObject *parent);
int guard_relations_hold(Run *run);
/* `block` with room for one more than `count` items; NULL with an exception, and the old block is unchanged. */
static inline void *guard_grown(void *block, int *capacity, int count, size_t size)
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

/* ---- identities ---- */

int guard_can_be_weak(PyObject *object);
int guard_identity_set(Identity *identity, PyObject *object, PyObject *callback);

static inline int identity_is(Identity const *identity, PyObject *object)
{
    return object == (identity->weak ? weakref_peek(identity->reference) : identity->reference);
}

/* Borrowed; NULL after the object's death. */
static inline PyObject *guard_node_key(Node const *node)
{
    return node->weak ? weakref_peek(node->key) : node->key;
}

/* An item of a tuple made by guard_held_weakly; borrowed, NULL after its death. */
static inline PyObject *guard_held(PyObject *item)
{
    return PyWeakref_CheckRefExact(item) ? weakref_peek(item) : item;
}

/* A new tuple with weak references in the place of classes and functions, or NULL with an exception. */
PyObject *guard_held_weakly(PyObject *tuple);

/* ---- values (guard_values.c); none of these runs user code, all clear their exceptions unless said otherwise ---- */

/* Same exact type and value. Floats compare by their bits: -0.0 is not 0.0, and a NaN is itself. */
int guard_constant_equal(PyObject *found, PyObject *expected);
/* By ==, for types whose == is written in C; an exception counts as unequal. */
int guard_rich_equal(PyObject *found, PyObject *expected);
/* len() past any override; -1: no known length. */
Py_ssize_t guard_length(PyObject *value);
int guard_keys_are(PyObject *value, PyObject *expected);
int guard_not_in(PyObject *value, PyObject *key);
int guard_attribute_is_absent(Check *check, PyObject *value);
/* CHECK_LOOKUPS of a class; fast as long as neither the class nor a base was changed. */
int guard_lookups_hold(Check *check, PyObject *cls);
int guard_lookups_are_valid(PyObject *payload);
/* New references, or NULL (perhaps with an exception) if there is no such item. */
PyObject *guard_dict_item(PyObject *value, PyObject *key);
PyObject *guard_sequence_item(PyObject *value, PyObject *key, Py_ssize_t index);
PyObject *guard_instance_dict(PyObject *value);
int guard_is_called_as_usual(PyObject *value);
PyObject *guard_closure_content(PyObject *value, Py_ssize_t index);
PyObject *guard_module_dict(PyObject *name);
PyObject *guard_builtins_dict(void);
/* Borrowed: the dict behind an exact mappingproxy; anything else as it is. */
PyObject *guard_behind_proxy(PyObject *value);
int guard_values_add_to(PyObject *module);

/* ---- tensors (guard_tensors.c) ---- */

TensorCheck *guard_tensor_check_make(PyObject *payload);
void guard_tensor_check_free(TensorCheck *check);
int guard_tensor_holds(TensorCheck const *check, PyObject *tensor);
/* payload: (version, address of the data, ((byte offset, word), ...)) */
int guard_content_check_set(ContentCheck *check, PyObject *payload);
int guard_content_holds(ContentCheck const *check, PyObject *tensor);
/* Whether the object is a tensor with this dimension, whose size (or for -2 - dim, whose stride) is stored. Runs no user
 * code. */
int guard_tensor_size(PyObject *tensor, int dim, int64_t *size);
int guard_tensors_add_to(PyObject *module);

/* ---- sizes (guard_sizes.c) ---- */

/* payload: ((slot, dim as in SizeInput), ...), (words of the program...) */
SizeCheck *guard_size_check_make(PyObject *payload, int saved_count);
void guard_size_check_free(SizeCheck *check);
int guard_sizes_hold(SizeCheck const *check, PyObject *const *saved);
/* A new tuple of the numbers that the check reads; NULL (perhaps with an exception) if they cannot be read. */
PyObject *guard_sizes_found(SizeCheck const *check, PyObject *const *saved);
PyObject *guard_sizes_tuple(int64_t const *numbers, int count);
int guard_sizes_add_to(PyObject *module);

#endif
