/* A DictState stands for what a dict holds at one time: it tells whether the dict was changed or freed since (dict_states.c). */
#ifndef STATOR_DICT_STATES_H
#define STATOR_DICT_STATES_H

#include "cpython_compat.h"

typedef struct {
    PyObject *dict; /* borrowed; with watchers NULL once the dict was changed or freed */
#if !HAS_DICT_WATCHERS
    uint64_t version;
#endif
    int users;
} DictState;

/* To be given back with dict_state_release. NULL, without an exception: changes of this dict would not be noticed. */
DictState *dict_state_take(PyObject *dict);
void dict_state_release(DictState *state);
int dict_states_ready(void);

/* Is the dict as it was? Without watchers the caller must know that it was not freed. */
static inline int dict_state_holds(DictState const *state)
{
#if HAS_DICT_WATCHERS
    return state->dict != NULL;
#else
    return dict_version(state->dict) == state->version;
#endif
}

#endif
