/* Suspended generators: reads their frames, and sets them to another state, as if their code had run to there. The only
 * writes to a suspended generator's frame. dynamo/ir/suspension_points.py knows the suspension points of each code. */
#include "native.h"

enum { HIDDEN = -1, FINISHED = -2 };

static PyObject *unbound = NULL; /* stands for an unbound variable or a NULL on the stack */

static int is_generator(PyObject *object)
{
    if (!PyGen_CheckExact(object)) {
        PyErr_Format(PyExc_TypeError, "a generator is expected, not %.100s", Py_TYPE(object)->tp_name);
        return 0;
    }
    return 1;
}

static PyObject *without_contents(int unit)
{
    return Py_BuildValue("(iOO)", unit, Py_None, Py_None);
}

static PyObject *generator_contents(PyObject *Py_UNUSED(self), PyObject *object)
{
    if (!is_generator(object)) {
        return NULL;
    }
    PyGenObject *generator = (PyGenObject *)object;
    int const state = generator->gi_frame_state;
    if (state >= FRAME_COMPLETED) {
        return without_contents(FINISHED);
    }
    PyObject *handled = generator->gi_exc_state.exc_value;
    if ((state != FRAME_CREATED && !generator_is_suspended(generator)) || (handled && handled != Py_None)) {
        return without_contents(HIDDEN);
    }
    Frame *frame = generator_frame(generator);
    PyCodeObject *code = frame_code(frame);
    int const held = frame_held(frame);
    PyObject *found = PyTuple_New(3 + held);
    PyObject *unit = found ? PyLong_FromSsize_t(frame_next_instruction(frame) - _PyCode_CODE(code)) : NULL;
    if (!unit) {
        Py_XDECREF(found);
        return NULL;
    }
    PyTuple_SET_ITEM(found, 0, unit);
    PyTuple_SET_ITEM(found, 1, Py_NewRef(code));
    PyTuple_SET_ITEM(found, 2, Py_NewRef(frame->f_globals));
    for (int i = 0; i < held; i++) {
        PyObject *item = frame_get(frame, i);
        PyTuple_SET_ITEM(found, 3 + i, Py_NewRef(item ? item : unbound));
    }
    return found;
}

/* A description of the error in the state, or NULL. */
static const char *problem_of(PyGenObject *generator, Py_ssize_t unit, Py_ssize_t variables, Py_ssize_t held)
{
    int const state = generator->gi_frame_state;
    if (state != FRAME_CREATED && !generator_is_suspended(generator)) {
        return "it does not wait";
    }
    PyCodeObject *code = frame_code(generator_frame(generator));
    if (unit <= 0 || unit >= Py_SIZE(code)) {
        return "there is no such instruction";
    }
    int const room = code->co_nlocalsplus + code->co_stacksize;
    return variables != code->co_nlocalsplus || held > room ? "there is no room for so much" : NULL;
}

static PyObject *set_generator(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *object, *variables, *stack;
    Py_ssize_t unit;
    int created;
    if (!PyArg_ParseTuple(args, "OnpO!O!", &object, &unit, &created, &PyTuple_Type, &variables, &PyTuple_Type, &stack)
        || !is_generator(object)) {
        return NULL;
    }
    PyGenObject *generator = (PyGenObject *)object;
    Frame *frame = generator_frame(generator);
    Py_ssize_t const count = PyTuple_GET_SIZE(variables), held = count + PyTuple_GET_SIZE(stack);
    const char *problem = problem_of(generator, unit, count, held);
    if (problem) {
        PyErr_Format(PyExc_SystemError, "stator: a generator cannot be put there: %s", problem);
        return NULL;
    }
    int const had = frame_held(frame);
    PyObject *before = PyTuple_New(had); /* the old contents, released at the end because that may run user code */
    if (!before) {
        return NULL;
    }
    for (int i = 0; i < had; i++) {
        PyTuple_SET_ITEM(before, i, Py_NewRef(frame_get(frame, i) ? frame_get(frame, i) : Py_None));
        frame_set(frame, i, NULL);
    }
    for (Py_ssize_t i = 0; i < held; i++) {
        PyObject *item = i < count ? PyTuple_GET_ITEM(variables, i) : PyTuple_GET_ITEM(stack, i - count);
        frame_put(frame, i, item == unbound ? NULL : Py_NewRef(item));
    }
    PyCodeObject *code = frame_code(frame);
    frame_set_position(frame, code, unit, (int)held);
    generator_set_state(generator, code, unit, created);
    Py_DECREF(before);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"generator_contents", generator_contents, METH_O,
     "generator_contents(generator) -> (unit, code, globals, *variables, *stack): where it goes on and with what, UNBOUND for\n"
     "what is not there. (-1, None, None) while it runs or handles an exception; (-2, None, None) at its end."},
    {"set_generator", set_generator, METH_VARARGS,
     "set_generator(generator, unit, created, variables, stack): it waits to go on at that unit of its code, with these."},
    {0},
};

int stator_generators_add_to(PyObject *module)
{
    unbound = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    if (!unbound || PyModule_AddObjectRef(module, "UNBOUND", unbound) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
