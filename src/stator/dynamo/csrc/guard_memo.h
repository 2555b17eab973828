/* The evaluation of a guard tree, with its memo (guard_memo.c). */
#ifndef STATOR_GUARD_MEMO_H
#define STATOR_GUARD_MEMO_H

#include "guards.h"

/* 1: all guards hold; 0: a guard fails, without an exception except for interrupts such as KeyboardInterrupt. `locals`
 * are borrowed, in the order of co_varnames. */
int stator_guards_hold(PyObject *tree, PyObject *const *locals, Py_ssize_t count, PyObject *function, Failure *failure);


void guard_memo_release(Memo *memo);

#endif
