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
    PyObject *detail; /* for Python: the guards, to explain failures */
    void const *receiver; /* address of the object that it was made for, or NULL; only affects the order of the search */
    unsigned long long hits;
    signed char followed; /* 0: replaced code; above 0: nothing was replaced, and without code the original's callees run
                             eagerly, too; 2: a last resort; -1: given up, the original's callees may be compiled */
} Version;

/* All versions of a frame, most recently used first, and the callback for a miss. */
typedef struct {
    PyObject_HEAD
    PyObject *versions; /* tuple of Version */
    PyObject *miss;     /* (cache, function, {name: value}) -> Version or None (run the original) */
    PyObject *code;     /* weak reference to the original code object */
    PyObject *weakrefs;
    int receiver; /* index of the local variable that is the receiver of a method, or the first argument; or -1 */
    char eager; /* no more lookups: run the original */
    char busy;  /* the miss callback is running, in this thread or another one */
} Cache;

extern PyTypeObject VersionType, CacheType;

/* New reference to the version that fits, or NULL: with an exception only for interrupts such as KeyboardInterrupt. */
Version *stator_cache_lookup(Cache *cache, PyObject *const *locals, Py_ssize_t count, PyObject *function);
/* Call the miss callback, unless an exception is set. New reference; NULL without exception: run the original; NULL with
 * exception: pass it on. */
Version *stator_cache_miss(Cache *cache, PyCodeObject *code, PyObject *const *locals, PyObject *function);

#endif
