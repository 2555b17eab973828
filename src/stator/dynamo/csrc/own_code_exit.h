/* The exit from a frame's own code at a graph break (own_code_exit.c). */
#ifndef STATOR_OWN_CODE_EXIT_H
#define STATOR_OWN_CODE_EXIT_H

#include "cpython_compat.h"

typedef struct OwnCodeExit {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *to; /* the Continuation */
    int calls;    /* in which only the program's own code ran behind the exit; below 0: something compiled ran */
} OwnCodeExit;

/* Whether calls behind the exit are counted. `exit` may be NULL. */
int stator_exit_is_watched(OwnCodeExit const *exit);
/* Note a call behind the exit. `own`: only the program's own code ran in it. */
void stator_exit_ended(OwnCodeExit *exit, int own);
/* Note on a Pending that it comes from this exit (continuation.c). */
void stator_note_exit(PyObject *pending, OwnCodeExit *exit);

#endif
