/* A CUDA driver that records what it is asked to do, for tests without a GPU. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST 256

typedef struct { uint64_t function, grid[3], threads, shared, stream, context, parameters[16]; } Launch;

Launch fake_launches[MOST];
int fake_launch_count, fake_parameter_count, fake_module_count, fake_attribute, fake_fail, fake_capture_mode;
char fake_names[MOST][64];
uint64_t fake_module_context[MOST], fake_stream;
static __thread uint64_t stack[16];
static __thread int depth;

/* Work that a graph holds: a function and what it takes. */
typedef struct { void (*run)(void const *, uint64_t); char content[256]; } Work;
typedef struct { Work works[64]; int count; } Graph;
static Graph *captured;
static uint64_t captured_stream;
int fake_graphs, fake_graph_launches, fake_capturing, fake_refuse_graphs, fake_fail_graphs;

int fake_depth(void) { return depth; }
/* Whether the work was put off into the graph of a stream that is captured. */
int fake_put_off(uint64_t stream, void (*run)(void const *, uint64_t), void const *content, int size)
{
    if (!captured || stream != captured_stream) {
        return 0;
    }
    Work *work = &captured->works[captured->count++];
    work->run = run;
    memcpy(work->content, content, size);
    return 1;
}
int cuStreamCreate(uint64_t *stream, unsigned flags) { *stream = 9000 + flags; return 0; }
int cuStreamBeginCapture_v2(uint64_t stream, int mode)
{
    captured = calloc(1, sizeof *captured);
    captured_stream = stream;
    return mode != 2;
}
int cuStreamEndCapture(uint64_t stream, Graph **graph)
{
    *graph = captured;
    captured = NULL;
    return 0;
}
int cuStreamIsCapturing(uint64_t stream, int *status) { *status = fake_capturing; return 0; }
int cuGraphInstantiateWithFlags(Graph **exec, Graph *graph, unsigned long long flags)
{
    if (fake_refuse_graphs) {
        return 801;
    }
    ++fake_graphs;
    *exec = malloc(sizeof **exec);
    **exec = *graph;
    return 0;
}
int cuGraphLaunch(Graph *exec, uint64_t stream)
{
    if (fake_fail_graphs) {
        return 700;
    }
    ++fake_graph_launches;
    for (int i = 0; i < exec->count; ++i) {
        exec->works[i].run(exec->works[i].content, stream);
    }
    return 0;
}
int cuGraphDestroy(Graph *graph) { free(graph); return 0; }
int cuGraphExecDestroy(Graph *exec) { --fake_graphs; free(exec); return 0; }

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
static void note(void const *content, uint64_t stream)
{
    Launch *launch = &fake_launches[fake_launch_count++ % MOST];
    memcpy(launch, content, sizeof *launch);
    launch->stream = stream;
}
int cuLaunchKernel(uint64_t function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, uint64_t stream, void **parameters, void **extra)
{
    if (fake_fail || ty != 1 || tz != 1 || extra) {
        return 719;
    }
    Launch launch = {function, {x, y, z}, threads, shared, stream};
    cuCtxGetCurrent(&launch.context);
    for (int i = 0; i < fake_parameter_count; ++i) {
        launch.parameters[i] = *(uint64_t *)parameters[i];
    }
    if (!fake_put_off(stream, note, &launch, sizeof launch)) {
        note(&launch, stream);
    }
    return 0;
}
/* of torch */
int aoti_torch_get_current_cuda_stream(int32_t device, uint64_t *stream) { *stream = fake_stream + device; return 0; }
