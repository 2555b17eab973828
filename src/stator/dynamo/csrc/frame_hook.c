/* The PEP 523 frame hook: on only during call_with_hook and only for the calling thread. A frame whose code has a
 * compiled version gets that version's code in place. A Python callback decides once per code object what to compile. */
#include "binding.h"
#include "cache.h"
#include "continuation.h"
#include "hook_chain.h"
#include "native.h"
#include "switches.h"

typedef enum {
    MODE_ASK,      /* frames of this code may be compiled: see `answers` */
    MODE_LEAVE,    /* run as it is; callees may be compiled */
    MODE_UNHOOKED, /* run as it is, with the hook off: generated code, or code that opted out */
} Mode;

/* The answer of a callback for a code object. Both are held weakly, because code objects live long and the collector
 * does not traverse them: a callback keeps its caches alive itself. */
typedef struct Answer {
    PyObject *callback; /* owned weak reference */
    PyObject *cache;    /* owned weak reference to a Cache; NULL: skip these frames */
    struct Answer *next;
} Answer;

/* Kept in the code object's extra slot. */
typedef struct {
    Mode mode;
    int marked;          /* the mode was set by mark_code and outlives a reset */
    unsigned long epoch; /* of the answers and of an unmarked mode */
    Answer *answers;
} Record;

static Py_ssize_t extra_index = -1;
static unsigned long epoch = 1;
static PyObject *left_alone = NULL, *unhooked = NULL; /* tuples of file name prefixes */
static struct {
    unsigned long long seen, swapped, called;
} statistics;

unsigned long long stator_frames_seen(void)
{
    return statistics.seen;
}

/* ---- records ---- */

static void answers_free(Answer *answer)
{
    while (answer) {
        Answer *next = answer->next;
        Py_XDECREF(answer->callback);
        Py_XDECREF(answer->cache);
        PyMem_Free(answer);
        answer = next;
    }
}

static void record_free(void *pointer)
{
    Record *record = pointer;
    if (record) {
        Answer *answers = record->answers;
        record->answers = NULL;
        answers_free(answers);
        PyMem_Free(record);
    }
}

static Record *record_of(PyCodeObject *code)
{
    return code_extra(code, extra_index);
}

static int starts_with_any(PyObject *text, PyObject *prefixes)
{
    for (Py_ssize_t i = 0; prefixes && i < PyTuple_GET_SIZE(prefixes); i++) {
        if (PyUnicode_Tailmatch(text, PyTuple_GET_ITEM(prefixes, i), 0, PY_SSIZE_T_MAX, -1) == 1) {
            return 1;
        }
    }
    return 0;
}

#define SUSPENDABLE (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE)

/* Module and class bodies run once; comprehensions (3.11) are too small to be frames of their own; generators and
 * coroutines run by themselves. */
static Mode first_sight(PyCodeObject *code)
{
    if (starts_with_any(code->co_filename, unhooked)) {
        return MODE_UNHOOKED;
    }
    int const function = CO_OPTIMIZED | CO_NEWLOCALS;
    if ((code->co_flags & function) != function || code->co_flags & SUSPENDABLE) {
        return MODE_LEAVE;
    }
    const char *name = PyUnicode_AsUTF8(code->co_name);
    if (!name) {
        PyErr_Clear();
        return MODE_LEAVE;
    }
    if (name[0] == '<' && strcmp(name, "<lambda>") != 0) {
        return MODE_LEAVE;
    }
    return starts_with_any(code->co_filename, left_alone) ? MODE_LEAVE : MODE_ASK;
}

/* The record, created if missing and renewed after a reset; NULL without memory. */
static Record *record_for(PyCodeObject *code)
{
    Record *record = record_of(code);
    if (record && record->epoch == epoch) {
        return record;
    }
    if (!record) {
        record = PyMem_Calloc(1, sizeof *record);
        if (!record || code_set_extra((PyObject *)code, extra_index, record) < 0) {
            PyMem_Free(record);
            PyErr_Clear();
            return NULL;
        }
    }
    Answer *old = record->answers;
    record->answers = NULL;
    record->epoch = epoch;
    if (!record->marked) {
        record->mode = first_sight(code);
    }
    answers_free(old);
    return record;
}

/* Remove the answers of dead callbacks and about dead caches. */
static void forget_dead(Record *record)
{
    Answer *dead = NULL;
    for (Answer **place = &record->answers; *place;) {
        Answer *answer = *place;
        if (!weakref_peek(answer->callback) || (answer->cache && !weakref_peek(answer->cache))) {
            *place = answer->next;
            answer->next = dead;
            dead = answer;
        } else {
            place = &answer->next;
        }
    }
    answers_free(dead);
}

/* Remember the answer if possible; without memory or weak references to the callback, ask again next time. */
static void remember(Record *record, PyObject *callback, PyObject *cache)
{
    Answer *answer = PyMem_Calloc(1, sizeof *answer);
    if (answer) {
        answer->callback = PyWeakref_NewRef(callback, NULL);
        answer->cache = answer->callback && cache ? PyWeakref_NewRef(cache, NULL) : NULL;
        if (!answer->callback || (cache && !answer->cache)) {
            answers_free(answer);
        } else {
            answer->next = record->answers;
            record->answers = answer;
        }
    }
    PyErr_Clear();
}

/* New reference to the cache of this code under this callback; NULL: skip the frame. */
static Cache *cache_for(Record *record, PyObject *callback, PyObject *function)
{
    for (Answer *answer = record->answers; answer; answer = answer->next) {
        if (weakref_peek(answer->callback) == callback && (!answer->cache || weakref_peek(answer->cache))) {
            return (Cache *)(answer->cache ? Py_NewRef(weakref_peek(answer->cache)) : NULL);
        }
    }
    forget_dead(record);
    PyObject *cache = PyObject_CallOneArg(callback, function);
    if (cache && cache != Py_None && !Py_IS_TYPE(cache, &CacheType)) {
        PyErr_Format(PyExc_TypeError, "the hook's callback returned %.100s, not Cache or None", Py_TYPE(cache)->tp_name);
        Py_CLEAR(cache);
    }
    if (!cache) {
        return NULL; /* with an exception */
    }
    if (cache == Py_None) {
        Py_CLEAR(cache);
    }
    remember(record, callback, cache);
    return (Cache *)cache;
}

/* ---- running frames ---- */

#define run_frame stator_evaluate_below

static PyObject *function_with_code(PyObject *original, PyCodeObject *code)
{
    PyObject *function = PyFunction_New((PyObject *)code, PyFunction_GET_GLOBALS(original));
    PyObject *closure = PyFunction_GET_CLOSURE(original);
    if (function && closure && PyFunction_SetClosure(function, closure) < 0) {
        Py_CLEAR(function);
    }
    return function;
}

/* Run the code in a frame of its own, because the data stack has no room. */
static PyObject *call_code(PyThreadState *thread, Frame *frame, PyCodeObject *code)
{
    PyObject *positional = NULL, *keywords = NULL, *result = NULL;
    PyObject *function = function_with_code(frame_function(frame), code);
    int const count = stator_bound_count(frame_code(frame));
    PyObject *room[count + 1], *const *values = frame_arguments(frame, count, room);
    if (function && stator_unbind(frame_code(frame), values, &positional, &keywords) == 0) {
        result = PyObject_Call(function, positional, keywords);
    }
    Py_XDECREF(function);
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    frame_abandon(thread, frame);
    return result;
}

/* New reference to the version that fits; NULL without exception: run the original. */
static Version *version_for(Cache *cache, PyCodeObject *code, Frame *frame)
{
    if (cache->eager) {
        return NULL;
    }
    PyObject *function = frame_function(frame);
    int const count = stator_bound_count(code);
    PyObject *room[count + 1], *const *values = frame_arguments(frame, count, room);
    Version *version = stator_cache_lookup(cache, values, count, function);
    return version ? version : stator_cache_miss(cache, code, values, function);
}

/* The code that replaces the frame's own, a new reference; NULL: run its own, as *mode says, unless an exception is set. */
static PyCodeObject *code_instead(Frame *frame, PyCodeObject *code, Record *record, PyObject *callback, Mode *mode)
{
    PyObject *function = frame_function(frame);
    Cache *cache = PyFunction_Check(function) ? cache_for(record, callback, function) : NULL;
    Version *version = cache ? version_for(cache, code, frame) : NULL;
    PyObject *instead = version && version->code != Py_None ? Py_NewRef(version->code) : NULL;
    *mode = version && version->followed > 0 ? MODE_UNHOOKED : *mode;
    Py_XDECREF(version);
    Py_XDECREF(cache);
    return (PyCodeObject *)instead;
}

static PyObject *run_instead(PyThreadState *thread, Frame *frame, PyCodeObject *code)
{
    if (frame_swap_code(thread, frame, code, stator_bound_count(frame_code(frame)))) {
        statistics.swapped++;
        return run_frame(thread, frame, 0);
    }
    statistics.called++;
    return call_code(thread, frame, code);
}

static PyObject *hooked(PyThreadState *thread, Frame *frame, int throwing)
{
    /* trace functions, profile functions, and finalizers and callbacks during a collection are no part of the program */
    if (!stator_hook_thread.callback || throwing || !frame_is_on_data_stack(frame)
        || thread_is_outside_program(thread)) {
        return run_frame(thread, frame, throwing);
    }
    PyCodeObject *code = frame_code(frame);
    if (stator_hook_thread.let_through == code) {
        stator_hook_thread.let_through = NULL;
        return run_frame(thread, frame, 0);
    }
    /* off during the decision (guards, weak reference callbacks and finalizers may run Python) and in compiled code */
    HookThread mine = stator_hook_thread;
    stator_hook_thread = (HookThread){NULL, NULL};
    Record *record = record_for(code);
    Mode mode = record ? record->mode : MODE_LEAVE;
    PyCodeObject *instead = NULL;
    PyObject *result;
    int paused = 0;
    if (mode == MODE_ASK && !stator_runs_originals()) {
        statistics.seen++;
        instead = code_instead(frame, code, record, mine.callback, &mode);
    }
    if (instead) {
        paused = stator_pause_hook(thread->interp);
        result = stator_go_on(run_instead(thread, frame, instead));
        Py_DECREF(instead);
    } else if (mode == MODE_ASK && PyErr_Occurred()) {
        frame_abandon(thread, frame);
        result = NULL;
    } else if (mode == MODE_UNHOOKED) {
        paused = stator_pause_hook(thread->interp);
        result = run_frame(thread, frame, 0);
    } else {
        stator_hook_thread = mine;
        return run_frame(thread, frame, 0);
    }
    if (paused) {
        stator_want_hook(thread->interp);
    }
    stator_hook_thread = mine;
    return result;
}

static PyObject *hook(PyThreadState *thread, Frame *frame, int throwing)
{
    return stator_evaluate_unless_deep(thread, frame, throwing, hooked);
}

/* ---- turning it on and off ---- */

static PyObject *call_with_hook(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count < 2) {
        PyErr_SetString(PyExc_TypeError, "call_with_hook(callback, function, *args, **kwargs)");
        return NULL;
    }
    return stator_call_hooked(args[0] == Py_None ? NULL : args[0], NULL, args[1], args + 2, count - 2, keywords);
}

/* For compiled code, which runs without the hook: turn it on for an instruction that may call code unknown to capture. */
static PyObject *hook_on(PyObject *Py_UNUSED(self), PyObject *callback)
{
    stator_hook_acquire((HookThread){callback, NULL});
    Py_RETURN_NONE;
}

static PyObject *hook_off(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    stator_hook_release((HookThread){NULL, NULL});
    Py_RETURN_NONE;
}

/* ---- for Python ---- */

static PyObject *hook_callback(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    PyObject *callback = stator_hook_thread.callback;
    return Py_NewRef(callback ? callback : Py_None);
}

static PyObject *hook_users(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(stator_hook_users());
}

static PyObject *hook_is_there(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(stator_hook_is_there(PyInterpreterState_Get()));
}

static PyObject *hook_statistics(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("{sKsKsK}", "seen", statistics.seen, "swapped", statistics.swapped, "called", statistics.called);
}

static PyObject *set_mode(PyObject *code, int mode)
{
    Record *record = record_for((PyCodeObject *)code);
    if (!record) {
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    record->mode = mode;
    record->marked = 1;
    Py_RETURN_NONE;
}

static PyObject *mark_code(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *code;
    int unhooked;
    if (!PyArg_ParseTuple(args, "O!p", &PyCode_Type, &code, &unhooked)) {
        return NULL;
    }
    return set_mode(code, unhooked ? MODE_UNHOOKED : MODE_LEAVE);
}

static PyObject *ask_about(PyObject *Py_UNUSED(self), PyObject *code)
{
    if (!PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "a code object is expected");
        return NULL;
    }
    return set_mode(code, MODE_ASK);
}

static PyObject *code_mode(PyObject *Py_UNUSED(self), PyObject *code)
{
    if (!PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "a code object is expected");
        return NULL;
    }
    static const char *const names[] = {"ask", "leave", "unhooked"};
    Record *record = record_for((PyCodeObject *)code);
    return PyUnicode_FromString(names[record ? record->mode : MODE_LEAVE]);
}

static int are_strings(PyObject *tuple)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(tuple, i))) {
            PyErr_SetString(PyExc_TypeError, "file name prefixes are strings");
            return 0;
        }
    }
    return 1;
}

static PyObject *set_left_alone(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *leave, *unhook;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &leave, &PyTuple_Type, &unhook) || !are_strings(leave)
        || !are_strings(unhook)) {
        return NULL;
    }
    Py_XSETREF(left_alone, Py_NewRef(leave));
    Py_XSETREF(unhooked, Py_NewRef(unhook));
    epoch++;
    Py_RETURN_NONE;
}

static PyObject *reset_hook(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    epoch++;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"call_with_hook", (PyCFunction)(void (*)(void))call_with_hook, METH_FASTCALL | METH_KEYWORDS,
     "call_with_hook(callback, function, *args, **kwargs): call it, and ask callback(function) -> Cache or None about the\n"
     "code of each Python frame that starts in this thread meanwhile; the callback keeps its caches alive. callback None:\n"
     "the hook is off during the call."},
    {"hook_on", hook_on, METH_O,
     "hook_on(callback), from compiled code only: as in call_with_hook, until hook_off(); the code keeps the callback alive."},
    {"hook_off", hook_off, METH_NOARGS, "The end of hook_on."},
    {"hook_callback", hook_callback, METH_NOARGS, "The callback that is on in this thread, or None."},
    {"hook_users", hook_users, METH_NOARGS, "How many call_with_hook are in flight, over all threads."},
    {"hook_is_there", hook_is_there, METH_NOARGS, "Does the interpreter give us each frame now?"},
    {"hook_statistics", hook_statistics, METH_NOARGS, "Frames seen, swapped, and called for want of room."},
    {"mark_code", mark_code, METH_VARARGS, "mark_code(code, unhooked): always run it as it is; unhooked: and what it calls."},
    {"ask_about", ask_about, METH_O, "ask_about(code): ask the callback about it, wherever its file is."},
    {"code_mode", code_mode, METH_O, "\"ask\", \"leave\" or \"unhooked\"."},
    {"set_left_alone", set_left_alone, METH_VARARGS,
     "set_left_alone(prefixes, unhooked): file name prefixes of code that runs as it is; unhooked: with all it calls."},
    {"reset_hook", reset_hook, METH_NOARGS, "Forget what callbacks said about code objects."},
    {0},
};

int stator_hook_add_to(PyObject *module)
{
    extra_index = code_request_extra(record_free);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_RuntimeError, "no room for data on code objects");
        return -1;
    }
    stator_set_hook(hook);
    return PyModule_AddFunctions(module, methods);
}
