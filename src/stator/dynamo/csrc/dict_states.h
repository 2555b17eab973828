/* A DictState tells whether a dict was changed or freed since the state was taken (dict_states.c). */
#ifndef STATOR_DICT_STATES_H
#define STATOR_DICT_STATES_H

#include "cpython_compat.h"

typedef struct {
    PyObject *dict; /* borrowed; with watchers NULL after a change or the dict's death */
#if !HAS_DICT_WATCHERS
    uint64_t version;
#endif
    int users;
} DictState;

/* Release with dict_state_release. NULL, without an exception, if changes of this dict cannot be detected. */
DictState *dict_state_take(PyObject *dict);
void dict_state_release(DictState *state);
int dict_states_ready(void);

/* Whether the dict is unchanged. Without watchers the caller must know that it was not freed. */
static inline int dict_state_holds(DictState const *state)
{
#if HAS_DICT_WATCHERS
    return state->dict != NULL;
#else
    return dict_version(state->dict) == state->version;
#endif
}

#endif
