/* See torch_c.h. */
#include "torch_c.h"

#ifndef _WIN32
#include <dlfcn.h>
#endif

StatorTorchC stator_torch_c;

void stator_find_torch_c(void)
{
#ifndef _WIN32
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *python = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
    void *empty_strided = library ? dlsym(library, "aoti_torch_empty_strided") : NULL;
    void *reinterpret = library ? dlsym(library, "aoti_torch__reinterpret_tensor") : NULL;
    void *delete_tensor = library ? dlsym(library, "aoti_torch_delete_tensor_object") : NULL;
    void *wrap = python ? dlsym(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE") : NULL;
    if (delete_tensor && wrap) {
        memcpy(&stator_torch_c.empty_strided, &empty_strided, sizeof empty_strided);
        memcpy(&stator_torch_c.reinterpret, &reinterpret, sizeof reinterpret);
        memcpy(&stator_torch_c.delete_tensor, &delete_tensor, sizeof delete_tensor);
        memcpy(&stator_torch_c.wrap, &wrap, sizeof wrap);
    }
#endif
}
