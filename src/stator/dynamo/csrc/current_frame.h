/* Access to the running frame (current_frame.c). */
#ifndef STATOR_CURRENT_FRAME_H
#define STATOR_CURRENT_FRAME_H

#include "cpython_compat.h"

void stator_take_own_cells(void);
void stator_caller_forgets(PyObject *const *args, Py_ssize_t count);

#endif
