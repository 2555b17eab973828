/* Reads torch's thread-wide state (grad mode, dispatch keys, modes, default dtype) in a few ns by functions that
 * libtorch exports. dynamo/guards/global_state.py finds their addresses and verifies them by experiment. */
#include "state.h"

#include "native.h"

#include <dlfcn.h>

typedef struct {
    void *(*autograd_state)(void);
    int autograd_offset; /* of the byte that holds the mode bits */
    uint8_t autograd_mask;
    int8_t (*default_dtype)(void);
    int8_t (*torch_function)(void);
    int64_t (*mode_stack)(void);
    void *context; /* at::globalContext(), one for the process */
    uint8_t (*deterministic)(void *);
    int (*num_threads)(void);
    uint64_t functionalities; /* mask of the functionality bits of a dispatch key set, without the backend bits */
    void *keys_library;
    char keys_symbol[128];
} Probes;

static Probes probes;
static int ready = 0;
/* the address of a thread-local variable of libc10, in this thread */
static __thread uint64_t *dispatch_keys = NULL;

static uint64_t *find_dispatch_keys(void)
{
    if (!dispatch_keys) {
        dispatch_keys = dlsym(probes.keys_library, probes.keys_symbol);
    }
    return dispatch_keys;
}

int stator_state_ready(void)
{
    return ready;
}

void stator_state_read(StateSnapshot *snapshot)
{
    memset(snapshot, 0, sizeof *snapshot);
    uint64_t *keys = find_dispatch_keys();
    if (keys) {
        snapshot->dispatch_keys[0] = keys[0];
        /* Excluding a backend has no effect: torch takes only functionalities out of a key set. And up to torch 2.12 the
         * backend bits stay set after a guard that excluded them ends. */
        snapshot->dispatch_keys[1] = keys[1] & probes.functionalities;
    }
    snapshot->mode_stack = probes.mode_stack();
    snapshot->num_threads = probes.num_threads();
    snapshot->autograd = ((uint8_t *)probes.autograd_state())[probes.autograd_offset] & probes.autograd_mask;
    snapshot->default_dtype = (uint8_t)probes.default_dtype();
    snapshot->torch_function = (uint8_t)probes.torch_function();
    snapshot->deterministic = probes.deterministic(probes.context) ? 1 : 0;
}

int stator_state_is(StateSnapshot const *expected)
{
    StateSnapshot now;
    stator_state_read(&now);
    return memcmp(&now, expected, sizeof now) == 0;
}

static PyObject *set_state_probes(PyObject *Py_UNUSED(self), PyObject *args)
{
    unsigned long long autograd, dtype, function, stack, context, deterministic, threads, functionalities, library;
    unsigned char mask;
    int offset;
    const char *symbol;
    if (!PyArg_ParseTuple(args, "KibKKKKKKKKs", &autograd, &offset, &mask, &dtype, &function, &stack, &context, &deterministic,
                          &threads, &functionalities, &library, &symbol)) {
        return NULL;
    }
    ready = 0;
    dispatch_keys = NULL;
    memset(&probes, 0, sizeof probes);
    probes.autograd_state = (void *(*)(void))(uintptr_t)autograd;
    probes.autograd_offset = offset;
    probes.autograd_mask = mask;
    probes.default_dtype = (int8_t(*)(void))(uintptr_t)dtype;
    probes.torch_function = (int8_t(*)(void))(uintptr_t)function;
    probes.mode_stack = (int64_t(*)(void))(uintptr_t)stack;
    probes.context = ((void *(*)(void))(uintptr_t)context)();
    probes.deterministic = (uint8_t(*)(void *))(uintptr_t)deterministic;
    probes.num_threads = (int (*)(void))(uintptr_t)threads;
    probes.functionalities = functionalities;
    probes.keys_library = (void *)(uintptr_t)library;
    if (strlen(symbol) >= sizeof probes.keys_symbol) {
        PyErr_SetString(PyExc_ValueError, "symbol name too long");
        return NULL;
    }
    strcpy(probes.keys_symbol, symbol);
    if (!find_dispatch_keys()) {
        PyErr_Format(PyExc_LookupError, "no symbol %s", symbol);
        return NULL;
    }
    ready = 1;
    Py_RETURN_NONE;
}

static PyObject *clear_state_probes(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    ready = 0;
    Py_RETURN_NONE;
}

static PyObject *read_state(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    if (!ready) {
        Py_RETURN_NONE;
    }
    StateSnapshot now;
    stator_state_read(&now);
    return Py_BuildValue("{sKsKsLsisisisisi}", "included", (unsigned long long)now.dispatch_keys[0], "excluded",
                         (unsigned long long)now.dispatch_keys[1], "mode_stack", (long long)now.mode_stack, "num_threads",
                         (int)now.num_threads, "autograd", (int)now.autograd, "default_dtype", (int)now.default_dtype,
                         "torch_function", (int)now.torch_function, "deterministic", (int)now.deterministic);
}

static PyMethodDef methods[] = {
    {"set_state_probes", set_state_probes, METH_VARARGS, "Install the addresses of libtorch's state functions."},
    {"clear_state_probes", clear_state_probes, METH_NOARGS, "Forget them: state guards then use Python predicates."},
    {"read_state", read_state, METH_NOARGS, "The state as raw numbers, or None when no probes are installed."},
    {0},
};

int stator_state_add_to(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
