/* A short cut through a guard tree: what a successful evaluation found, and what has to be looked at to know that it would
 * find the same again (guard_memo.c). */
#ifndef STATOR_GUARD_MEMO_H
#define STATOR_GUARD_MEMO_H

#include "guards.h"

/* -1: no memo, or something is not as it was: evaluate the tree. Else whether the guards hold. */
int stator_memo_holds(GuardTree *tree, Run *run);
/* To be called after an evaluation in which all guards held. Never leaves an exception. */
void stator_memo_after_success(GuardTree *tree, Run *run);
void stator_memo_release(Memo *memo);

#endif
