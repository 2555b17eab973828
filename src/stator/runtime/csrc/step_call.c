/* StepCall: calls a compiled step through its autograd function, and is the forward of that function. Every statement
 * here delays small programs. stator/aot/autograd/step_function.py does the same for steps with numbers. */
#include "step_call.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    Py_ssize_t *at, count;
} Places;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *apply;    /* of the autograd function */
    PyObject *step;     /* what the backward gets */
    PyObject *run;      /* run(*primals) -> the values, and more results behind them */
    PyObject *results;  /* list: positions of those values that the caller receives */
    PyObject *states;   /* states() -> of random generators, ahead of a run; or None */
    PyObject *distinct; /* distinct(values) -> the values as distinct tensors */
    PyObject *hooks;    /* hooks() -> those that the program has on saved tensors, or None */
    PyObject *general;  /* called instead with the primals if one of `written` requires grad */
    Places saved;       /* what the backward reads: places of primals, and ~positions of results */
    Places constants;   /* values that cannot be differentiated */
    Places written;     /* primals that the run writes to: no gradient depends on what they held */
    Py_ssize_t value_count, least_results, hidden_count;
    int placed;         /* the backward asks whether primals still have their memory */
} StepCall;

/* What autograd's context of one call keeps for the backward. Lists are made when they are asked for. */
typedef struct {
    PyObject_VAR_HEAD
    StepCall *call;
    PyObject *primals;  /* tuple, until the backward has freed it */
    PyObject *hidden;   /* tuple of the saved results that only the backward sees, until it has freed them; or NULL */
    int keeps_hidden;   /* whether these are here, and not among autograd's saved tensors */
    PyObject *items[];  /* weak references to results, their versions, and versions of primals */
} StepRecord;

static PyTypeObject StepRecordType;

enum { MATERIALIZE_GRADS, STATES, RECORD, TO_SAVE, MEMORY, NON_DIFFERENTIABLE, NAMES };

static PyObject *names[NAMES]; /* of attributes of autograd's context; live as long as the process */

/* Whether a saved value is a result that the caller never receives. */
static int is_hidden(StepCall const *self, Py_ssize_t at)
{
    return at < 0 && ~at >= self->value_count;
}

/* ---- StepRecord ---- */

static PyObject *record_of(StepCall *call, PyObject *primals, PyObject *values)
{
    Py_ssize_t const results = PyList_GET_SIZE(call->results), count = PyTuple_GET_SIZE(primals);
    StepRecord *self = PyObject_GC_NewVar(StepRecord, &StepRecordType, 2 * results + count);
    if (!self) {
        return NULL;
    }
    memset(self->items, 0, sizeof *self->items * (size_t)Py_SIZE(self));
    self->call = (StepCall *)Py_NewRef(call);
    self->primals = Py_NewRef(primals);
    self->hidden = NULL;
    self->keeps_hidden = 0;
    int fine = 1;
    for (Py_ssize_t i = 0; fine && i < results; ++i) {
        Py_ssize_t const at = PyLong_AsSsize_t(PyList_GET_ITEM(call->results, i));
        PyObject *value = at >= 0 && at < PyTuple_GET_SIZE(values) ? PyTuple_GET_ITEM(values, at) : NULL;
        if (!value) {
            PyErr_SetString(PyExc_IndexError, "there is no result at this position");
        }
        self->items[i] = value ? PyWeakref_NewRef(value, NULL) : NULL;
        self->items[results + i] = self->items[i] ? stator_version(value) : NULL;
        fine = self->items[results + i] != NULL;
    }
    for (Py_ssize_t i = 0; fine && i < count; ++i) {
        self->items[2 * results + i] = stator_version(PyTuple_GET_ITEM(primals, i));
        fine = self->items[2 * results + i] != NULL;
    }
    for (Py_ssize_t i = 0; fine && i < call->written.count; ++i) {
        PyObject *unchecked = PyLong_FromLong(-1);
        fine = unchecked != NULL;
        if (fine) {
            Py_SETREF(self->items[2 * results + call->written.at[i]], unchecked);
        }
    }
    PyObject_GC_Track(self);
    if (!fine) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *record_step(PyObject *object, void *Py_UNUSED(closure))
{
    return Py_NewRef(((StepRecord *)object)->call->step);
}

static PyObject *record_versions(PyObject *object, void *Py_UNUSED(closure))
{
    StepRecord *self = (StepRecord *)object;
    Py_ssize_t const first = 2 * PyList_GET_SIZE(self->call->results), count = Py_SIZE(self) - first;
    PyObject *found = PyList_New(count);
    for (Py_ssize_t i = 0; found && i < count; ++i) {
        PyList_SET_ITEM(found, i, Py_NewRef(self->items[first + i]));
    }
    return found;
}

static PyObject *record_results(PyObject *object, void *Py_UNUSED(closure))
{
    StepRecord *self = (StepRecord *)object;
    PyObject *positions = self->call->results;
    Py_ssize_t const count = PyList_GET_SIZE(positions);
    PyObject *found = PyList_New(count);
    for (Py_ssize_t i = 0; found && i < count; ++i) {
        PyObject *one = PyTuple_Pack(3, PyList_GET_ITEM(positions, i), self->items[i], self->items[count + i]);
        if (!one) {
            Py_CLEAR(found);
            break;
        }
        PyList_SET_ITEM(found, i, one);
    }
    return found;
}

/* What the backward reads, from autograd's saved tensors and the hidden results: a list. */
static PyObject *record_saved(PyObject *object, PyObject *tensors)
{
    StepRecord *self = (StepRecord *)object;
    Places const *saved = &self->call->saved;
    Py_ssize_t next = 0, next_hidden = 0;
    if (!PyTuple_CheckExact(tensors) || (self->keeps_hidden && !self->hidden)
        || PyTuple_GET_SIZE(tensors) + (self->hidden ? PyTuple_GET_SIZE(self->hidden) : 0) != saved->count) {
        PyErr_SetString(PyExc_RuntimeError, "the saved values of a compiled step have been freed");
        return NULL;
    }
    PyObject *found = PyList_New(saved->count);
    for (Py_ssize_t i = 0; found && i < saved->count; ++i) {
        int const hidden = self->hidden && is_hidden(self->call, saved->at[i]);
        PyList_SET_ITEM(found, i, Py_NewRef(hidden ? PyTuple_GET_ITEM(self->hidden, next_hidden++) : PyTuple_GET_ITEM(tensors, next++)));
    }
    return found;
}

static PyObject *record_drop_hidden(PyObject *object, PyObject *Py_UNUSED(none))
{
    Py_CLEAR(((StepRecord *)object)->hidden);
    Py_RETURN_NONE;
}

static int record_traverse(PyObject *object, visitproc visit, void *arg)
{
    StepRecord *self = (StepRecord *)object;
    Py_VISIT(self->call);
    Py_VISIT(self->primals);
    Py_VISIT(self->hidden);
    for (Py_ssize_t i = 0; i < Py_SIZE(self); ++i) {
        Py_VISIT(self->items[i]);
    }
    return 0;
}

static int record_clear(PyObject *object)
{
    Py_CLEAR(((StepRecord *)object)->primals);
    Py_CLEAR(((StepRecord *)object)->hidden); /* the rest leads to no tensor of the call */
    return 0;
}

static void record_dealloc(PyObject *object)
{
    StepRecord *self = (StepRecord *)object;
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->primals);
    Py_CLEAR(self->hidden);
    for (Py_ssize_t i = 0; i < Py_SIZE(self); ++i) {
        Py_CLEAR(self->items[i]);
    }
    Py_CLEAR(self->call);
    PyObject_GC_Del(object);
}

static PyMemberDef record_members[] = {
    {"primals", T_OBJECT, offsetof(StepRecord, primals), 0, "the primals, until the backward frees them"},
    {0},
};

static PyMethodDef record_methods[] = {
    {"saved", record_saved, METH_O, PyDoc_STR("saved(saved tensors of autograd) -> list of all that the backward reads")},
    {"drop_hidden", record_drop_hidden, METH_NOARGS, PyDoc_STR("free the saved results that only the backward sees")},
    {0},
};

static PyGetSetDef record_getset[] = {
    {"step", record_step, NULL, "what was called", NULL},
    {"versions", record_versions, NULL, "as `versions` of the primals gives them", NULL},
    {"results", record_results, NULL, "as `references` of the values gives them", NULL},
    {0},
};

static PyTypeObject StepRecordType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._launch.StepRecord",
    .tp_doc = PyDoc_STR("What autograd's context of a StepCall keeps: step, primals, versions, results."),
    .tp_basicsize = offsetof(StepRecord, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = record_dealloc,
    .tp_traverse = record_traverse,
    .tp_clear = record_clear,
    .tp_members = record_members,
    .tp_methods = record_methods,
    .tp_getset = record_getset,
};

/* ---- StepCall ---- */

/* Whether a primal that the run writes to requires grad. -1 with an exception. */
static int tracks_written(StepCall *self, PyObject *const *args, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < self->written.count; ++i) {
        Py_ssize_t const at = self->written.at[i];
        if (at < 0 || at >= count || !stator_is_tensor(args[at])) {
            PyErr_SetString(PyExc_TypeError, "a primal that the program writes to was not given");
            return -1;
        }
        char const *impl = stator_layout.valid ? stator_tensor_impl(&stator_layout, args[at]) : NULL;
        if (!impl || stator_tensor_requires_grad(&stator_layout, impl)) {
            return 1; /* or only the getter knows */
        }
    }
    return 0;
}

static PyObject *StepCall_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    StepCall *self = (StepCall *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (kwnames && PyTuple_GET_SIZE(kwnames)) {
        PyErr_SetString(PyExc_TypeError, "a compiled step takes no keywords");
        return NULL;
    }
    int const tracked = self->written.count ? tracks_written(self, args, count) : 0;
    if (tracked) {
        return tracked < 0 ? NULL : PyObject_Vectorcall(self->general, args, count, NULL);
    }
    PyObject *all = PyTuple_New(count + 1);
    if (!all) {
        return NULL;
    }
    PyTuple_SET_ITEM(all, 0, Py_NewRef(callable));
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyTuple_SET_ITEM(all, i + 1, Py_NewRef(args[i]));
    }
    PyObject *result = PyObject_Call(self->apply, all, NULL);
    Py_DECREF(all);
    return result;
}

/* The values among the results of a run, as a tuple of distinct tensors: a new reference. */
static PyObject *values_of(StepCall *self, PyObject *results)
{
    Py_ssize_t const count = self->value_count;
    PyObject *values;
    if (PyTuple_CheckExact(results) && PyTuple_GET_SIZE(results) == count) {
        values = Py_NewRef(results);
    } else {
        values = PyTuple_New(count);
        for (Py_ssize_t i = 0; values && i < count; ++i) {
            PyTuple_SET_ITEM(values, i, Py_NewRef(PySequence_Fast_GET_ITEM(results, i)));
        }
    }
    if (values && count > 1 && stator_are_distinct(values) != 1) {
        PyObject *found = PyErr_Occurred() ? NULL : PyObject_CallOneArg(self->distinct, values);
        if (found && !PyTuple_CheckExact(found)) {
            PyErr_SetString(PyExc_TypeError, "distinct gave no tuple");
            Py_CLEAR(found);
        }
        Py_SETREF(values, found);
    }
    return values;
}

/* Saved values, as a tuple: the hidden ones, or the others, or with `all` both. */
static PyObject *saved_of(StepCall *self, PyObject *primals, PyObject *results, int hidden, int all)
{
    Py_ssize_t const count = all ? self->saved.count : hidden ? self->hidden_count : self->saved.count - self->hidden_count;
    PyObject *saved = PyTuple_New(count);
    for (Py_ssize_t i = 0, to = 0; saved && i < self->saved.count; ++i) {
        Py_ssize_t const at = self->saved.at[i];
        if (at >= PyTuple_GET_SIZE(primals)) {
            PyErr_SetString(PyExc_TypeError, "a primal that the backward reads was not given");
            Py_CLEAR(saved);
        } else if (all || is_hidden(self, at) == hidden) {
            PyObject *value = at < 0 ? PySequence_Fast_GET_ITEM(results, ~at) : PyTuple_GET_ITEM(primals, at);
            PyTuple_SET_ITEM(saved, to++, Py_NewRef(value));
        }
    }
    return saved;
}

/* The tensors among the values that cannot be differentiated. */
static PyObject *constants_of(StepCall *self, PyObject *values)
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < self->constants.count; ++i) {
        PyObject *value = PyTuple_GET_ITEM(values, self->constants.at[i]);
        if (stator_is_tensor(value) && PyList_Append(found, value) < 0) {
            Py_CLEAR(found);
        }
    }
    PyObject *result = found ? PyList_AsTuple(found) : NULL;
    Py_XDECREF(found);
    return result;
}

/* Set an attribute. Takes over the reference to the value; NULL means that making the value failed. */
static int set(PyObject *context, int name, PyObject *value)
{
    int const status = value ? PyObject_SetAttr(context, names[name], value) : -1;
    Py_XDECREF(value);
    return status;
}

/* Keep what the backward reads. Autograd keeps the tensors that the program can reach, to find out if they are written
 * to, and all of them if the program has hooks on saved tensors. */
static int keep_saved(StepCall *self, PyObject *context, StepRecord *record, PyObject *primals, PyObject *results)
{
    PyObject *hooks = self->hidden_count ? PyObject_CallNoArgs(self->hooks) : Py_NewRef(Py_None);
    if (!hooks) {
        return -1;
    }
    int const all = hooks != Py_None;
    Py_DECREF(hooks);
    if (self->hidden_count && !all) {
        record->keeps_hidden = 1;
        if (!(record->hidden = saved_of(self, primals, results, 1, 0))) {
            return -1;
        }
    }
    if (self->saved.count > (all ? 0 : self->hidden_count)) {
        return set(context, TO_SAVE, saved_of(self, primals, results, 0, all)); /* as ctx.save_for_backward does */
    }
    return 0;
}

/* Keep in autograd's context what the backward needs. -1 with an exception on error. */
static int keep(StepCall *self, PyObject *context, PyObject *primals, PyObject *results, PyObject *values)
{
    PyObject *record = record_of(self, primals, values); /* which the context keeps */
    if (set(context, RECORD, record) < 0 || set(context, MATERIALIZE_GRADS, Py_NewRef(Py_False)) < 0) {
        return -1;
    }
    if (self->constants.count && set(context, NON_DIFFERENTIABLE, constants_of(self, values)) < 0) {
        return -1; /* as ctx.mark_non_differentiable does */
    }
    if (keep_saved(self, context, (StepRecord *)record, primals, results) < 0) {
        return -1;
    }
    return self->placed ? set(context, MEMORY, stator_memory(primals)) : 0;
}

PyObject *stator_step_forward(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_ssize_t const given = PyTuple_GET_SIZE(args);
    if (given < 2 || !Py_IS_TYPE(PyTuple_GET_ITEM(args, 1), &StatorStepCallType)) {
        PyErr_SetString(PyExc_TypeError, "step_forward(context, StepCall, *primals)");
        return NULL;
    }
    StepCall *self = (StepCall *)PyTuple_GET_ITEM(args, 1);
    if (self->states != Py_None && set(PyTuple_GET_ITEM(args, 0), STATES, PyObject_CallNoArgs(self->states)) < 0) {
        return NULL;
    }
    PyObject *primals = PyTuple_GetSlice(args, 2, given), *values = NULL;
    PyObject *results = primals ? PyObject_Vectorcall(self->run, ((PyTupleObject *)primals)->ob_item, given - 2, NULL) : NULL;
    if (results && ((!PyTuple_CheckExact(results) && !PyList_CheckExact(results))
                    || PySequence_Fast_GET_SIZE(results) < self->least_results)) {
        PyErr_SetString(PyExc_TypeError, "a compiled forward gives a tuple or list of its results");
    } else if (results) {
        values = values_of(self, results);
    }
    if (values && keep(self, PyTuple_GET_ITEM(args, 0), primals, results, values) < 0) {
        Py_CLEAR(values);
    }
    Py_XDECREF(primals);
    Py_XDECREF(results);
    return values;
}

/* Read a tuple of numbers. -1 with an exception on error. */
static int read_places(PyObject *numbers, Places *places)
{
    places->count = PyTuple_GET_SIZE(numbers);
    places->at = PyMem_Calloc((size_t)places->count + 1, sizeof *places->at);
    if (!places->at) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < places->count; ++i) {
        places->at[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, i));
        if (places->at[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

static int add_places(StepCall *self, PyObject *saved, PyObject *constants, PyObject *written)
{
    if (read_places(saved, &self->saved) < 0 || read_places(constants, &self->constants) < 0
        || read_places(written, &self->written) < 0) {
        return -1;
    }
    self->least_results = self->value_count;
    for (Py_ssize_t i = 0; i < self->saved.count; ++i) {
        Py_ssize_t const at = self->saved.at[i];
        if (at < 0 && ~at >= self->least_results) {
            self->least_results = ~at + 1;
        }
        self->hidden_count += is_hidden(self, at);
    }
    for (Py_ssize_t i = 0; i < self->constants.count; ++i) {
        if (self->constants.at[i] < 0 || self->constants.at[i] >= self->value_count) {
            PyErr_SetString(PyExc_IndexError, "there is no value at this position");
            return -1;
        }
    }
    return 0;
}

static PyObject *StepCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"apply", "step", "run", "value_count", "results", "saved", "placed", "states", "distinct",
                               "constants", "written", "general", "hooks", NULL};
    PyObject *apply, *step, *run, *results, *saved, *states, *distinct, *constants, *written, *general, *hooks;
    Py_ssize_t value_count;
    int placed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOnO!O!pOOO!O!OO", keywords, &apply, &step, &run, &value_count,
                                     &PyList_Type, &results, &PyTuple_Type, &saved, &placed, &states, &distinct,
                                     &PyTuple_Type, &constants, &PyTuple_Type, &written, &general, &hooks)) {
        return NULL;
    }
    StepCall *self = (StepCall *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->vectorcall = StepCall_call;
    self->apply = Py_NewRef(apply);
    self->step = Py_NewRef(step);
    self->run = Py_NewRef(run);
    self->results = Py_NewRef(results);
    self->states = Py_NewRef(states);
    self->distinct = Py_NewRef(distinct);
    self->general = Py_NewRef(general);
    self->hooks = Py_NewRef(hooks);
    self->value_count = value_count;
    self->placed = placed;
    if (add_places(self, saved, constants, written) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int StepCall_traverse(PyObject *object, visitproc visit, void *arg)
{
    StepCall *self = (StepCall *)object;
    Py_VISIT(self->apply);
    Py_VISIT(self->step);
    Py_VISIT(self->run);
    Py_VISIT(self->results);
    Py_VISIT(self->states);
    Py_VISIT(self->distinct);
    Py_VISIT(self->general);
    Py_VISIT(self->hooks);
    return 0;
}

static int StepCall_clear(PyObject *object)
{
    StepCall *self = (StepCall *)object;
    Py_CLEAR(self->apply);
    Py_CLEAR(self->step);
    Py_CLEAR(self->run);
    Py_CLEAR(self->results);
    Py_CLEAR(self->states);
    Py_CLEAR(self->distinct);
    Py_CLEAR(self->general);
    Py_CLEAR(self->hooks);
    return 0;
}

static void StepCall_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    StepCall_clear(object);
    PyMem_Free(((StepCall *)object)->saved.at);
    PyMem_Free(((StepCall *)object)->constants.at);
    PyMem_Free(((StepCall *)object)->written.at);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject StatorStepCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._launch.StepCall",
    .tp_doc = PyDoc_STR("StepCall(apply, step, run, value_count, results, saved, placed, states, distinct, constants, written, general, hooks): "
                        "called with primals, it calls apply(self, *primals)."),
    .tp_basicsize = sizeof(StepCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(StepCall, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = StepCall_new,
    .tp_dealloc = StepCall_dealloc,
    .tp_traverse = StepCall_traverse,
    .tp_clear = StepCall_clear,
};

int stator_step_call_ready(void)
{
    static char const *const texts[NAMES] = {"materialize_grads", "states", "record", "to_save", "memory", "non_differentiable"};
    for (int i = 0; i < NAMES; ++i) {
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(texts[i]))) {
            return -1;
        }
    }
    return PyType_Ready(&StepRecordType) < 0 ? -1 : PyType_Ready(&StatorStepCallType);
}
