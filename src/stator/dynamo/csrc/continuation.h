/* Resuming frames behind a graph break (continuation.c). */
#ifndef STATOR_CONTINUATION_H
#define STATOR_CONTINUATION_H

#include "cpython_compat.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* the resume function; without its closure, if its code has free variables */
    PyObject *cache;    /* Cache of that function; NULL: it is never compiled */
    PyObject *callback; /* frame hook callback while the function runs uncompiled; NULL: nothing is compiled */
    PyObject *returned; /* called without arguments when the uncompiled function has returned; or NULL */
    int cells;          /* number of cells that each call brings as the closure */
    PyObject *join; /* if this frame called another one that broke: (self, *inner Continuations) -> the Continuation that
                       resumes them all; NULL: no call */
    PyObject *joined; /* dict: joined Continuations by the inner Continuations */
    PyObject *last_inner, *last_joined; /* borrowed from `joined`: the last inner Continuation that was the only one */
    PyObject *weakrefs;
} Continuation;

/* A call that was not made yet. It owns the values: cells of the closure first, then the arguments. */
typedef struct {
    PyObject_VAR_HEAD
    Continuation *to;
    PyObject *inner; /* Pending of the called frame, whose result is the result of the call; or NULL */
    struct OwnCodeExit *exit; /* the exit from the program's own code that led here, or NULL */
    PyObject *values[1];
} Pending;

/* Takes the result of emitted code (or NULL) and returns the frame's result: runs the pending resume functions. */
PyObject *stator_go_on(PyObject *result);

#endif
