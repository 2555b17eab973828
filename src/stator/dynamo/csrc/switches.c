/* The switches under which compiled functions run their originals: blocks of this thread, the stance of this context,
 * and a debugger. Python code sets them (dynamo/host/hook.py, dynamo/host/stance.py, dynamo/host/debuggers.py). */
#include "switches.h"

#include "native.h"

__thread int stator_entries_off = 0;

/* the ContextVar of the stance, and its value under which nothing compiled runs; read after the first set_stance */
static PyObject *stance_variable = NULL, *stance_eager = NULL;
static int stance_watched = 0;

/* Python predicate for a new trace function: whether it is a debugger's */
static PyObject *is_debugger = NULL;
static PyObject *last_tracer = NULL; /* owned, so that no other object gets its address */
static int last_tracer_debugs = 0;

static int stance_is_eager(void)
{
    PyObject *value = NULL;
    if (PyContextVar_Get(stance_variable, NULL, &value) < 0) {
        PyErr_Clear();
        return 0;
    }
    int eager = value == stance_eager;
    Py_XDECREF(value);
    return eager;
}

static int tracer_debugs(PyObject *tracer)
{
    if (tracer == last_tracer) {
        return last_tracer_debugs;
    }
    Py_INCREF(tracer);
    PyThreadState *thread = PyThreadState_Get();
    PyThreadState_EnterTracing(thread); /* a debugger of the program must not step through this call */
    PyObject *answer = is_debugger ? PyObject_CallOneArg(is_debugger, tracer) : NULL;
    PyThreadState_LeaveTracing(thread);
    int debugs = answer ? PyObject_IsTrue(answer) : 0;
    Py_XDECREF(answer);
    if (debugs < 0 || PyErr_Occurred()) {
        PyErr_Clear();
        debugs = 0;
    }
    PyObject *before = last_tracer;
    last_tracer = tracer;
    last_tracer_debugs = debugs;
    Py_XDECREF(before);
    return debugs;
}

/* whether originals run wherever lines are traced */
static int covering = 0;

static int debugged(PyThreadState *thread)
{
    if (thread_is_monitored(thread, MONITORING_DEBUGGER)
        || (covering && (thread_is_monitored(thread, MONITORING_COVERAGE) || thread->c_tracefunc))) {
        return 1;
    }
    PyObject *tracer = thread->c_traceobj;
    return thread->c_tracefunc && tracer && tracer_debugs(tracer);
}

int stator_runs_originals(void)
{
    return stator_entries_off || (stance_watched && stance_is_eager()) || debugged(PyThreadState_Get());
}

/* ---- the C stack ---- */

#ifdef __GLIBC__
#include <pthread.h>

static __thread char const *stack_end = NULL; /* lowest address of this thread's stack */

static void find_stack_end(void)
{
    pthread_attr_t attributes;
    void *lowest;
    size_t size;
    stack_end = (char const *)1; /* unknown: never low */
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        if (pthread_attr_getstack(&attributes, &lowest, &size) == 0) {
            stack_end = lowest;
        }
        pthread_attr_destroy(&attributes);
    }
}

int stator_stack_is_low(size_t needed)
{
    char here;
    if (!stack_end) {
        find_stack_end();
    }
    return &here < stack_end + needed;
}
#else
int stator_stack_is_low(size_t needed)
{
    (void)needed;
    return 0;
}
#endif

/* ---- for Python ---- */

static PyObject *switch_entries(PyObject *Py_UNUSED(self), PyObject *off)
{
    int before = stator_entries_off, truth = PyObject_IsTrue(off);
    if (truth < 0) {
        return NULL;
    }
    stator_entries_off += truth ? 1 : -1;
    return PyBool_FromLong(before > 0);
}

static PyObject *set_stance_variable(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *variable, *eager;
    if (!PyArg_ParseTuple(args, "O!O", &PyContextVar_Type, &variable, &eager)) {
        return NULL;
    }
    Py_XSETREF(stance_variable, Py_NewRef(variable));
    Py_XSETREF(stance_eager, Py_NewRef(eager));
    Py_RETURN_NONE;
}

static PyObject *watch_stance(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    stance_watched = stance_variable != NULL;
    Py_RETURN_NONE;
}

static PyObject *set_debugger_test(PyObject *Py_UNUSED(self), PyObject *test)
{
    Py_XSETREF(is_debugger, test == Py_None ? NULL : Py_NewRef(test));
    Py_CLEAR(last_tracer);
    Py_RETURN_NONE;
}

static PyObject *set_covering(PyObject *Py_UNUSED(self), PyObject *on)
{
    int before = covering, truth = PyObject_IsTrue(on);
    if (truth < 0) {
        return NULL;
    }
    covering = truth;
    return PyBool_FromLong(before);
}

static PyObject *runs_originals(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(stator_runs_originals());
}

static PyMethodDef methods[] = {
    {"switch_entries", switch_entries, METH_O,
     "switch_entries(off): compiled functions run their originals in this thread, until switched back as often."},
    {"set_stance_variable", set_stance_variable, METH_VARARGS,
     "set_stance_variable(variable, eager): compiled functions run their originals while variable's value is eager."},
    {"watch_stance", watch_stance, METH_NOARGS, "Look at the stance's variable at every call from now on."},
    {"set_debugger_test", set_debugger_test, METH_O, "set_debugger_test(test): test(trace function) -> is it a debugger's?"},
    {"set_covering", set_covering, METH_O,
     "set_covering(on) -> before: compiled functions run their originals under any trace function, and where the tool for\n"
     "coverage of sys.monitoring is in use."},
    {"runs_originals", runs_originals, METH_NOARGS, "Would a compiled function that is called now run its original?"},
    {0},
};

int stator_switches_add_to(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
