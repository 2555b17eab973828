/* A cuBLASLt that multiplies matrices of half floats in the memory of the CPU, and notes how it was called. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FLOAT16 2

typedef struct { int transposed[2], epilogue, compute, scale; void *bias; } Desc;
typedef struct { int type; uint64_t rows, columns; int64_t step, stride; int32_t batch; } Layout;
typedef struct { uint64_t workspace; uint32_t reductions, alignments[4]; } Preference;
typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;

int blas_calls, blas_choices, blas_made, blas_fails, blas_refuses;
uint64_t blas_stream, blas_workspace, blas_wanted_workspace, blas_context;
uint32_t blas_alignments[4], blas_reductions;
int cuCtxGetCurrent(uint64_t *context);
int fake_put_off(uint64_t stream, void (*run)(void const *, uint64_t), void const *content, int size);

int cublasLtCreate(void **handle) { *handle = &blas_calls; return 0; }
static int make(void **made, size_t size)
{
    ++blas_made;
    *made = calloc(1, size);
    return 0;
}
static int destroy(void *made)
{
    --blas_made;
    free(made);
    return 0;
}
int cublasLtMatmulDescCreate(Desc **desc, int compute, int scale)
{
    make((void **)desc, sizeof **desc);
    (*desc)->compute = compute;
    (*desc)->scale = scale;
    return 0;
}
int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, void const *value, size_t size)
{
    if (attribute == 3 || attribute == 4) {
        memcpy(&desc->transposed[attribute - 3], value, 4);
    } else if (attribute == 7) {
        memcpy(&desc->epilogue, value, 4);
    } else {
        memcpy(&desc->bias, value, 8);
    }
    return attribute == 8 ? size != 8 : size != 4;
}
int cublasLtMatmulDescDestroy(void *desc) { return destroy(desc); }
int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t step)
{
    make((void **)layout, sizeof **layout);
    **layout = (Layout){type, rows, columns, step, 0, 1};
    return step < (int64_t)rows;
}
int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, void const *value, size_t size)
{
    memcpy(attribute == 5 ? (void *)&layout->batch : &layout->stride, value, size);
    return 0;
}
int cublasLtMatrixLayoutDestroy(void *layout) { return destroy(layout); }
int cublasLtMatmulPreferenceCreate(void **preference) { return make(preference, sizeof(Preference)); }
int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, void const *value, size_t size)
{
    void *places[] = {&preference->workspace, &preference->reductions, preference->alignments};
    memcpy(attribute == 1 ? places[0] : attribute == 3 ? places[1] : &preference->alignments[attribute - 5], value, size);
    return 0;
}
int cublasLtMatmulPreferenceDestroy(void *preference) { return destroy(preference); }

static int fits(Desc const *desc, Layout const *a, Layout const *b, Layout const *d)
{
    int ta = desc->transposed[0], tb = desc->transposed[1];
    return desc->compute == 68 && desc->scale == 0 && (ta ? a->columns : a->rows) == d->rows
           && (tb ? b->rows : b->columns) == d->columns && (ta ? a->rows : a->columns) == (tb ? b->columns : b->rows)
           && a->batch == b->batch && a->batch == d->batch && a->type == b->type && a->type == d->type;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d,
                                   Preference *preference, int wanted, Heuristic *found, int *count)
{
    ++blas_choices;
    memcpy(blas_alignments, preference->alignments, sizeof blas_alignments);
    blas_reductions = preference->reductions;
    *count = !blas_refuses && fits(desc, a, b, d) && preference->workspace >= blas_wanted_workspace;
    memset(found, 0, sizeof *found);
    found->algorithm[0] = 77;
    found->workspace = blas_wanted_workspace;
    return 0;
}

static float read(uint16_t const *element, int type)
{
    uint32_t bits = (uint32_t)*element << 16;
    float value;
    _Float16 half;
    memcpy(&value, &bits, 4);
    memcpy(&half, element, 2);
    return type == FLOAT16 ? (float)half : value;
}
static void write(uint16_t *element, int type, float value)
{
    uint32_t bits;
    _Float16 half = (_Float16)value;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    memcpy(element, type == FLOAT16 ? (void *)&half : &bits, 2);
}
static float at(void const *memory, Layout const *layout, int batch, int transposed, uint64_t row, uint64_t column)
{
    uint64_t place = transposed ? column + row * layout->step : row + column * layout->step;
    return read((uint16_t const *)memory + batch * layout->stride + place, layout->type);
}
typedef struct { Desc desc; Layout la, lb, ld; void const *a, *b; void *d; } Product;

static void multiply(void const *content, uint64_t stream)
{
    Product const *p = content;
    Layout const *la = &p->la, *lb = &p->lb, *ld = &p->ld;
    Desc const *desc = &p->desc;
    uint64_t depth = desc->transposed[0] ? la->rows : la->columns;
    for (int batch = 0; batch < ld->batch; ++batch) {
        for (uint64_t row = 0; row < ld->rows; ++row) {
            for (uint64_t column = 0; column < ld->columns; ++column) {
                float sum = 0;
                for (uint64_t i = 0; i < depth; ++i) {
                    sum += at(p->a, la, batch, desc->transposed[0], row, i) * at(p->b, lb, batch, desc->transposed[1], i, column);
                }
                sum += desc->epilogue == 4 ? read((uint16_t *)desc->bias + row, ld->type) : 0;
                write((uint16_t *)p->d + batch * ld->stride + row + column * ld->step, ld->type, sum);
            }
        }
    }
    blas_stream = stream;
}
int cublasLtMatmul(void *handle, Desc *desc, float const *alpha, void const *a, Layout *la, void const *b, Layout *lb,
                   float const *beta, void const *c, Layout *lc, void *d, Layout *ld, uint64_t const *algorithm,
                   void *workspace, size_t size, uint64_t stream)
{
    __atomic_add_fetch(&blas_calls, 1, __ATOMIC_SEQ_CST);
    if (blas_fails || *algorithm != 77 || *alpha != 1 || *beta != 0 || !fits(desc, la, lb, ld) || size < blas_wanted_workspace) {
        return 13;
    }
    blas_workspace = (uint64_t)workspace;
    cuCtxGetCurrent(&blas_context);
    Product product = {*desc, *la, *lb, *ld, a, b, d};
    if (!fake_put_off(stream, multiply, &product, sizeof product)) {
        multiply(&product, stream);
    }
    return 0;
}
