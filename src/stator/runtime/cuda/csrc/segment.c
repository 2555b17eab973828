/* A segment of a program: launches and products one after the other, none of which allocates. Where all its tensors lie
 * at the addresses of the call before, the segment is recorded as a CUDA graph, and later calls with these addresses
 * launch the graph: the time of one launch instead of many. A graph reads and writes nothing but these tensors. */
#include "driver.h"
#include "tensor_address.h"

#include <stddef.h>

#define INLINE_TENSORS 64
#define RECORDINGS 2     /* of each segment: blocks of memory that calls take turns with */
#define MOST_ATTEMPTS 16 /* to record a segment whose addresses keep changing */
#define NON_BLOCKING 1   /* CU_STREAM_NON_BLOCKING */
#define CAPTURE_MODE_RELAXED 2

typedef struct {
    PyObject *callable, *names; /* names of the last arguments, or NULL */
    Py_ssize_t count;
    Py_ssize_t *tensors; /* their places among the arguments of the segment */
} Step;

typedef struct {
    void *graph;
    int launching; /* perhaps without the interpreter lock */
    void **addresses;
} Recording;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *held;  /* what the steps point to */
    Step *steps;
    Py_ssize_t step_count, count, most; /* of tensors; of the tensors of a step */
    Recording recordings[RECORDINGS];
    void **addresses; /* of the last call that was not a graph */
    int next, attempts, device, recordable;
} Segment;

static int recording; /* in some thread, with the interpreter lock */
static void *streams[STATOR_MOST_DEVICES];

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static int run_steps(Segment const *self, PyObject *const *args)
{
    PyObject *inline_arguments[INLINE_TENSORS];
    PyObject **arguments = inline_arguments;
    int failed = 0;
    if (self->most > INLINE_TENSORS && !(arguments = PyMem_Malloc(sizeof *arguments * (size_t)self->most))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t at = 0; !failed && at < self->step_count; ++at) {
        Step const *step = &self->steps[at];
        for (Py_ssize_t i = 0; i < step->count; ++i) {
            arguments[i] = args[step->tensors[i]];
        }
        Py_ssize_t named = step->names ? PyTuple_GET_SIZE(step->names) : 0;
        PyObject *result = PyObject_Vectorcall(step->callable, arguments, (size_t)(step->count - named), step->names);
        failed = !result;
        Py_XDECREF(result);
    }
    if (arguments != inline_arguments) {
        PyMem_Free(arguments);
    }
    return failed ? -1 : 0;
}

/* ---- recordings -------------------------------------------------------------------------------------------------- */

/* 0: one is no tensor of the device, or has no memory. */
static int read_addresses(Segment const *self, PyObject *const *args, void **addresses)
{
    for (Py_ssize_t i = 0; i < self->count; ++i) {
        char const *impl = stator_cuda_is_tensor(args[i]) ? stator_tensor_impl(&stator_cuda_layout, args[i]) : NULL;
        if (!impl || !(addresses[i] = stator_tensor_data(&stator_cuda_layout, impl))) {
            return 0;
        }
    }
    return 1;
}

static void *private_stream(int device)
{
    if (!streams[device] && stator_cuda.create_stream(&streams[device], NON_BLOCKING)) {
        streams[device] = NULL;
    }
    return streams[device];
}

static void drop(Recording *recording)
{
    if (recording->graph) {
        stator_cuda.destroy_exec(recording->graph); /* the driver waits for a launch that runs */
        recording->graph = NULL;
    }
}

/* With the device's context, on a stream that is not captured, after a run with these addresses. What cannot be recorded
 * goes on running step by step. */
static void record(Segment *self, PyObject *const *args, void *const *addresses)
{
    Recording *place = &self->recordings[self->next];
    int mode = CAPTURE_MODE_RELAXED; /* another thread may capture a CUDA graph of its own */
    void *stream, *graph = NULL, *made = NULL;
    if (recording || place->launching) {
        return;
    }
    recording = 1;
    stator_cuda.exchange_capture_mode(&mode);
    if ((stream = private_stream(self->device)) && !stator_cuda.begin_capture(stream, CAPTURE_MODE_RELAXED)) {
        stator_cuda_begin_recording(stream);
        int failed = run_steps(self, args) < 0;
        failed |= stator_cuda_end_recording();
        failed |= stator_cuda.end_capture(stream, &graph) != 0;
        self->recordable = !failed && !stator_cuda.instantiate(&made, graph, 0);
        PyErr_Clear(); /* the steps have run before */
    }
    stator_cuda.exchange_capture_mode(&mode);
    recording = 0;
    if (graph) {
        stator_cuda.destroy_graph(graph);
    }
    if (self->recordable && made && !place->launching) { /* by another thread, since the check above */
        drop(place);
        place->graph = made;
        memcpy(place->addresses, addresses, sizeof *addresses * (size_t)self->count);
        self->next = (self->next + 1) % RECORDINGS;
    } else if (made) {
        stator_cuda.destroy_exec(made);
    }
}

static int is_captured(void *stream)
{
    int status = 0;
    return stator_cuda.is_capturing(stream, &status) || status;
}

/* With the device's context. -1: an exception. */
static int run(Segment *self, PyObject *const *args, void **addresses, void *stream)
{
    size_t size = sizeof *addresses * (size_t)self->count;
    int known = self->recordable && read_addresses(self, args, addresses) && !is_captured(stream);
    for (int i = 0; known && i < RECORDINGS; ++i) {
        Recording *found = &self->recordings[i];
        if (found->graph && !found->launching && !memcmp(found->addresses, addresses, size)) {
            found->launching = 1;
            CudaResult code;
            Py_BEGIN_ALLOW_THREADS
            code = stator_cuda.launch_graph(found->graph, stream);
            Py_END_ALLOW_THREADS
            found->launching = 0;
            return code ? (stator_cuda_error(code, "launching a graph that starts with", PyTuple_GET_ITEM(self->held, 0)), -1) : 0;
        }
    }
    if (run_steps(self, args) < 0) {
        return -1;
    }
    if (!known) {
        return 0;
    }
    int again = !memcmp(self->addresses, addresses, size);
    memcpy(self->addresses, addresses, size);
    if (again && self->attempts++ < MOST_ATTEMPTS) {
        record(self, args, addresses);
    }
    return 0;
}

static PyObject *Segment_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Segment *self = (Segment *)callable;
    void *inline_addresses[INLINE_TENSORS], **addresses = inline_addresses, *current = NULL, *stream;
    if (PyVectorcall_NARGS(nargsf) != self->count || (kwnames && PyTuple_GET_SIZE(kwnames))) {
        return PyErr_Format(PyExc_TypeError, "a segment takes %zd tensors", self->count);
    }
    if (!self->recordable || stator_cuda_recording_stream()) {
        return run_steps(self, args) < 0 ? NULL : Py_NewRef(Py_None);
    }
    void *context = stator_cuda_context(self->device);
    if (!context || stator_cuda_stream(self->device, &stream) < 0) {
        return NULL;
    }
    if (self->count > INLINE_TENSORS && !(addresses = PyMem_Malloc(sizeof *addresses * (size_t)self->count))) {
        return PyErr_NoMemory();
    }
    CudaResult code = stator_cuda.current_context(&current);
    int push = !code && current != context;
    code = push ? stator_cuda.push_context(context) : code;
    int failed = code ? run_steps(self, args) : run(self, args, addresses, stream);
    if (push && !code) {
        stator_cuda.pop_context(&current);
    }
    if (addresses != inline_addresses) {
        PyMem_Free(addresses);
    }
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

static int add_step(Segment *self, PyObject *row, Step *step)
{
    PyObject *tensors;
    if (!PyArg_ParseTuple(row, "OO!O!", &step->callable, &PyTuple_Type, &tensors, &PyTuple_Type, &step->names)) {
        return -1;
    }
    step->count = PyTuple_GET_SIZE(tensors);
    if (PyTuple_GET_SIZE(step->names) > step->count) {
        PyErr_SetString(PyExc_ValueError, "a step names more arguments than it has");
        return -1;
    }
    step->names = PyTuple_GET_SIZE(step->names) ? step->names : NULL;
    step->tensors = PyMem_Calloc((size_t)step->count + 1, sizeof *step->tensors);
    if (!step->tensors) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < step->count; ++i) {
        step->tensors[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(tensors, i));
        if (step->tensors[i] < 0 || step->tensors[i] >= self->count) {
            PyErr_SetString(PyExc_ValueError, "a step of a segment takes a tensor that the segment does not have");
            return -1;
        }
    }
    self->most = step->count > self->most ? step->count : self->most;
    self->recordable &= Py_IS_TYPE(step->callable, &StatorCudaKernelType) || Py_IS_TYPE(step->callable, &StatorProductType);
    return 0;
}

static int add_steps(Segment *self, PyObject *rows)
{
    self->step_count = PyTuple_GET_SIZE(rows);
    self->steps = PyMem_Calloc((size_t)self->step_count + 1, sizeof *self->steps);
    self->addresses = PyMem_Calloc((RECORDINGS + 1) * (size_t)(self->count + 1), sizeof *self->addresses);
    if (!self->steps || !self->addresses) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < RECORDINGS; ++i) {
        self->recordings[i].addresses = self->addresses + (i + 1) * (self->count + 1);
    }
    for (Py_ssize_t i = 0; i < self->step_count; ++i) {
        if (add_step(self, PyTuple_GET_ITEM(rows, i), &self->steps[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *Segment_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "device", "count", "steps", NULL};
    PyObject *name, *rows;
    Py_ssize_t count;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UinO!", names, &name, &device, &count, &PyTuple_Type, &rows)) {
        return NULL;
    }
    if (count < 0 || device < 0 || device >= STATOR_MOST_DEVICES) {
        PyErr_SetString(PyExc_ValueError, "a segment has tensors of one device");
        return NULL;
    }
    Segment *self = (Segment *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->vectorcall = Segment_call;
    self->held = PyTuple_Pack(2, name, rows);
    self->count = count;
    self->device = device;
    self->recordable = stator_cuda_layout.valid && stator_cuda.launch_graph != NULL;
    if (!self->held || add_steps(self, rows) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void Segment_dealloc(PyObject *object)
{
    Segment *self = (Segment *)object;
    for (int i = 0; i < RECORDINGS; ++i) {
        drop(&self->recordings[i]);
    }
    for (Py_ssize_t i = 0; self->steps && i < self->step_count; ++i) {
        PyMem_Free(self->steps[i].tensors);
    }
    PyMem_Free(self->steps);
    PyMem_Free(self->addresses);
    Py_XDECREF(self->held);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject StatorSegmentType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._cuda.Segment",
    .tp_doc = PyDoc_STR("Segment(name, device, count, steps): call it with `count` tensors to run the steps, which are (callable, places "
                        "of its tensors, names of the last ones), or a graph of them."),
    .tp_basicsize = sizeof(Segment),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Segment, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = Segment_new,
    .tp_dealloc = Segment_dealloc,
};
