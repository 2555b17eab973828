/* torch's thread-wide and process-wide state (state.c). */
#ifndef STATOR_STATE_H
#define STATOR_STATE_H

#include "cpython_compat.h"

typedef struct {
    uint64_t dispatch_keys[2];
    int64_t mode_stack;
    int32_t num_threads;
    uint8_t autograd, default_dtype, torch_function, deterministic;
} StateSnapshot;

int stator_state_ready(void);
void stator_state_read(StateSnapshot *snapshot);
int stator_state_is(StateSnapshot const *expected);

#endif
