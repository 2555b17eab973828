/* The evaluation of a guard tree, with a short cut through it (guard_memo.c). */
#ifndef STATOR_GUARD_MEMO_H
#define STATOR_GUARD_MEMO_H

#include "guards.h"

/* 1: all guards hold; 0: one fails, without an exception unless it is an interrupt and the like. `locals` are borrowed, in the order of co_varnames. */
int stator_guards_hold(PyObject *tree, PyObject *const *locals, Py_ssize_t count, PyObject *function, Failure *failure);


void guard_memo_release(Memo *memo);

#endif
