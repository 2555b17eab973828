/* All code that depends on the internals of CPython 3.11 to 3.14: frames, code objects, dict changes, thread
 * states. No other C file includes CPython's internal headers or checks its version. */
#ifndef STATOR_CPYTHON_COMPAT_H
#define STATOR_CPYTHON_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stddef.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "stator needs CPython's global interpreter lock"
#endif

#define Py_BUILD_CORE
#undef _PyGC_FINALIZED
/* an inline function of these headers reads a field that newer headers of 3.12 call deprecated */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_hashtable.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_pystate.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#endif
#pragma GCC diagnostic pop
#undef Py_BUILD_CORE

/* ---- references on the stack of a frame: from 3.14 on, tagged ---- */

#if PY_VERSION_HEX >= 0x030E0000
typedef _PyStackRef StackRef;

static inline PyObject *stack_ref_get(StackRef reference)
{
    return PyStackRef_IsNull(reference) ? NULL : PyStackRef_AsPyObjectBorrow(reference);
}

/* Takes over the reference to `object`, which may be NULL. */
static inline StackRef stack_ref_make(PyObject *object)
{
    return object ? PyStackRef_FromPyObjectSteal(object) : PyStackRef_NULL;
}

#define stack_ref_release(reference) PyStackRef_XCLOSE(reference)
#else
typedef PyObject *StackRef;
#define stack_ref_get(reference) (reference)
#define stack_ref_make(object) (object)
#define stack_ref_release(reference) Py_XDECREF(reference)
#endif

/* ---- frames ---- */

typedef struct _PyInterpreterFrame Frame;

/* Borrowed; NULL for a frame that stands for C code. */
static inline PyCodeObject *frame_code(Frame const *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *code = stack_ref_get(frame->f_executable);
#else
    PyObject *code = (PyObject *)frame->f_code;
#endif
    return code && PyCode_Check(code) ? (PyCodeObject *)code : NULL;
}

/* Borrowed. */
static inline PyObject *frame_function(Frame const *frame)
{
#if PY_VERSION_HEX >= 0x030C0000
    return stack_ref_get(frame->f_funcobj);
#else
    return (PyObject *)frame->f_func;
#endif
}

/* 1: the frame of a call; 0: the frame of a generator, or a frame that outlived its call. */
static inline int frame_is_on_data_stack(Frame const *frame)
{
    return frame->owner == FRAME_OWNED_BY_THREAD;
}

/* Borrowed; NULL: unbound. The frame's variables come first, then its stack. */
static inline PyObject *frame_get(Frame const *frame, Py_ssize_t index)
{
    return stack_ref_get(frame->localsplus[index]);
}

/* Takes over the reference to `value`. The old value is released afterwards, which may run user code. */
static inline void frame_set(Frame *frame, Py_ssize_t index, PyObject *value)
{
    StackRef before = frame->localsplus[index];
    frame->localsplus[index] = stack_ref_make(value);
    stack_ref_release(before);
}

/* The first `count` variables, borrowed: in the frame itself, or in `room`. */
static inline PyObject *const *frame_arguments(Frame const *frame, int count, PyObject **room)
{
#if PY_VERSION_HEX >= 0x030E0000
    for (int i = 0; i < count; i++) {
        room[i] = frame_get(frame, i);
    }
    return room;
#else
    (void)count;
    (void)room;
    return frame->localsplus;
#endif
}

/* The number of variables and stack values that a suspended frame holds. */
static inline int frame_held(Frame const *frame)
{
#if PY_VERSION_HEX >= 0x030E0000
    return (int)(frame->stackpointer - frame->localsplus);
#else
    return frame->stacktop;
#endif
}

/* Lets a frame that has not started begin with `code` and its variables. Releases the previous code. */
static inline void frame_set_code(Frame *frame, PyCodeObject *code)
{
    PyCodeObject *before = frame_code(frame);
#if PY_VERSION_HEX >= 0x030E0000
    StackRef old = frame->f_executable;
    frame->f_executable = PyStackRef_FromPyObjectNew((PyObject *)code);
    frame->stackpointer = frame->localsplus + code->co_nlocalsplus;
    frame->instr_ptr = _PyCode_CODE(code);
    (void)before;
    PyStackRef_CLOSE(old);
#else
    frame->stacktop = code->co_nlocalsplus;
#if PY_VERSION_HEX >= 0x030D0000
    frame->f_executable = Py_NewRef((PyObject *)code);
    frame->instr_ptr = _PyCode_CODE(code);
#else
    frame->f_code = (PyCodeObject *)Py_NewRef((PyObject *)code);
    frame->prev_instr = _PyCode_CODE(code) - 1;
#endif
    Py_DECREF(before);
#endif
}

/* The position of a call's arguments in the calling frame; -1: not there. */
static inline Py_ssize_t frame_find_arguments(Frame const *frame, PyObject *const *args, Py_ssize_t count)
{
    PyCodeObject const *code = frame_code(frame);
    if (!code) {
        return -1;
    }
#if PY_VERSION_HEX >= 0x030E0000 /* the callee gets a copy of the topmost values */
    Py_ssize_t first = frame_held(frame) - count;
    if (first < code->co_nlocalsplus || first + count > code->co_nlocalsplus + code->co_stacksize) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (frame_get(frame, first + i) != args[i]) {
            return -1;
        }
    }
    return first;
#else
    PyObject *const *bottom = frame->localsplus + code->co_nlocalsplus;
    return args < bottom || args + count > bottom + code->co_stacksize ? -1 : args - frame->localsplus;
#endif
}

/* ---- frames on a thread's data stack ---- */

static inline Py_ssize_t frame_size(PyCodeObject const *code)
{
    return FRAME_SPECIALS_SIZE + code->co_nlocalsplus + code->co_stacksize;
}

/* Replaces the code of a frame that has not started and has `arguments` bound variables. Makes room on the data stack.
 * 0: there is no room. */
static inline int frame_swap_code(PyThreadState *thread, Frame *frame, PyCodeObject *code, int arguments)
{
    PyObject **top = (PyObject **)frame + frame_size(code);
    if (thread->datastack_top != (PyObject **)frame + frame_size(frame_code(frame))) {
        return 0;
    }
    if (top > thread->datastack_top) {
        if (top >= thread->datastack_limit) {
            return 0;
        }
        thread->datastack_top = top;
    }
    for (int i = arguments; i < code->co_nlocalsplus; i++) {
        frame->localsplus[i] = stack_ref_make(NULL);
    }
    frame_set_code(frame, code);
    return 1;
}

/* Frees a frame that never started. Nothing has seen it, so only its references have to be released. On 3.11 the caller
 * frees it. */
static inline void frame_abandon(PyThreadState *thread, Frame *frame)
{
#if PY_VERSION_HEX >= 0x030C0000
    for (int i = 0, held = frame_held(frame); i < held; i++) {
        stack_ref_release(frame->localsplus[i]);
    }
    Py_XDECREF(frame->f_locals);
    stack_ref_release(frame->f_funcobj);
#if PY_VERSION_HEX >= 0x030E0000
    stack_ref_release(frame->f_executable);
    _PyThreadState_PopFrame(thread, frame);
#else
    Py_DECREF(frame_code(frame));
    _PyStackChunk *chunk = thread->datastack_chunk, *previous = chunk->previous;
    if ((PyObject **)frame == &chunk->data[0]) { /* the first frame of its chunk */
        PyObjectArenaAllocator allocator;
        thread->datastack_top = &previous->data[previous->top];
        thread->datastack_chunk = previous;
        PyObject_GetArenaAllocator(&allocator);
        allocator.free(allocator.ctx, chunk, chunk->size);
        thread->datastack_limit = (PyObject **)(((char *)previous) + previous->size);
    } else {
        thread->datastack_top = (PyObject **)frame;
    }
#endif
#else
    (void)thread;
    (void)frame;
#endif
}

/* ---- threads ---- */

/* The innermost frame, or NULL. */
static inline Frame *thread_frame(PyThreadState const *thread)
{
#if PY_VERSION_HEX >= 0x030D0000
    return thread->current_frame;
#else
    return thread->cframe->current_frame;
#endif
}

/* Raises the recursion limit by this number of Python calls. */
static inline void thread_add_recursion(PyThreadState *thread, int calls)
{
#if PY_VERSION_HEX >= 0x030C0000
    thread->py_recursion_remaining += calls;
#else
    thread->recursion_remaining += calls;
#endif
}

/* The remaining room of the evaluator for nested calls, in a unit of the CPython version. */
static inline long thread_evaluator_room(PyThreadState const *thread)
{
#if PY_VERSION_HEX >= 0x030E0000
    char here;
    return (long)((uintptr_t)&here - ((_PyThreadStateImpl const *)thread)->c_stack_soft_limit);
#elif PY_VERSION_HEX >= 0x030C0000
    return thread->c_recursion_remaining;
#else
    (void)thread;
    return LONG_MAX;
#endif
}

/* 1: a trace function, a profile function or a garbage collection callback is running; none is part of the program. */
static inline int thread_is_outside_program(PyThreadState const *thread)
{
    return thread->tracing || thread->interp->gc.collecting;
}

/* Is a tool of sys.monitoring in use? From 3.12 on. */
enum { MONITORING_DEBUGGER = 0, MONITORING_COVERAGE = 1 };
static inline int thread_is_monitored(PyThreadState const *thread, int tool)
{
#if PY_VERSION_HEX >= 0x030C0000
    return thread->interp->monitoring_tool_names[tool] != NULL;
#else
    (void)thread;
    (void)tool;
    return 0;
#endif
}

/* The exception that is set, a new reference. */
static inline PyObject *exception_take(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Sets an exception. Takes over the reference. */
static inline void exception_set(PyObject *error)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

/* ---- code objects ---- */

#if PY_VERSION_HEX >= 0x030C0000
#define code_set_extra PyUnstable_Code_SetExtra
#define code_request_extra PyUnstable_Eval_RequestCodeExtraIndex
#else
#define code_set_extra _PyCode_SetExtra
#define code_request_extra _PyEval_RequestCodeExtraIndex
#endif

/* What code_set_extra stored, or NULL. */
static inline void *code_extra(PyCodeObject const *code, Py_ssize_t index)
{
    struct {
        Py_ssize_t size;
        void *extras[1];
    } const *extra = (void const *)code->co_extra; /* _PyCodeObjectExtra */
    return extra && extra->size > index ? extra->extras[index] : NULL;
}

/* ---- classes and weak references ---- */

/* The dict of a class, a new reference. */
static inline PyObject *type_dict(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyType_GetDict(type);
#else
    return Py_XNewRef(type->tp_dict);
#endif
}

/* A version number of the class: equal numbers mean equal lookups; 0: it has none. */
static inline unsigned int type_version(PyTypeObject const *type)
{
    return type->tp_version_tag;
}

/* The object behind a weak reference, borrowed; NULL once it is gone. (None has no weak references.) */
static inline PyObject *weakref_peek(PyObject *reference)
{
    PyObject *object = ((PyWeakReference *)reference)->wr_object;
    return object == Py_None ? NULL : object;
}

/* ---- dicts ---- */

static inline int dict_has_names_only(PyObject *dict)
{
    return DK_IS_UNICODE(((PyDictObject *)dict)->ma_keys);
}

/* From 3.13 on, attributes are stored in the inline values behind an instance's dict without notifying the dict. */
static inline int dict_tells_changes(PyObject const *dict)
{
#if PY_VERSION_HEX >= 0x030D0000
    return ((PyDictObject const *)dict)->ma_values == NULL;
#else
    (void)dict;
    return 1;
#endif
}

/* 3.11 counts the changes of all dicts consecutively, and a dict has the number of its last one. Later versions have dict
 * watchers instead. */
#if PY_VERSION_HEX >= 0x030C0000
#define HAS_DICT_WATCHERS 1
#else
#define HAS_DICT_WATCHERS 0
static inline uint64_t dict_version(PyObject const *dict)
{
    return ((PyDictObject const *)dict)->ma_version_tag;
}
#endif

#endif
