/* Detects changes of dicts: by a dict watcher, which CPython calls before it changes or frees a dict; on 3.11 by the
 * dict's version. A state ends at the first change, so a frequently changed dict costs one call of the watcher. */
#include "dict_states.h"

#if HAS_DICT_WATCHERS

static PyInterpreterState *interpreter = NULL; /* the interpreter that owns the watcher, or NULL */
static int watcher;
static _Py_hashtable_t *states; /* DictState by the address of its dict */

static void stop_watching(PyObject *dict)
{
    if (interpreter == PyInterpreterState_Get()) {
        PyDict_Unwatch(watcher, dict);
    }
}

static int before_change(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    (void)event, (void)key, (void)value;
    DictState *state = _Py_hashtable_steal(states, dict);
    if (state) {
        state->dict = NULL;
    }
    stop_watching(dict);
    return 0;
}

int dict_states_ready(void)
{
    states = _Py_hashtable_new(_Py_hashtable_hash_ptr, _Py_hashtable_compare_direct);
    if (!states) {
        PyErr_NoMemory();
        return -1;
    }
    watcher = PyDict_AddWatcher(before_change);
    if (watcher >= 0) {
        interpreter = PyInterpreterState_Get();
    }
    PyErr_Clear(); /* CPython has 8 watchers: if others took them all, no dict has a state */
    return 0;
}

/* Dicts and watchers belong to one interpreter: dicts of another interpreter are not watched. */
DictState *dict_state_take(PyObject *dict)
{
    if (interpreter != PyInterpreterState_Get() || !dict_tells_changes(dict)) {
        return NULL;
    }
    DictState *state = _Py_hashtable_get(states, dict);
    if (state) {
        state->users++;
        return state;
    }
    state = PyMem_Malloc(sizeof *state);
    if (!state || _Py_hashtable_set(states, dict, state) < 0) {
        PyMem_Free(state);
        return NULL;
    }
    *state = (DictState){dict, 1};
    if (PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        dict_state_release(state);
        return NULL;
    }
    return state;
}

void dict_state_release(DictState *state)
{
    if (--state->users > 0) {
        return;
    }
    if (state->dict) {
        _Py_hashtable_steal(states, state->dict);
        stop_watching(state->dict);
    }
    PyMem_Free(state);
}

#else

int dict_states_ready(void)
{
    return 0;
}

DictState *dict_state_take(PyObject *dict)
{
    DictState *state = PyMem_Malloc(sizeof *state);
    if (state) {
        *state = (DictState){dict, dict_version(dict), 1};
    }
    return state;
}

void dict_state_release(DictState *state)
{
    PyMem_Free(state);
}

#endif
