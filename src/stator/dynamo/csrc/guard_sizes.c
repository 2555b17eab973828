/* Checks facts about sizes of tensors and about ints: a program for a small stack machine, in 64-bit arithmetic. */
#include "guards.h"

static int op_of(int64_t word)
{
    return word >= 0 && word < SIZE_OP_COUNT ? (int)word : -1;
}

/* How many numbers an operation takes from the stack, and how many it puts there. */
static struct {
    int8_t takes, gives;
} const effects[SIZE_OP_COUNT] = {
    [SIZE_CONSTANT] = {0, 1}, [SIZE_INPUT] = {0, 1},    [SIZE_ADD] = {2, 1},     [SIZE_MULTIPLY] = {2, 1},
    [SIZE_QUOTIENT] = {2, 1}, [SIZE_REMAINDER] = {2, 1}, [SIZE_LEAST] = {2, 1},   [SIZE_LARGEST] = {2, 1},
    [SIZE_IS_ZERO] = {1, 1},  [SIZE_IS_NOT_ZERO] = {1, 1}, [SIZE_IS_NOT_NEGATIVE] = {1, 1},
    [SIZE_AND] = {2, 1},      [SIZE_OR] = {2, 1},       [SIZE_RELY] = {1, 0},      [SIZE_SAME] = {0, 0},
    [SIZE_AT_LEAST] = {0, 0}, [SIZE_AT_MOST] = {0, 0},
};

/* The number of operands; `inputs`: how many of them, from the first on, are inputs. */
static int operand_count(int op, int *inputs)
{
    *inputs = op == SIZE_SAME ? 2 : op == SIZE_INPUT || op == SIZE_AT_LEAST || op == SIZE_AT_MOST;
    return op == SIZE_CONSTANT ? 1 : op == SIZE_INPUT ? 1 : *inputs ? 2 : 0;
}

/* The inputs as numbers; 0 if one of them is no number of 64 bits. */
static int read_inputs(SizeCheck const *check, PyObject *const *saved, int64_t *into)
{
    for (int i = 0; i < check->input_count; i++) {
        PyObject *value = saved[check->inputs[i].slot];
        if (!value) {
            return 0;
        }
        if (check->inputs[i].dim != -1) {
            if (!guard_tensor_size(value, check->inputs[i].dim, &into[i])) {
                return 0;
            }
            continue;
        }
        int overflow = 0;
        if (!PyLong_CheckExact(value)) {
            return 0;
        }
        into[i] = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow) {
            return 0;
        }
    }
    return 1;
}

/* Python's division, which rounds towards minus infinity; 0 where it raises or overflows. */
static int divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest)
{
    if (b == 0 || (b == -1 && a == INT64_MIN)) {
        return 0;
    }
    *quotient = a / b;
    *rest = a % b;
    if (*rest && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return 1;
}

/* a <- a op b; 0 on overflow */
static int combine(int op, int64_t *a, int64_t b)
{
    int64_t quotient, rest;
    switch (op) {
    case SIZE_ADD:
        return !__builtin_add_overflow(*a, b, a);
    case SIZE_MULTIPLY:
        return !__builtin_mul_overflow(*a, b, a);
    case SIZE_LEAST:
        *a = *a < b ? *a : b;
        return 1;
    case SIZE_LARGEST:
        *a = *a > b ? *a : b;
        return 1;
    case SIZE_AND:
        *a = *a && b;
        return 1;
    case SIZE_OR:
        *a = *a || b;
        return 1;
    default:
        if (!divide(*a, b, &quotient, &rest)) {
            return 0;
        }
        *a = op == SIZE_QUOTIENT ? quotient : rest;
        return 1;
    }
}

static int run_program(SizeCheck const *check, int64_t const *inputs, int64_t *stack)
{
    int64_t *top = stack; /* the first free place */
    int64_t const *program = check->program;
    for (int at = 0; at < check->length; at++) {
        int op = (int)program[at];
        switch (op) {
        case SIZE_SAME:
            if (inputs[program[at + 1]] != inputs[program[at + 2]]) {
                return 0;
            }
            at += 2;
            break;
        case SIZE_AT_LEAST:
            if (inputs[program[at + 1]] < program[at + 2]) {
                return 0;
            }
            at += 2;
            break;
        case SIZE_AT_MOST:
            if (inputs[program[at + 1]] > program[at + 2]) {
                return 0;
            }
            at += 2;
            break;
        case SIZE_CONSTANT:
            *top++ = program[++at];
            break;
        case SIZE_INPUT:
            *top++ = inputs[program[++at]];
            break;
        case SIZE_IS_ZERO:
            top[-1] = top[-1] == 0;
            break;
        case SIZE_IS_NOT_ZERO:
            top[-1] = top[-1] != 0;
            break;
        case SIZE_IS_NOT_NEGATIVE:
            top[-1] = top[-1] >= 0;
            break;
        case SIZE_RELY:
            if (!*--top) {
                return 0;
            }
            break;
        default:
            top--;
            if (!combine(op, &top[-1], *top)) {
                return 0;
            }
        }
    }
    return 1;
}

int guard_sizes_hold(SizeCheck const *check, PyObject *const *saved)
{
    int64_t inputs[SIZE_MOST_INPUTS], stack[SIZE_MOST_STACK];
    return read_inputs(check, saved, inputs) && run_program(check, inputs, stack);
}

PyObject *guard_sizes_tuple(int64_t const *numbers, int count)
{
    PyObject *made = PyTuple_New(count);
    for (int i = 0; made && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (!number) {
            Py_CLEAR(made);
        } else {
            PyTuple_SET_ITEM(made, i, number);
        }
    }
    return made;
}

PyObject *guard_sizes_found(SizeCheck const *check, PyObject *const *saved)
{
    int64_t inputs[SIZE_MOST_INPUTS];
    return read_inputs(check, saved, inputs) ? guard_sizes_tuple(inputs, check->input_count) : NULL;
}

void guard_size_check_free(SizeCheck *check)
{
    if (check) {
        PyMem_Free(check->inputs);
        PyMem_Free(check->program);
        PyMem_Free(check);
    }
}

static int bad(char const *what)
{
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, what);
    }
    return -1;
}

/* Whether the program keeps to its stack and its inputs. */
static int program_is_valid(SizeCheck const *check)
{
    int depth = 0;
    for (int at = 0; at < check->length; at++) {
        int op = op_of(check->program[at]);
        if (op < 0 || depth < effects[op].takes) {
            return 0;
        }
        depth += effects[op].gives - effects[op].takes;
        if (depth > SIZE_MOST_STACK) {
            return 0;
        }
        int inputs, operands = operand_count(op, &inputs);
        if (at + operands >= check->length) {
            return 0;
        }
        for (int i = 1; i <= inputs; i++) {
            if (check->program[at + i] < 0 || check->program[at + i] >= check->input_count) {
                return 0;
            }
        }
        at += operands;
    }
    return depth == 0;
}

static int fill(SizeCheck *check, PyObject *inputs, PyObject *program, int saved_count)
{
    Py_ssize_t input_count = PyTuple_GET_SIZE(inputs), length = PyTuple_GET_SIZE(program);
    if (input_count > SIZE_MOST_INPUTS || length > INT_MAX) {
        return bad("too many sizes in a check");
    }
    check->inputs = PyMem_Calloc(input_count + 1, sizeof *check->inputs);
    check->program = PyMem_Calloc(length + 1, sizeof *check->program);
    if (!check->inputs || !check->program) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < input_count; i++) {
        SizeInput *input = &check->inputs[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(inputs, i), "ii", &input->slot, &input->dim)) {
            return -1;
        }
        if (input->slot < 0 || input->slot >= saved_count) {
            return bad("no such slot");
        }
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        check->program[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(program, i));
        if (check->program[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    check->input_count = (int)input_count;
    check->length = (int)length;
    return program_is_valid(check) ? 0 : bad("a program of a size check that leaves its stack");
}

SizeCheck *guard_size_check_make(PyObject *payload, int saved_count)
{
    PyObject *inputs, *program;
    if (!PyArg_ParseTuple(payload, "O!O!", &PyTuple_Type, &inputs, &PyTuple_Type, &program)) {
        return NULL;
    }
    SizeCheck *check = PyMem_Calloc(1, sizeof *check);
    if (!check) {
        PyErr_NoMemory();
        return NULL;
    }
    if (fill(check, inputs, program, saved_count) < 0) {
        guard_size_check_free(check);
        return NULL;
    }
    return check;
}

static struct {
    const char *name;
    int value;
} const constants[] = {
    {"SIZE_CONSTANT", SIZE_CONSTANT},
    {"SIZE_INPUT", SIZE_INPUT},
    {"SIZE_ADD", SIZE_ADD},
    {"SIZE_MULTIPLY", SIZE_MULTIPLY},
    {"SIZE_QUOTIENT", SIZE_QUOTIENT},
    {"SIZE_REMAINDER", SIZE_REMAINDER},
    {"SIZE_LEAST", SIZE_LEAST},
    {"SIZE_LARGEST", SIZE_LARGEST},
    {"SIZE_IS_ZERO", SIZE_IS_ZERO},
    {"SIZE_IS_NOT_ZERO", SIZE_IS_NOT_ZERO},
    {"SIZE_IS_NOT_NEGATIVE", SIZE_IS_NOT_NEGATIVE},
    {"SIZE_AND", SIZE_AND},
    {"SIZE_OR", SIZE_OR},
    {"SIZE_RELY", SIZE_RELY},
    {"SIZE_SAME", SIZE_SAME},
    {"SIZE_AT_LEAST", SIZE_AT_LEAST},
    {"SIZE_AT_MOST", SIZE_AT_MOST},
    {"SIZE_MOST_INPUTS", SIZE_MOST_INPUTS},
    {"SIZE_MOST_STACK", SIZE_MOST_STACK},
};

int guard_sizes_add_to(PyObject *module)
{
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}
