/* Products of matrices of half floats by cuBLASLt, without ATen between, which doubles the time of the host. A
 * Product is called like the operator of ATen that writes into `out`, and leaves to that operator what it cannot do.
 *
 * cuBLAS counts columns first. A matrix with rows one after the other is its transpose there, so the library computes
 * out^T = b^T a^T: its first matrix is b, its second one is a. */
#include "driver.h"
#include "tensor_address.h"

#include <dlfcn.h>
#include <stddef.h>

/* Numbers of cublasLt.h */
#define COMPUTE_FLOAT32 68
#define REAL_FLOAT32 0
#define DESC_TRANSPOSE_A 3
#define DESC_TRANSPOSE_B 4
#define DESC_EPILOGUE 7
#define DESC_BIAS_POINTER 8
#define EPILOGUE_BIAS 4
#define LAYOUT_BATCH_COUNT 5
#define LAYOUT_BATCH_STRIDE 6
#define PREFERENCE_WORKSPACE 1
#define PREFERENCE_REDUCTIONS 3
#define PREFERENCE_ALIGNMENT_A 5 /* then of B, C and D */
#define REDUCTION_IN_FLOAT32 2   /* partial sums of split products are never rounded to half floats */

#define MOST_WORKSPACE ((size_t)32 << 20)
#define WIDE 16 /* bytes of an access; kernels for other matrices round a product before they add a bias */
#define MOST_ALIGNMENT 256
#define SLOTS 1024 /* of plans; a power of two */
#define PROBES 8
#define CAPTURE_MODE_RELAXED 2

typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} Heuristic;

static struct {
    int (*create)(void **handle);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_set)(void *desc, int attribute, void const *value, size_t size);
    int (*desc_destroy)(void *desc);
    int (*layout_create)(void **made, int type, uint64_t rows, uint64_t columns, int64_t step);
    int (*layout_set)(void *layout, int attribute, void const *value, size_t size);
    int (*layout_destroy)(void *layout);
    int (*preference_create)(void **preference);
    int (*preference_set)(void *preference, int attribute, void const *value, size_t size);
    int (*preference_destroy)(void *preference);
    int (*choose)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted,
                  Heuristic *found, int *count);
    int (*multiply)(void *handle, void *desc, void const *alpha, void const *a, void *a_layout, void const *b,
                    void *b_layout, void const *beta, void const *c, void *c_layout, void *d, void *d_layout,
                    void const *algorithm, void *workspace, size_t workspace_size, void *stream);
} blas;

static struct {
    char const *name;
    size_t place;
} const symbols[] = {
    {"cublasLtCreate", offsetof(__typeof__(blas), create)},
    {"cublasLtMatmulDescCreate", offsetof(__typeof__(blas), desc_create)},
    {"cublasLtMatmulDescSetAttribute", offsetof(__typeof__(blas), desc_set)},
    {"cublasLtMatmulDescDestroy", offsetof(__typeof__(blas), desc_destroy)},
    {"cublasLtMatrixLayoutCreate", offsetof(__typeof__(blas), layout_create)},
    {"cublasLtMatrixLayoutSetAttribute", offsetof(__typeof__(blas), layout_set)},
    {"cublasLtMatrixLayoutDestroy", offsetof(__typeof__(blas), layout_destroy)},
    {"cublasLtMatmulPreferenceCreate", offsetof(__typeof__(blas), preference_create)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(__typeof__(blas), preference_set)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(__typeof__(blas), preference_destroy)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(__typeof__(blas), choose)},
    {"cublasLtMatmul", offsetof(__typeof__(blas), multiply)},
};

static void *handles[STATOR_MOST_DEVICES];
static StatorTensorLayout const *const layout = &stator_cuda_layout;

/* A matrix, or a batch of them, as cuBLAS sees it: `step` elements from one row or column to the next. */
typedef struct {
    int64_t step, batch_stride;
    int64_t transposed; /* whether cuBLAS has to transpose it */
} Matrix;

/* What a choice of the library depends on. All bytes are compared: no padding. */
typedef struct {
    int64_t rows, columns, depth, batch;
    Matrix a, b, out;
    int64_t type, device, has_bias;
    int64_t alignments[4]; /* of b, a, out and bias: cuBLAS's A, B, C and D */
} Shape;

/* The choice of the library for a shape. */
typedef struct {
    Shape shape;
    void *desc;  /* without the address of a bias */
    void *layouts[3];
    Heuristic choice;
    int works;   /* 0: the library has no algorithm */
    int calls;   /* that use it now, perhaps without the interpreter lock */
} Plan;

static Plan *plans[SLOTS];

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *usual;    /* the operator of ATen */
    PyObject *allocate; /* from a number of bytes to a tensor of the device */
    int device;
    uint16_t code;      /* of the device, as TensorImpl holds it */
    int rank, has_bias;
} Product;

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static int type_of(uint16_t dtype)
{
    return dtype == 5 ? 2 : dtype == 15 ? 14 : -1; /* torch's and CUDA's numbers of float16 and bfloat16 */
}

/* Steps of dimensions of size one lead nowhere. 0: the strides are those of no matrix. */
static int read_matrix(char const *impl, int rank, Matrix *matrix)
{
    int64_t const *sizes = stator_tensor_sizes(layout, impl) + rank - 2;
    int64_t const *strides = stator_tensor_strides(layout, impl) + rank - 2;
    int64_t rows = sizes[0], columns = sizes[1];
    matrix->batch_stride = rank == 3 ? strides[-1] : 0;
    if ((strides[1] == 1 || columns == 1) && (strides[0] >= columns || rows == 1)) {
        matrix->step = rows == 1 ? columns : strides[0];
        matrix->transposed = 0;
        return 1;
    }
    if ((strides[0] == 1 || rows == 1) && (strides[1] >= rows || columns == 1)) {
        matrix->step = columns == 1 ? rows : strides[1];
        matrix->transposed = 1;
        return 1;
    }
    return 0;
}

static int64_t alignment(void const *address)
{
    uintptr_t bits = (uintptr_t)address | MOST_ALIGNMENT;
    return (int64_t)(bits & -bits);
}

/* Whether accesses of WIDE bytes reach the rows of all matrices. */
static int is_wide(Shape const *shape)
{
    int64_t steps = shape->a.step | shape->b.step | shape->out.step; /* of elements of two bytes */
    int64_t least = WIDE;
    for (int i = 0; i < 4; ++i) {
        least = shape->alignments[i] < least ? shape->alignments[i] : least;
    }
    return least == WIDE && steps * 2 % WIDE == 0;
}

/* args: bias, if there is one, a, b, out. 0: these are not for the library. */
static int read_shape(Product const *self, PyObject *const *args, Shape *shape, void **addresses)
{
    char const *impls[4];
    int count = 3 + self->has_bias, first = self->has_bias;
    for (int i = 0; i < count; ++i) {
        char const *impl = stator_cuda_is_tensor(args[i]) ? stator_tensor_impl(layout, args[i]) : NULL;
        int rank = i < first ? 1 : self->rank;
        if (!impl || stator_tensor_device(layout, impl) != self->code
            || stator_tensor_ndim(layout, impl) != rank
            || type_of(stator_tensor_dtype(layout, impl)) < 0
            || (i && stator_tensor_dtype(layout, impl) != stator_tensor_dtype(layout, impls[0]))
            || !(addresses[i] = stator_tensor_data(layout, impl))) {
            return 0;
        }
        impls[i] = impl;
    }
    int64_t const *a = stator_tensor_sizes(layout, impls[first]) + self->rank - 2;
    int64_t const *b = stator_tensor_sizes(layout, impls[first + 1]) + self->rank - 2;
    int64_t const *out = stator_tensor_sizes(layout, impls[first + 2]) + self->rank - 2;
    memset(shape, 0, sizeof *shape);
    shape->rows = a[0];
    shape->depth = a[1];
    shape->columns = b[1];
    shape->batch = self->rank == 3 ? a[-1] : 1;
    if (a[0] < 1 || a[1] < 1 || b[1] < 1 || b[0] != a[1] || out[0] != a[0] || out[1] != b[1] || shape->batch < 1
        || (self->rank == 3 && (b[-1] != a[-1] || out[-1] != a[-1]))
        || !read_matrix(impls[first], self->rank, &shape->a) || !read_matrix(impls[first + 1], self->rank, &shape->b)
        || !read_matrix(impls[first + 2], self->rank, &shape->out) || shape->out.transposed) {
        return 0;
    }
    if (first && (stator_tensor_sizes(layout, impls[0])[0] != b[1]
                  || (b[1] > 1 && stator_tensor_strides(layout, impls[0])[0] != 1))) {
        return 0;
    }
    shape->type = type_of(stator_tensor_dtype(layout, impls[0]));
    shape->device = self->device;
    shape->has_bias = first;
    shape->alignments[0] = alignment(addresses[first + 1]);
    shape->alignments[1] = alignment(addresses[first]);
    shape->alignments[2] = alignment(addresses[first + 2]);
    shape->alignments[3] = first ? alignment(addresses[0]) : shape->alignments[2];
    return !first || is_wide(shape);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static void free_plan(Plan *plan)
{
    for (int i = 0; i < 3; ++i) {
        if (plan->layouts[i]) {
            blas.layout_destroy(plan->layouts[i]);
        }
    }
    if (plan->desc) {
        blas.desc_destroy(plan->desc);
    }
    PyMem_Free(plan);
}

/* The address of a bias is needed for a choice too, though it does not matter. Not 0: an error. */
static int make_desc(Shape const *shape, void *bias, void **desc)
{
    int transpose_a = (int)shape->b.transposed, transpose_b = (int)shape->a.transposed, epilogue = EPILOGUE_BIAS;
    int code = blas.desc_create(desc, COMPUTE_FLOAT32, REAL_FLOAT32);
    if (code) {
        *desc = NULL;
        return code;
    }
    code = blas.desc_set(*desc, DESC_TRANSPOSE_A, &transpose_a, sizeof transpose_a)
           || blas.desc_set(*desc, DESC_TRANSPOSE_B, &transpose_b, sizeof transpose_b)
           || (shape->has_bias
               && (blas.desc_set(*desc, DESC_EPILOGUE, &epilogue, sizeof epilogue)
                   || blas.desc_set(*desc, DESC_BIAS_POINTER, &bias, sizeof bias)));
    if (code) {
        blas.desc_destroy(*desc);
        *desc = NULL;
    }
    return code;
}

/* rows, columns: of the matrix as it lies in memory, for cuBLAS. */
static int make_layout(Shape const *shape, Matrix const *matrix, int64_t rows, int64_t columns, void **made)
{
    int32_t batch = (int32_t)shape->batch;
    if (blas.layout_create(made, (int)shape->type, (uint64_t)rows, (uint64_t)columns, matrix->step)) {
        *made = NULL;
        return -1;
    }
    return shape->batch > 1
           && (blas.layout_set(*made, LAYOUT_BATCH_COUNT, &batch, sizeof batch)
               || blas.layout_set(*made, LAYOUT_BATCH_STRIDE, &matrix->batch_stride, sizeof matrix->batch_stride));
}

static int make_layouts(Plan *plan)
{
    Shape const *s = &plan->shape;
    int a = s->a.transposed != 0, b = s->b.transposed != 0;
    return s->batch > INT32_MAX || make_layout(s, &s->b, b ? s->depth : s->columns, b ? s->columns : s->depth, &plan->layouts[0])
           || make_layout(s, &s->a, a ? s->rows : s->depth, a ? s->depth : s->rows, &plan->layouts[1])
           || make_layout(s, &s->out, s->columns, s->rows, &plan->layouts[2]);
}

static int choose(Plan *plan, void *bias, void *handle)
{
    void *preference = NULL, *desc = NULL;
    size_t workspace = MOST_WORKSPACE;
    uint32_t reductions = REDUCTION_IN_FLOAT32;
    int found = 0;
    int failed = make_desc(&plan->shape, bias, &desc) || make_layouts(plan) || blas.preference_create(&preference)
                 || blas.preference_set(preference, PREFERENCE_WORKSPACE, &workspace, sizeof workspace)
                 || blas.preference_set(preference, PREFERENCE_REDUCTIONS, &reductions, sizeof reductions);
    for (int i = 0; !failed && i < 4; ++i) {
        uint32_t bytes = (uint32_t)plan->shape.alignments[i];
        failed = blas.preference_set(preference, PREFERENCE_ALIGNMENT_A + i, &bytes, sizeof bytes);
    }
    failed = failed || blas.choose(handle, desc, plan->layouts[0], plan->layouts[1], plan->layouts[2], plan->layouts[2],
                                   preference, 1, &plan->choice, &found);
    if (preference) {
        blas.preference_destroy(preference);
    }
    if (desc && !plan->shape.has_bias && !failed) {
        plan->desc = desc;
    } else if (desc) {
        blas.desc_destroy(desc);
    }
    return !failed && found > 0 && !plan->choice.state && plan->choice.workspace <= MOST_WORKSPACE;
}

/* The library's handle of the current device, or NULL. */
static void *handle_of(int device)
{
    if (!handles[device] && blas.create(&handles[device])) {
        handles[device] = NULL;
    }
    return handles[device];
}

static uint64_t hash(Shape const *shape)
{
    uint64_t const *words = (uint64_t const *)shape;
    uint64_t mixed = 0;
    for (size_t i = 0; i < sizeof *shape / sizeof *words; ++i) {
        mixed = (mixed ^ words[i]) * 0x9E3779B97F4A7C15u;
        mixed ^= mixed >> 29;
    }
    return mixed;
}

/* With the interpreter lock and the device's context. NULL: all plans near its place are in use, or memory is exhausted. */
static Plan *plan_for(Shape const *shape, void *bias)
{
    uint64_t start = hash(shape);
    Plan **empty = NULL, **idle = NULL;
    for (uint64_t i = 0; i < PROBES; ++i) {
        Plan **place = &plans[(start + i) % SLOTS];
        if (!*place) {
            empty = empty ? empty : place;
        } else if (!memcmp(&(*place)->shape, shape, sizeof *shape)) {
            return *place;
        } else if (!(*place)->calls) {
            idle = idle ? idle : place;
        }
    }
    Plan **place = empty ? empty : idle;
    Plan *plan = place ? PyMem_Calloc(1, sizeof *plan) : NULL;
    if (!plan) {
        return NULL;
    }
    int mode = CAPTURE_MODE_RELAXED; /* the library may load code, also while a CUDA graph is captured */
    plan->shape = *shape;
    stator_cuda.exchange_capture_mode(&mode);
    void *handle = handle_of((int)shape->device);
    plan->works = handle && choose(plan, bias, handle);
    stator_cuda.exchange_capture_mode(&mode);
    if (*place) {
        free_plan(*place);
    }
    return *place = plan;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* 0: launched; 1: not launched; -1: an exception. With the device's context. */
static int multiply(Product const *self, Shape const *shape, void *const *addresses, void *stream)
{
    float const one = 1, zero = 0;
    int first = self->has_bias, code = 1;
    Plan *plan = plan_for(shape, addresses[0]);
    if (!plan || !plan->works || (plan->choice.workspace && stator_cuda_recording_stream())) {
        return 1; /* a recording would keep the address of memory that is freed */
    }
    PyObject *workspace = NULL;
    void *memory = NULL, *desc = plan->desc;
    ++plan->calls; /* a function of Python may run, and other threads */
    if (plan->choice.workspace) {
        workspace = PyObject_CallFunction(self->allocate, "n", (Py_ssize_t)plan->choice.workspace);
        memory = workspace ? stator_tensor_data(layout, stator_tensor_impl(layout, workspace)) : NULL;
        code = workspace ? !memory : -1;
    }
    if (!plan->choice.workspace || memory) {
        Py_BEGIN_ALLOW_THREADS
        code = first ? make_desc(shape, addresses[0], &desc) : 0;
        if (!code) {
            code = blas.multiply(handles[shape->device], desc, &one, addresses[first + 1], plan->layouts[0],
                                 addresses[first], plan->layouts[1], &zero, addresses[first + 2], plan->layouts[2],
                                 addresses[first + 2], plan->layouts[2], plan->choice.algorithm, memory,
                                 plan->choice.workspace, stream);
        }
        if (first && desc) {
            blas.desc_destroy(desc);
        }
        Py_END_ALLOW_THREADS
        code = code != 0;
    }
    --plan->calls;
    Py_XDECREF(workspace); /* its next owner works on the same stream, after the product */
    return code;
}

/* As `multiply`. In a thread that has not used the device yet, or works on another one, its context is not current. */
static int multiply_on_device(Product const *self, Shape const *shape, void *const *addresses)
{
    void *context = stator_cuda_context(self->device), *current = NULL, *stream;
    if (!context || stator_cuda_stream(self->device, &stream) < 0) {
        return -1;
    }
    if (stator_cuda.current_context(&current)) {
        return 1;
    }
    int push = current != context;
    if (push && stator_cuda.push_context(context)) {
        return 1;
    }
    int code = multiply(self, shape, addresses, stream);
    if (push) {
        stator_cuda.pop_context(&current);
    }
    return code;
}

static PyObject *Product_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Product *self = (Product *)callable;
    Shape shape;
    void *addresses[4];
    int plain = PyVectorcall_NARGS(nargsf) == 2 + self->has_bias && kwnames && PyTuple_GET_SIZE(kwnames) == 1
                && !PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "out");
    if (plain && layout->valid && read_shape(self, args, &shape, addresses)) {
        int code = multiply_on_device(self, &shape, addresses);
        if (code <= 0) {
            return code < 0 ? NULL : Py_NewRef(args[2 + self->has_bias]);
        }
    }
    if (stator_cuda_recording_stream()) { /* ATen would not launch on the stream that is recorded */
        stator_cuda_fail_recording();
        Py_RETURN_NONE;
    }
    return PyObject_Vectorcall(self->usual, args, nargsf, kwnames);
}

static PyObject *Product_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"usual", "rank", "has_bias", "device", "code", "allocate", NULL};
    PyObject *usual, *allocate;
    int rank, has_bias, device;
    unsigned short code;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OipiHO", names, &usual, &rank, &has_bias, &device, &code, &allocate)) {
        return NULL;
    }
    if (!blas.multiply || rank < 2 || rank > 3 || device < 0 || device >= STATOR_MOST_DEVICES) {
        PyErr_SetString(PyExc_ValueError, "there are products of matrices and their batches, after open_products was called");
        return NULL;
    }
    Product *self = (Product *)type->tp_alloc(type, 0);
    if (self) {
        self->vectorcall = Product_call;
        self->usual = Py_NewRef(usual);
        self->allocate = Py_NewRef(allocate);
        self->rank = rank;
        self->has_bias = has_bias;
        self->device = device;
        self->code = code;
    }
    return (PyObject *)self;
}

static void Product_dealloc(PyObject *object)
{
    Py_XDECREF(((Product *)object)->usual);
    Py_XDECREF(((Product *)object)->allocate);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *Product_repr(PyObject *object)
{
    Product *self = (Product *)object;
    return PyUnicode_FromFormat("<product in the place of %R on CUDA device %d>", self->usual, self->device);
}

PyTypeObject StatorProductType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stator.runtime._cuda.Product",
    .tp_doc = PyDoc_STR("Product(usual, rank, has_bias, device, code, allocate): call it like `usual`, the operator of ATen "
                        "that it stands for, with matrices of a device and `out=`. allocate(n) returns a tensor of n bytes."),
    .tp_basicsize = sizeof(Product),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Product, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = Product_new,
    .tp_dealloc = Product_dealloc,
    .tp_repr = Product_repr,
};

/* open_products(path) -> whether this library, if it is loaded, can multiply */
PyObject *stator_cuda_open_products(PyObject *module, PyObject *path)
{
    char const *name = PyUnicode_AsUTF8(path);
    if (!name) {
        return NULL;
    }
    void *library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    __typeof__(blas) found;
    memset(&found, 0, sizeof found);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; ++i) {
        void *function = library ? dlsym(library, symbols[i].name) : NULL;
        if (!function) {
            Py_RETURN_FALSE;
        }
        memcpy((char *)&found + symbols[i].place, &function, sizeof function);
    }
    for (int i = 0; i < SLOTS; ++i) { /* plans and handles of a library that was opened before */
        if (plans[i] && !plans[i]->calls) {
            free_plan(plans[i]);
        }
        plans[i] = NULL;
    }
    memset(handles, 0, sizeof handles);
    blas = found;
    Py_RETURN_TRUE;
}
