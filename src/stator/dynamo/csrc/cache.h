/* The compiled versions of frames (cache.c). */
#ifndef STATOR_CACHE_H
#define STATOR_CACHE_H

#include "cpython_compat.h"

/* One compiled version of a frame. */
typedef struct {
    PyObject_HEAD
    PyObject *guards; /* GuardTree */
    PyObject *code;   /* code object or None: run the original */
    PyObject *target; /* callable that takes the original's arguments, or None: run the original */
    PyObject *detail; /* for Python: what explanations need */
    void const *receiver; /* address of the object that it was made for, or NULL; only to try it earlier */
    unsigned long long hits;
    signed char followed; /* above 0: nothing was replaced, without code, what the original calls runs as it is, too; 2: a
                             last resort; -1: one as well, of what was given up: what the original calls is looked at */
    char silent; /* it does not tell of the lines that it stands for: not to run where somebody is told of lines */
} Version;

/* All versions of a frame, most recently used first, and what to do when none fits. */
typedef struct {
    PyObject_HEAD
    PyObject *versions; /* tuple of Version */
    PyObject *miss;     /* (cache, function, {name: value}) -> Version or None (run the original) */
    PyObject *code;     /* weak reference to the original code object */
    PyObject *weakrefs;
    int receiver; /* which local variable is the receiver of a method, or the first argument; or -1 */
    char eager; /* no more lookups: run the original */
    char busy;  /* the miss callback is at work, in this thread or another one */
} Cache;

extern PyTypeObject VersionType, CacheType;

/* New reference to the version that fits, or NULL: with an exception only if it is an interrupt and the like. */
Version *stator_cache_lookup(Cache *cache, PyObject *const *locals, Py_ssize_t count, PyObject *function);
/* Ask the miss callback, unless there is an exception. New reference; NULL without exception: run the original; NULL with exception: pass it on. */
Version *stator_cache_miss(Cache *cache, PyCodeObject *code, PyObject *const *locals, PyObject *function);

#endif
