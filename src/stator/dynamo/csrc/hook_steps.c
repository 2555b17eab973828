/* The frame hook for generators and coroutines: on while they run, off while they are suspended. Their code
 * (codegen/generator_frames.py) calls these functions; frame_hook.c defines what the hook does. */
#include "hook_chain.h"
#include "native.h"

/* A running generator of this thread, and the state of the hook before it. */
typedef struct Step {
    void const *frame;
    HookThread before;
    struct Step *around;
} Step;

static __thread Step *innermost = NULL;

static PyObject *begin_step(PyObject *Py_UNUSED(self), PyObject *callback)
{
    void const *frame = thread_frame(PyThreadState_Get());
    if (innermost && innermost->frame == frame) {
        Py_RETURN_NONE; /* called by an exception handler, which is reached while the hook is on and while it is off */
    }
    Step *step = PyMem_RawMalloc(sizeof *step);
    if (!step) {
        return PyErr_NoMemory();
    }
    *step = (Step){frame, stator_hook_thread, innermost};
    stator_hook_acquire((HookThread){callback, NULL});
    innermost = step;
    Py_RETURN_NONE;
}

static PyObject *end_step(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    void const *frame = thread_frame(PyThreadState_Get());
    Step *mine = innermost;
    while (mine && mine->frame != frame) {
        mine = mine->around;
    }
    if (!mine) {
        Py_RETURN_NONE;
    }
    HookThread before = mine->before;
    Step *rest = mine->around;
    while (innermost != rest) {
        Step *over = innermost;
        innermost = over->around;
        PyMem_RawFree(over);
        stator_hook_release(before);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"begin_step", begin_step, METH_O,
     "begin_step(callback), from the code of a generator: the hook is on until end_step(); the code keeps the callback alive."},
    {"end_step", end_step, METH_NOARGS, "The end of a step, if one is under way: the hook is what it was before it."},
    {0},
};

int stator_steps_add_to(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
