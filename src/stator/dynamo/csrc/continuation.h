/* Going on behind a graph break (continuation.c). */
#ifndef STATOR_CONTINUATION_H
#define STATOR_CONTINUATION_H

#include "cpython_compat.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* goes on behind the break; without its closure, if its code has free variables */
    PyObject *cache;    /* Cache of that function; NULL: it runs as it is */
    PyObject *callback; /* compiles the frames that start while the function runs as it is; NULL: nothing is compiled */
    PyObject *returned; /* called without arguments when the function has returned, as it is; or NULL */
    int cells;          /* so many that each call brings are its closure */
    PyObject *join; /* this frame called another one that broke: (self, *those of the inner frames) -> the Continuation
                       that runs them all; NULL: it called none */
    PyObject *joined; /* dict: that, by those of the inner frames */
    PyObject *weakrefs;
} Continuation;

/* A call that was not made yet. It owns the values: cells of the closure first, then the arguments. */
typedef struct {
    PyObject_VAR_HEAD
    Continuation *to;
    PyObject *inner; /* Pending of the frame that this one called, which gives the result of the call; or NULL */
    PyObject *values[1];
} Pending;

/* Takes what emitted code returned (or NULL) and gives what the frame returns: runs what is to run behind its breaks. */
PyObject *stator_go_on(PyObject *result);

#endif
