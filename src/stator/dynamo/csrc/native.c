/* The extension module stator.dynamo._native. Each part adds its own types and functions. */
#include "native.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "stator.dynamo._native",
    .m_doc = "Guard trees, the entry of compiled functions, and the frame hook.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module
        && (stator_guards_add_to(module) < 0 || stator_state_add_to(module) < 0 || stator_cache_add_to(module) < 0
            || stator_entry_add_to(module) < 0 || stator_continuation_add_to(module) < 0
            || stator_own_code_exit_add_to(module) < 0
            || stator_deferred_exceptions_add_to(module) < 0 || stator_hook_add_to(module) < 0
            || stator_switches_add_to(module) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
