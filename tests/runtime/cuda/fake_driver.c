/* A CUDA driver that records what it is asked to do, for tests without a GPU. */
#include <stdint.h>
#include <string.h>

#define MOST 256

typedef struct { uint64_t function, grid[3], threads, shared, stream, context, parameters[16]; } Launch;

Launch fake_launches[MOST];
int fake_launch_count, fake_parameter_count, fake_module_count, fake_attribute, fake_fail, fake_capture_mode;
char fake_names[MOST][64];
uint64_t fake_module_context[MOST], fake_stream;
static __thread uint64_t stack[16];
static __thread int depth;

int fake_depth(void) { return depth; }

int cuInit(unsigned flags) { return 0; }
int cuGetErrorName(int code, char const **text) { *text = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int code, char const **text) { *text = "made to fail"; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return number > 1 ? 101 : 0; }
int cuDevicePrimaryCtxRetain(uint64_t *context, int device) { *context = 1000 + device; return 0; }
int cuCtxGetCurrent(uint64_t *context) { *context = depth ? stack[depth - 1] : 0; return 0; }
int cuCtxPushCurrent_v2(uint64_t context) { stack[depth++] = context; return 0; }
int cuCtxPopCurrent_v2(uint64_t *context) { *context = stack[--depth]; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = fake_capture_mode;
    fake_capture_mode = *mode;
    *mode = before;
    return 0;
}
int cuModuleLoadData(uint64_t *module, void const *image)
{
    if (memcmp(image, "\177ELF", 4) || fake_capture_mode != 2) {
        return 200;
    }
    cuCtxGetCurrent(&fake_module_context[fake_module_count]);
    *module = fake_module_count++;
    return 0;
}
int cuModuleGetFunction(uint64_t *function, uint64_t module, char const *name)
{
    strncpy(fake_names[module], name, 63);
    *function = 7000 + module;
    return 0;
}
int cuFuncSetAttribute(uint64_t function, int attribute, int value)
{
    fake_attribute = attribute == 8 ? value : -1;
    return 0;
}
int cuLaunchKernel(uint64_t function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, uint64_t stream, void **parameters, void **extra)
{
    if (fake_fail || ty != 1 || tz != 1 || extra) {
        return 719;
    }
    Launch *launch = &fake_launches[fake_launch_count++ % MOST];
    *launch = (Launch){function, {x, y, z}, threads, shared, stream};
    cuCtxGetCurrent(&launch->context);
    for (int i = 0; i < fake_parameter_count; ++i) {
        launch->parameters[i] = *(uint64_t *)parameters[i];
    }
    return 0;
}
/* of torch */
int aoti_torch_get_current_cuda_stream(int32_t device, uint64_t *stream) { *stream = fake_stream + device; return 0; }
