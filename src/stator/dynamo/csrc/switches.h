/* Running originals for a while, and the room on the C stack (switches.c). */
#ifndef STATOR_SWITCHES_H
#define STATOR_SWITCHES_H

#include "cpython_compat.h"

extern __thread int stator_entries_off; /* above 0: entries in this thread run their originals */

/* 1: compiled functions called now in this thread and context run their originals. May run Python code for a new trace
 * function; never leaves an exception. */
int stator_runs_originals(void);
/* 1: fewer than `needed` bytes are left of this thread's C stack. Compiled functions use some of it where eager Python
 * uses none, so a deep recursion, allowed by sys.setrecursionlimit, must be stopped before the stack is used up. */
int stator_stack_is_low(size_t needed);
#define STATOR_STACK_FOR_CALLS (128 * 1024)
#define STATOR_STACK_FOR_COMPILING (1024 * 1024)

#endif
