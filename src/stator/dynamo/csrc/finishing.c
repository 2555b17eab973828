/* What the interpreter makes of what a function gave that an instruction entered: for frames that were left together at a
 * graph break, and go on by finishing such instructions (finishing.py). Capture knows what each of these does. */
#include "finishing.h"

#include "native.h"

/* What the class of an object has under a name, bound to the object; new reference. NULL without an exception: nothing. */
static PyObject *special_method(PyObject *object, PyObject *name)
{
    PyObject *found = _PyType_Lookup(Py_TYPE(object), name); /* borrowed */
    if (!found) {
        return NULL;
    }
    descrgetfunc const bind = Py_TYPE(found)->tp_descr_get;
    return bind ? bind(found, object, (PyObject *)Py_TYPE(object)) : Py_NewRef(found);
}

/* What an __init__ has returned. */
static PyObject *initialized(PyObject *Py_UNUSED(self), PyObject *result)
{
    if (result != Py_None) {
        PyErr_Format(PyExc_TypeError, "__init__() should return None, not '%.200s'", Py_TYPE(result)->tp_name);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* (class, arguments, keywords, what its __new__ made) */
static PyObject *made(PyObject *Py_UNUSED(self), PyObject *call)
{
    PyObject *cls, *args, *keywords, *object;
    if (!PyArg_ParseTuple(call, "O!O!O!O", &PyType_Type, &cls, &PyTuple_Type, &args, &PyDict_Type, &keywords, &object)) {
        return NULL;
    }
    if (PyType_IsSubtype(Py_TYPE(object), (PyTypeObject *)cls) && Py_TYPE(object)->tp_init
        && Py_TYPE(object)->tp_init(object, args, PyDict_GET_SIZE(keywords) ? keywords : NULL) < 0) {
        return NULL;
    }
    return Py_NewRef(object);
}

static PyObject *unanswered(PyObject *left, PyObject *right, const char *symbol)
{
    int const is = symbol[0], then = symbol[1];
    if (then == '=' && (is == '=' || is == '!')) {
        return PyBool_FromLong((left == right) == (is == '='));
    }
    int const compares = (is == '<' || is == '>') && then != is;
    PyErr_Format(PyExc_TypeError,
                 compares ? "'%s' not supported between instances of '%.100s' and '%.100s'"
                          : "unsupported operand type(s) for %s: '%.100s' and '%.100s'",
                 strcmp(symbol, "**") ? symbol : "** or pow()", Py_TYPE(left)->tp_name, Py_TYPE(right)->tp_name);
    return NULL;
}

/* That nobody answered the plain operator is said of the one in place, which was written. */
static void name_in_place(PyObject *left, PyObject *right, const char *symbol)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
        return;
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    char plain[4] = "";
    strncpy(plain, symbol, strlen(symbol) - 1 < sizeof(plain) ? strlen(symbol) - 1 : 0);
    PyObject *expected = PyUnicode_FromFormat("unsupported operand type(s) for %s: '%.100s' and '%.100s'",
                                              strcmp(plain, "**") ? plain : "** or pow()", Py_TYPE(left)->tp_name,
                                              Py_TYPE(right)->tp_name);
    PyObject *said = expected ? PyObject_Str(error) : NULL;
    int const same = said && !traceback && PyUnicode_Compare(said, expected) == 0;
    Py_XDECREF(expected);
    Py_XDECREF(said);
    PyErr_Clear();
    if (same) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        unanswered(left, right, symbol);
    } else {
        PyErr_Restore(type, error, traceback);
    }
}

/* (left, right, answer, (symbol, what is asked next, of the left one, whether its truth is wanted)) */
static PyObject *answered(PyObject *Py_UNUSED(self), PyObject *operation)
{
    PyObject *left, *right, *answer, *next;
    const char *symbol;
    int of_left, wants_truth;
    if (!PyArg_ParseTuple(operation, "OOO(sOpp)", &left, &right, &answer, &symbol, &next, &of_left, &wants_truth)) {
        return NULL;
    }
    PyObject *result = Py_NewRef(answer);
    if (answer == Py_NotImplemented && PyUnicode_Check(next)) {
        PyObject *asked = of_left ? left : right;
        PyObject *method = special_method(asked, next);
        if (method) {
            Py_SETREF(result, PyObject_CallOneArg(method, of_left ? right : left));
            Py_DECREF(method);
        } else if (PyErr_Occurred()) {
            Py_CLEAR(result);
        }
    } else if (answer == Py_NotImplemented && next != Py_None) {
        Py_SETREF(result, PyObject_CallFunctionObjArgs(next, left, right, NULL));
        if (!result) {
            name_in_place(left, right, symbol);
        }
        return result;
    }
    if (result == Py_NotImplemented) {
        Py_DECREF(result);
        result = unanswered(left, right, symbol);
    }
    if (result && wants_truth) {
        int const truth = PyObject_IsTrue(result);
        Py_DECREF(result);
        result = truth < 0 ? NULL : PyBool_FromLong(truth);
    }
    return result;
}

/* -1 with an exception: what a __len__ gave is no length. */
static Py_ssize_t length(PyObject *result)
{
    PyObject *number = PyNumber_Index(result);
    if (!number) {
        return -1;
    }
    int overflow = 0;
    Py_ssize_t found = -1;
    if (PyLong_AsLongLongAndOverflow(number, &overflow) < 0 && overflow <= 0) {
        PyErr_SetString(PyExc_ValueError, "__len__() should return >= 0");
    } else {
        found = PyNumber_AsSsize_t(number, PyExc_OverflowError);
    }
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : found;
}

static PyObject *a_length(PyObject *Py_UNUSED(self), PyObject *result)
{
    Py_ssize_t const found = length(result);
    return found < 0 ? NULL : PyLong_FromSsize_t(found);
}

static PyObject *is_filled(PyObject *Py_UNUSED(self), PyObject *result)
{
    Py_ssize_t const found = length(result);
    return found < 0 ? NULL : PyBool_FromLong(found > 0);
}

static PyObject *a_truth(PyObject *Py_UNUSED(self), PyObject *result)
{
    if (!PyBool_Check(result)) {
        PyErr_Format(PyExc_TypeError, "__bool__ should return bool, returned %s", Py_TYPE(result)->tp_name);
        return NULL;
    }
    return Py_NewRef(result);
}

static PyObject *member(PyObject *Py_UNUSED(self), PyObject *answer)
{
    int const truth = PyObject_IsTrue(answer);
    return truth < 0 ? NULL : PyBool_FromLong(truth);
}

static PyObject *no_member(PyObject *Py_UNUSED(self), PyObject *answer)
{
    int const truth = PyObject_IsTrue(answer);
    return truth < 0 ? NULL : PyBool_FromLong(!truth);
}

static PyObject *an_iterator(PyObject *Py_UNUSED(self), PyObject *result)
{
    if (!PyIter_Check(result)) {
        PyErr_Format(PyExc_TypeError, "iter() returned non-iterator of type '%.100s'", Py_TYPE(result)->tp_name);
        return NULL;
    }
    return Py_NewRef(result);
}

/* ---- where an exception is caught (Inner) ---- */

static PyObject *missed_itself;

static PyObject *missed(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(missed_itself);
}

static PyObject *was_missed(PyObject *Py_UNUSED(self), PyObject *result)
{
    return PyBool_FromLong(result == missed_itself);
}

/* (default, result or `missed`) */
static PyObject *otherwise(PyObject *Py_UNUSED(self), PyObject *state)
{
    PyObject *fallback, *result;
    if (!PyArg_ParseTuple(state, "OO", &fallback, &result)) {
        return NULL;
    }
    return Py_NewRef(result == missed_itself ? fallback : result);
}

static PyObject *paused_itself;

static PyObject *paused(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(paused_itself);
}

/* The next item of a generator, `missed` at its end. */
static PyObject *step(PyObject *Py_UNUSED(self), PyObject *generator)
{
    if (!PyIter_Check(generator)) {
        PyErr_Format(PyExc_TypeError, "'%.200s' object is not an iterator", Py_TYPE(generator)->tp_name);
        return NULL;
    }
    PyObject *item = Py_TYPE(generator)->tp_iternext(generator);
    if (!item && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_StopIteration)) {
        PyErr_Clear();
    }
    return item || PyErr_Occurred() ? item : Py_NewRef(missed_itself);
}

/* An AttributeError is raised as an attribute is read: it is told of what, and which, unless it knows. */
void stator_tell_what_was_read(PyObject *owner, PyObject *name)
{
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return;
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (PyErr_GivenExceptionMatches(error, PyExc_AttributeError) && !((PyAttributeErrorObject *)error)->name
        && !((PyAttributeErrorObject *)error)->obj
        && (PyObject_SetAttrString(error, "name", name) < 0 || PyObject_SetAttrString(error, "obj", owner) < 0)) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
        return; /* the class has its own way of that, and what it raised is raised instead */
    }
    PyErr_Restore(type, error, traceback);
}

/* (object, what was read of it or `missed`, name) */
static PyObject *found(PyObject *Py_UNUSED(self), PyObject *reading)
{
    PyObject *owner, *result, *name;
    if (!PyArg_ParseTuple(reading, "OOU", &owner, &result, &name)) {
        return NULL;
    }
    if (result != missed_itself) {
        return Py_NewRef(result);
    }
    PyObject *hook_name = PyUnicode_InternFromString("__getattr__");
    PyObject *hook = hook_name ? special_method(owner, hook_name) : NULL;
    Py_XDECREF(hook_name);
    if (!hook) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(owner)->tp_name, name);
        }
        stator_tell_what_was_read(owner, name);
        return NULL;
    }
    PyObject *value = PyObject_CallOneArg(hook, name);
    Py_DECREF(hook);
    if (!value) {
        stator_tell_what_was_read(owner, name);
    }
    return value;
}

/* ---- an iterator in the middle of an instruction (Resumed) ---- */

typedef struct {
    PyObject_HEAD
    PyObject *taken; /* tuple: these come first */
    PyObject *rest;  /* then what this iterator gives; NULL: nothing */
    Py_ssize_t at;
} Resumed;

static PyTypeObject ResumedType;

static PyObject *make_resumed(PyObject *taken, PyObject *rest)
{
    Resumed *made = PyObject_GC_New(Resumed, &ResumedType);
    if (made) {
        made->taken = Py_NewRef(taken);
        made->rest = rest == Py_None ? NULL : Py_NewRef(rest);
        made->at = 0;
        PyObject_GC_Track(made);
    }
    return (PyObject *)made;
}

static PyObject *resumed_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *taken, *rest;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &taken, &rest)) {
        return NULL;
    }
    return make_resumed(taken, rest);
}

static PyObject *resumed_next(PyObject *self)
{
    Resumed *resumed = (Resumed *)self;
    if (resumed->at < PyTuple_GET_SIZE(resumed->taken)) {
        return Py_NewRef(PyTuple_GET_ITEM(resumed->taken, resumed->at++));
    }
    return resumed->rest ? Py_TYPE(resumed->rest)->tp_iternext(resumed->rest) : NULL;
}

static int resumed_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Resumed *)self)->taken);
    Py_VISIT(((Resumed *)self)->rest);
    return 0;
}

static int resumed_clear(PyObject *self)
{
    Py_CLEAR(((Resumed *)self)->rest);
    return 0;
}

static void resumed_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Resumed *)self)->taken);
    Py_CLEAR(((Resumed *)self)->rest);
    PyObject_GC_Del(self);
}

static PyMemberDef resumed_members[] = {
    {"_taken", T_OBJECT, offsetof(Resumed, taken), READONLY, "the items that come first"},
    {"_rest", T_OBJECT, offsetof(Resumed, rest), READONLY, "the iterator of those behind them, or None"},
    {"_at", T_PYSSIZET, offsetof(Resumed, at), READONLY, "so many of the items were given"},
    {0},
};

static PyTypeObject ResumedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stator.dynamo._native.Resumed",
    .tp_doc = "Resumed(taken, rest): gives the items of the tuple, then those of the iterator, if that is not None.",
    .tp_basicsize = sizeof(Resumed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = resumed_new,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = resumed_next,
    .tp_members = resumed_members,
    .tp_dealloc = resumed_dealloc,
    .tp_traverse = resumed_traverse,
    .tp_clear = resumed_clear,
};

/* (taken, iterator), or with one item more, which comes behind those taken; if that is `missed`, nothing comes then; if it
 * is `paused`, it is none */
static PyObject *resumed(PyObject *Py_UNUSED(self), PyObject *state)
{
    PyObject *taken, *iterator, *item = NULL;
    if (!PyArg_ParseTuple(state, "O!O|O", &PyTuple_Type, &taken, &iterator, &item)) {
        return NULL;
    }
    if (!item || item == missed_itself || item == paused_itself) {
        return make_resumed(taken, item == missed_itself ? Py_None : iterator);
    }
    Py_ssize_t const count = PyTuple_GET_SIZE(taken);
    PyObject *all = PyTuple_New(count + 1);
    if (!all) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(all, i, Py_NewRef(PyTuple_GET_ITEM(taken, i)));
    }
    PyTuple_SET_ITEM(all, count, Py_NewRef(item));
    PyObject *made = make_resumed(all, iterator);
    Py_DECREF(all);
    return made;
}

static PyMethodDef methods[] = {
    {"answered", answered, METH_O, "answered((left, right, answer, (symbol, next, of_left, truth))): what an operator gives."},
    {"initialized", initialized, METH_O, "initialized(result): of an __init__, which has to be None."},
    {"made", made, METH_O, "made((cls, args, kwargs, object)): the object, initialized if it is one of the class."},
    {"a_length", a_length, METH_O, "a_length(result): of a __len__, as an int."},
    {"is_filled", is_filled, METH_O, "is_filled(result): whether the length that a __len__ gave is above zero."},
    {"a_truth", a_truth, METH_O, "a_truth(result): of a __bool__, which has to be a bool."},
    {"member", member, METH_O, "member(answer): the truth of what a __contains__ gave."},
    {"no_member", no_member, METH_O, "no_member(answer): the opposite."},
    {"an_iterator", an_iterator, METH_O, "an_iterator(result): of an __iter__, which has to be an iterator."},
    {"missed", missed, METH_NOARGS, "missed(): itself, which stands for no item, or no attribute."},
    {"otherwise", otherwise, METH_O, "otherwise((default, result)): the result, or the default where that is `missed`."},
    {"paused", paused, METH_NOARGS, "paused(): itself, which a generator gives that waits where it yields nothing."},
    {"step", step, METH_O, "step(generator): its next item, or `missed`."},
    {"was_missed", was_missed, METH_O, "was_missed(result): whether it is that."},
    {"found", found, METH_O, "found((owner, result, name)): the result, or what __getattr__ gives where that is `missed`."},
    {"resumed", resumed, METH_O, "resumed((taken, iterator[, item])): the items, then what the iterator gives."},
    {0},
};

int stator_finishing_add_to(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0 || PyModule_AddType(module, &ResumedType) < 0) {
        return -1;
    }
    missed_itself = PyObject_GetAttrString(module, "missed"); /* kept for the process */
    paused_itself = missed_itself ? PyObject_GetAttrString(module, "paused") : NULL;
    return paused_itself ? 0 : -1;
}
