/* Loads the CUDA driver, and machine code into it. The driver is opened at first use and never closed; modules are never
 * unloaded, because graphs of launches may hold their functions. */
#include "driver.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define SHARED_WITHOUT_CONSENT (48 << 10) /* bytes of dynamic shared memory that every function may use */
#define MAX_DYNAMIC_SHARED_SIZE 8         /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
#define CAPTURE_MODE_RELAXED 2            /* CU_STREAM_CAPTURE_MODE_RELAXED */

CudaDriver stator_cuda;
static void *contexts[STATOR_MOST_DEVICES];

static struct {
    char const *name;
    size_t place;
} const symbols[] = {
    {"cuInit", offsetof(CudaDriver, init)},
    {"cuGetErrorName", offsetof(CudaDriver, error_name)},
    {"cuGetErrorString", offsetof(CudaDriver, error_text)},
    {"cuDeviceGet", offsetof(CudaDriver, device)},
    {"cuDevicePrimaryCtxRetain", offsetof(CudaDriver, retain_context)},
    {"cuCtxGetCurrent", offsetof(CudaDriver, current_context)},
    {"cuCtxPushCurrent_v2", offsetof(CudaDriver, push_context)},
    {"cuCtxPopCurrent_v2", offsetof(CudaDriver, pop_context)},
    {"cuThreadExchangeStreamCaptureMode", offsetof(CudaDriver, exchange_capture_mode)},
    {"cuModuleLoadData", offsetof(CudaDriver, load_module)},
    {"cuModuleGetFunction", offsetof(CudaDriver, function)},
    {"cuFuncSetAttribute", offsetof(CudaDriver, set_attribute)},
    {"cuLaunchKernel", offsetof(CudaDriver, launch)},
    {"cuStreamCreate", offsetof(CudaDriver, create_stream)},
    {"cuStreamBeginCapture_v2", offsetof(CudaDriver, begin_capture)},
    {"cuStreamEndCapture", offsetof(CudaDriver, end_capture)},
    {"cuStreamIsCapturing", offsetof(CudaDriver, is_capturing)},
    {"cuGraphInstantiateWithFlags", offsetof(CudaDriver, instantiate)},
    {"cuGraphLaunch", offsetof(CudaDriver, launch_graph)},
    {"cuGraphDestroy", offsetof(CudaDriver, destroy_graph)},
    {"cuGraphExecDestroy", offsetof(CudaDriver, destroy_exec)},
};

void *stator_cuda_error(CudaResult code, char const *doing, PyObject *kernel)
{
    char const *name = NULL, *text = NULL;
    stator_cuda.error_name(code, &name);
    stator_cuda.error_text(code, &text);
    return PyErr_Format(PyExc_RuntimeError, "%s kernel %U failed: %s (%s, CUDA error %d)", doing, kernel,
                        text ? text : "unknown error", name ? name : "?", code);
}

/* open_driver(path, stream_library): replaces a driver that was opened before. */
static PyObject *open_driver(PyObject *module, PyObject *args)
{
    char const *path, *stream_library;
    if (!PyArg_ParseTuple(args, "ss", &path, &stream_library)) {
        return NULL;
    }
    CudaDriver found = {0};
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return PyErr_Format(PyExc_RuntimeError, "the CUDA driver cannot be loaded: %s", dlerror());
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; ++i) {
        void *function = dlsym(library, symbols[i].name);
        if (!function) {
            return PyErr_Format(PyExc_RuntimeError, "the CUDA driver %s has no function %s", path, symbols[i].name);
        }
        memcpy((char *)&found + symbols[i].place, &function, sizeof function);
    }
    void *torch = dlopen(stream_library, RTLD_NOW | RTLD_NOLOAD); /* only if torch has loaded it */
    void *current_stream = torch ? dlsym(torch, "aoti_torch_get_current_cuda_stream") : NULL;
    memcpy(&found.current_stream, &current_stream, sizeof current_stream);
    CudaResult code = found.init(0);
    if (code) {
        char const *text = NULL;
        found.error_text(code, &text);
        return PyErr_Format(PyExc_RuntimeError, "the CUDA driver does not start: %s", text ? text : "unknown error");
    }
    stator_cuda = found;
    memset(contexts, 0, sizeof contexts);
    return PyBool_FromLong(current_stream != NULL);
}

void *stator_cuda_context(int device)
{
    int handle;
    if (!stator_cuda.launch) {
        PyErr_SetString(PyExc_RuntimeError, "stator.runtime._cuda.open_driver was not called");
        return NULL;
    }
    if (device < 0 || device >= STATOR_MOST_DEVICES) {
        return PyErr_Format(PyExc_ValueError, "there is no CUDA device %d", device);
    }
    if (!contexts[device]) { /* never released: torch uses it as long as the process lives */
        CudaResult code = stator_cuda.device(&handle, device);
        code = code ? code : stator_cuda.retain_context(&contexts[device], handle);
        if (code) {
            contexts[device] = NULL;
            return PyErr_Format(PyExc_RuntimeError, "CUDA device %d cannot be used (CUDA error %d)", device, code);
        }
    }
    return contexts[device];
}

static CudaResult load(char const *image, char const *name, int shared, void **function)
{
    void *module = NULL;
    CudaResult code = stator_cuda.load_module(&module, image);
    code = code ? code : stator_cuda.function(function, module, name);
    if (!code && shared > SHARED_WITHOUT_CONSENT) {
        code = stator_cuda.set_attribute(*function, MAX_DYNAMIC_SHARED_SIZE, shared);
    }
    return code;
}

/* load_function(image, name, shared, device) -> address of the function in the device's primary context */
static PyObject *load_function(PyObject *module, PyObject *args)
{
    Py_buffer image;
    PyObject *name;
    int shared, device, mode = CAPTURE_MODE_RELAXED;
    if (!PyArg_ParseTuple(args, "y*Uii", &image, &name, &shared, &device)) {
        return NULL;
    }
    char const *symbol = PyUnicode_AsUTF8(name);
    void *context = symbol ? stator_cuda_context(device) : NULL, *function = NULL;
    CudaResult code = 0;
    if (context && !(code = stator_cuda.push_context(context))) {
        /* A launch during the capture of a CUDA graph may need a function that is not loaded yet. */
        stator_cuda.exchange_capture_mode(&mode);
        code = load(image.buf, symbol, shared, &function);
        stator_cuda.exchange_capture_mode(&mode);
        stator_cuda.pop_context(&context);
    }
    PyBuffer_Release(&image);
    if (code) {
        return stator_cuda_error(code, "loading", name);
    }
    return function ? PyLong_FromVoidPtr(function) : NULL;
}

static PyMethodDef methods[] = {
    {"open_driver", open_driver, METH_VARARGS,
     PyDoc_STR("open_driver(path, stream_library) -> whether that library of torch, if loaded, tells current streams")},
    {"load_function", load_function, METH_VARARGS,
     PyDoc_STR("load_function(image, name, shared, device) -> address: load machine code on a device")},
    {"open_products", stator_cuda_open_products, METH_O,
     PyDoc_STR("open_products(path) -> whether this library, if torch has loaded it, multiplies as cuBLASLt does")},
    {"install", stator_cuda_install, METH_VARARGS,
     PyDoc_STR("install(layout_tuple_or_None, Tensor, data_ptr, get_device, current_stream)")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "stator.runtime._cuda",
    .m_doc = PyDoc_STR("Loads and launches machine code on NVIDIA GPUs."),
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__cuda(void)
{
    int ready = PyType_Ready(&StatorCudaKernelType) == 0 && PyType_Ready(&StatorProductType) == 0
                && PyType_Ready(&StatorSegmentType) == 0;
    PyObject *module = ready ? PyModule_Create(&module_definition) : NULL;
    if (module && (PyModule_AddObjectRef(module, "Kernel", (PyObject *)&StatorCudaKernelType) < 0
                   || PyModule_AddObjectRef(module, "Product", (PyObject *)&StatorProductType) < 0
                   || PyModule_AddObjectRef(module, "Segment", (PyObject *)&StatorSegmentType) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
