/* Callables of programs whose sizes change between calls: SizedCall finds the code bound to the sizes of a call, and
 * Allocation makes fresh tensors of one layout. */
#include "sized_call.h"

#include "torch_c.h"

#include <stddef.h>
#include <structmember.h>

#define INLINE_SIZES 32

/* ---- SizedCall --------------------------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t position; /* of an argument */
    Py_ssize_t dim;      /* its size in this dimension; -1: the argument is an int */
} Place;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *weak_references;
    PyObject *known;   /* mapping: tuple of sizes -> callable */
    PyObject *last;    /* the callable for `sizes`, or NULL */
    int64_t *sizes;    /* of the last call */
    Place *places;
    Py_ssize_t count, arguments; /* of sizes; of arguments that a call has at least */
    char boxed;        /* arguments come in one list */
} SizedCall;

static int read_size(Place const *place, PyObject *argument, int64_t *size)
{
    if (place->dim < 0) {
        *size = PyLong_AsLongLong(argument);
        return *size == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (!stator_is_tensor(argument)) {
        PyErr_Format(PyExc_TypeError, "argument %zd must be a tensor, not %.100s", place->position,
                     Py_TYPE(argument)->tp_name);
        return -1;
    }
    char const *impl = stator_layout.valid ? stator_tensor_impl(&stator_layout, argument) : NULL;
    if (impl && place->dim < stator_tensor_ndim(&stator_layout, impl)) {
        *size = stator_tensor_sizes(&stator_layout, impl)[place->dim];
        return 0;
    }
    PyObject *number = PyObject_CallMethod(argument, "size", "n", place->dim);
    *size = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return *size == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_sizes(SizedCall const *self, PyObject *const *args, int64_t *sizes)
{
    for (Py_ssize_t i = 0; i < self->count; ++i) {
        if (read_size(&self->places[i], args[self->places[i].position], &sizes[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The callable for these sizes, which becomes the last one. A new reference; NULL with an exception. */
static PyObject *find(SizedCall *self, int64_t const *sizes)
{
    PyObject *key = PyTuple_New(self->count);
    for (Py_ssize_t i = 0; key && i < self->count; ++i) {
        PyObject *number = PyLong_FromLongLong(sizes[i]);
        if (!number) {
            Py_CLEAR(key);
            break;
        }
        PyTuple_SET_ITEM(key, i, number);
    }
    PyObject *found = key ? PyObject_GetItem(self->known, key) : NULL;
    Py_XDECREF(key);
    if (found) {
        memcpy(self->sizes, sizes, sizeof *sizes * (size_t)self->count);
        Py_XSETREF(self->last, Py_NewRef(found));
    }
    return found;
}

static PyObject *SizedCall_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    SizedCall *self = (SizedCall *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    PyObject *const *values = args;
    int64_t inline_sizes[INLINE_SIZES], *sizes = inline_sizes;
    if (self->boxed && given == 1 && PyList_CheckExact(args[0])) {
        values = ((PyListObject *)args[0])->ob_item;
        given = PyList_GET_SIZE(args[0]);
    } else if (self->boxed) {
        given = -1;
    }
    if (given < self->arguments || (kwnames && PyTuple_GET_SIZE(kwnames))) {
        PyErr_Format(PyExc_TypeError, "a compiled program takes at least %zd arguments%s", self->arguments,
                     self->boxed ? " in one list" : "");
        return NULL;
    }
    if (self->count > INLINE_SIZES && !(sizes = PyMem_Malloc(sizeof *sizes * (size_t)self->count))) {
        return PyErr_NoMemory();
    }
    PyObject *run = NULL;
    if (read_sizes(self, values, sizes) == 0) {
        int again = self->last && !memcmp(sizes, self->sizes, sizeof *sizes * (size_t)self->count);
        run = again ? Py_NewRef(self->last) : find(self, sizes);
    }
    if (sizes != inline_sizes) {
        PyMem_Free(sizes);
    }
    PyObject *result = run ? PyObject_Vectorcall(run, args, nargsf, NULL) : NULL;
    Py_XDECREF(run);
    return result;
}

static int add_places(SizedCall *self, PyObject *places)
{
    self->count = PyTuple_GET_SIZE(places);
    self->places = PyMem_Calloc((size_t)self->count + 1, sizeof *self->places);
    self->sizes = PyMem_Calloc((size_t)self->count + 1, sizeof *self->sizes);
    if (!self->places || !self->sizes) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->count; ++i) {
        Place *place = &self->places[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(places, i), "nn", &place->position, &place->dim)) {
            return -1;
        }
        if (place->position < 0) {
            PyErr_SetString(PyExc_ValueError, "a size is read from an argument at a position of at least 0");
            return -1;
        }
        self->arguments = self->arguments > place->position ? self->arguments : place->position + 1;
    }
    return 0;
}

static PyObject *SizedCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"known", "places", "boxed", NULL};
    PyObject *known, *places;
    int boxed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!p", names, &known, &PyTuple_Type, &places, &boxed)) {
        return NULL;
    }
    SizedCall *self = (SizedCall *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->vectorcall = SizedCall_call;
    self->known = Py_NewRef(known);
    self->boxed = (char)boxed;
    if (add_places(self, places) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int SizedCall_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((SizedCall *)object)->known);
    Py_VISIT(((SizedCall *)object)->last);
    return 0;
}

static int SizedCall_clear(PyObject *object)
{
    Py_CLEAR(((SizedCall *)object)->known);
    Py_CLEAR(((SizedCall *)object)->last);
    return 0;
}

static void SizedCall_dealloc(PyObject *object)
{
    SizedCall *self = (SizedCall *)object;
    PyObject_GC_UnTrack(object);
    if (self->weak_references) {
        PyObject_ClearWeakRefs(object);
    }
    SizedCall_clear(object);
    PyMem_Free(self->places);
    PyMem_Free(self->sizes);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef SizedCall_members[] = {
    {"known", T_OBJECT_EX, offsetof(SizedCall, known), READONLY, PyDoc_STR("the code for each combination of sizes")},
    {"boxed", T_BOOL, offsetof(SizedCall, boxed), READONLY, PyDoc_STR("whether arguments come in one list")},
    {NULL},
};

PyTypeObject StatorSizedCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._launch.SizedCall",
    .tp_doc = PyDoc_STR("SizedCall(known, places, boxed): read the sizes of the arguments at `places`, and call known[sizes] with "
                        "the arguments."),
    .tp_basicsize = sizeof(SizedCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(SizedCall, vectorcall),
    .tp_weaklistoffset = offsetof(SizedCall, weak_references),
    .tp_call = PyVectorcall_Call,
    .tp_members = SizedCall_members,
    .tp_new = SizedCall_new,
    .tp_traverse = SizedCall_traverse,
    .tp_clear = SizedCall_clear,
    .tp_dealloc = SizedCall_dealloc,
};

/* ---- Allocation -------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *make;      /* called with size and stride */
    PyObject *size, *stride;
    PyObject *prepare;   /* called with size and stride ahead of the second allocation: a template, or None; then NULL */
    PyObject *empty_like;
    PyObject *template;  /* a tensor of the layout, or NULL */
    char used;
    char direct;         /* by stator_torch_c */
} Allocation;

/* A fresh tensor of the template's layout and device; NULL, perhaps without an exception. */
static PyObject *allocate(PyObject *template)
{
    char const *impl = stator_tensor_impl(&stator_layout, template);
    uint16_t device = impl ? stator_tensor_device(&stator_layout, impl) : 0; /* type, index */
    void *tensor = NULL;
    if (!impl || stator_torch_c.empty_strided(stator_tensor_ndim(&stator_layout, impl), stator_tensor_sizes(&stator_layout, impl),
                                       stator_tensor_strides(&stator_layout, impl),
                                       stator_tensor_dtype(&stator_layout, impl), device & 0xff, (int8_t)(device >> 8),
                                       &tensor)) {
        return NULL;
    }
    return stator_wrap_tensor(tensor);
}

static int are_alike(PyObject *one, PyObject *other)
{
    char const *impl = stator_is_tensor(one) ? stator_tensor_impl(&stator_layout, one) : NULL;
    char const *like = stator_is_tensor(other) ? stator_tensor_impl(&stator_layout, other) : NULL;
    if (!impl || !like || Py_TYPE(one) != Py_TYPE(other)) {
        return 0;
    }
    int64_t ndim = stator_tensor_ndim(&stator_layout, impl);
    size_t size = (size_t)ndim * sizeof(int64_t);
    return ndim == stator_tensor_ndim(&stator_layout, like)
           && !memcmp(stator_tensor_sizes(&stator_layout, impl), stator_tensor_sizes(&stator_layout, like), size)
           && !memcmp(stator_tensor_strides(&stator_layout, impl), stator_tensor_strides(&stator_layout, like), size)
           && stator_tensor_dtype(&stator_layout, impl) == stator_tensor_dtype(&stator_layout, like)
           && stator_tensor_device(&stator_layout, impl) == stator_tensor_device(&stator_layout, like)
           && stator_tensor_keyset(&stator_layout, impl) == stator_tensor_keyset(&stator_layout, like)
           && stator_tensor_storage_offset(&stator_layout, impl) == stator_tensor_storage_offset(&stator_layout, like);
}

/* Whether `allocate` makes tensors like the template, found by experiment. -1: an exception. The memory is free again
 * before the program's own allocation, which would otherwise raise the peak. */
static int can_allocate(Allocation const *self)
{
    char const *impl = stator_layout.valid && stator_torch_c.empty_strided ? stator_tensor_impl(&stator_layout, self->template) : NULL;
    if (!impl) {
        return 0;
    }
    PyObject *made = allocate(self->template);
    int alike = made ? are_alike(made, self->template) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(made);
    return alike;
}

/* `empty_like` of a template is quicker than numbers that torch has to read, but a template takes time to make. */
static int add_template(Allocation *self)
{
    PyObject *prepare = self->prepare, *arguments[] = {self->size, self->stride};
    self->prepare = NULL;
    PyObject *template = PyObject_Vectorcall(prepare, arguments, 2, NULL);
    Py_DECREF(prepare);
    if (!template) {
        return -1;
    }
    if (template == Py_None) {
        Py_DECREF(template);
        return 0;
    }
    Py_XSETREF(self->template, template);
    int direct = can_allocate(self);
    self->direct = direct > 0;
    return direct < 0 ? -1 : 0;
}

static PyObject *Allocation_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Allocation *self = (Allocation *)callable;
    if (PyVectorcall_NARGS(nargsf) || (kwnames && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "an allocation takes no arguments");
        return NULL;
    }
    if (self->used && self->prepare && add_template(self) < 0) {
        return NULL;
    }
    self->used = 1;
    if (self->direct) {
        PyObject *made = allocate(self->template);
        if (made || PyErr_Occurred()) {
            return made;
        } /* otherwise memory is exhausted: empty_like raises torch's error */
    }
    if (self->template) {
        return PyObject_Vectorcall(self->empty_like, &self->template, 1, NULL);
    }
    PyObject *arguments[] = {self->size, self->stride};
    return PyObject_Vectorcall(self->make, arguments, 2, NULL);
}

static PyObject *Allocation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"make", "size", "stride", "prepare", "empty_like", NULL};
    PyObject *make, *size, *stride, *prepare, *empty_like;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!OO", names, &make, &PyTuple_Type, &size, &PyTuple_Type, &stride,
                                     &prepare, &empty_like)) {
        return NULL;
    }
    Allocation *self = (Allocation *)type->tp_alloc(type, 0);
    if (self) {
        self->vectorcall = Allocation_call;
        self->make = Py_NewRef(make);
        self->size = Py_NewRef(size);
        self->stride = Py_NewRef(stride);
        self->prepare = Py_NewRef(prepare);
        self->empty_like = Py_NewRef(empty_like);
    }
    return (PyObject *)self;
}

static void Allocation_dealloc(PyObject *object)
{
    Allocation *self = (Allocation *)object;
    Py_XDECREF(self->make);
    Py_XDECREF(self->size);
    Py_XDECREF(self->stride);
    Py_XDECREF(self->prepare);
    Py_XDECREF(self->empty_like);
    Py_XDECREF(self->template);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject StatorAllocationType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._launch.Allocation",
    .tp_doc = PyDoc_STR("Allocation(make, size, stride, prepare, empty_like): call it for a fresh tensor: make(size, stride) at first, "
                        "later as empty_like of the template that prepare(size, stride) gives, unless that is None."),
    .tp_basicsize = sizeof(Allocation),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Allocation, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = Allocation_new,
    .tp_dealloc = Allocation_dealloc,
};
