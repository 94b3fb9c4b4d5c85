/* selftest.c: the smallest fiber runtime that exercises python/bindings/pystate.c: a run queue, no
 * I/O, Boost.Context for the jumps. test_pystate.py builds and drives it. */
#include "pystate.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#if PY_VERSION_HEX >= 0x030D0000 /* for the planted layout faults only */
#define Py_BUILD_CORE 1
#include "internal/pycore_runtime.h"
#undef Py_BUILD_CORE
#endif

typedef void* fcontext_t;
typedef struct {
  fcontext_t context;
  void* data;
} transfer_t;
extern transfer_t jump_fcontext(fcontext_t to, void* data);
extern fcontext_t make_fcontext(void* stack_top, size_t size, void (*entry)(transfer_t));

enum { GUARD = 4096, POOL_LIMIT = 8192 };
enum Status { NEW, READY, RUNNING, PARKED, DONE, ABANDONED };
static const char* const status_names[] = {"new",    "ready", "running",
                                           "parked", "done",  "abandoned"};

/* One mapping: guard, C stack, RlPyState, datastack. The pool links through the datastack. */
typedef struct Stack {
  char* base;
  size_t size, c_size, data_size;
  struct Stack* next;
} Stack;

typedef struct Fiber {
  PyObject_HEAD fcontext_t context;
  RlPyState* state; /* NULL before the first run and after the end */
  Stack* stack;
  struct Fiber* next; /* run queue */
  struct Hub* hub;
  enum Status status;
  size_t c_size, data_size; /* sizes in force at spawn */
  PyObject *start_context, *function, *args, *result, *exception, *pending;
} Fiber;

typedef struct Hub {
  RlPyHub* py;
  Fiber *current, *head, *tail, *zombie; /* current is NULL in the main context */
  fcontext_t main;
  Stack* pool;
  int pooled;
  long live, switches;
} Hub;

static __thread Hub* this_hub;
static PyTypeObject* fiber_type;
static size_t c_stack_size = 1024 * 1024, datastack_size = 8192;

static Hub* get_hub(void) {
  if (this_hub != NULL) return this_hub;
  Hub* hub = PyMem_RawCalloc(1, sizeof *hub);
  if (hub == NULL) return (Hub*)PyErr_NoMemory();
  hub->py = rl_pyhub_new();
  if (hub->py == NULL) {
    PyMem_RawFree(hub);
    return NULL;
  }
  return this_hub = hub;
}

/* ---- stacks ---- */

static size_t state_room(void) {
  return (rl_pystate_size() + 63) & ~(size_t)63;
}

static Stack* take_stack(Hub* hub, size_t c_size, size_t data_size) {
  Stack* stack = hub->pool;
  if (stack != NULL && stack->c_size == c_size && stack->data_size == data_size) {
    hub->pool = stack->next;
    hub->pooled--;
    return stack;
  }
  size_t size = (GUARD + c_size + state_room() + data_size + sizeof(Stack) + 4095) & ~(size_t)4095;
  char* base = mmap(NULL, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (base == MAP_FAILED || mprotect(base, GUARD, PROT_NONE) != 0) Py_FatalError("no stack");
  stack = (Stack*)(base + size - sizeof(Stack));
  *stack = (Stack){base, size, c_size, data_size, NULL};
  return stack;
}

static void give_stack(Hub* hub, Stack* stack) {
  if (hub->pooled >= POOL_LIMIT) {
    munmap(stack->base, stack->size);
    return;
  }
  stack->next = hub->pool;
  hub->pool = stack;
  hub->pooled++;
}

/* ---- scheduling ---- */

static void enqueue(Hub* hub, Fiber* fiber) {
  fiber->next = NULL;
  if (hub->tail != NULL) {
    hub->tail->next = fiber;
  } else {
    hub->head = fiber;
  }
  hub->tail = fiber;
}

static void wake(Hub* hub, Fiber* fiber) {
  if (fiber->status != PARKED) return;
  fiber->status = READY;
  enqueue(hub, fiber);
}

static void fiber_entry(transfer_t from);

static Fiber* dequeue(Hub* hub) {
  Fiber* fiber = hub->head;
  if (fiber == NULL) return NULL;
  hub->head = fiber->next;
  if (hub->head == NULL) hub->tail = NULL;
  if (fiber->state == NULL) {
    Stack* stack = take_stack(hub, fiber->c_size, fiber->data_size);
    char *low = stack->base + GUARD, *high = low + fiber->c_size;
    char* data = high + state_room();
    if ((uintptr_t)high % rl_pystate_align() != 0) Py_FatalError("misaligned state");
    fiber->stack = stack;
    fiber->state = (RlPyState*)high;
    rl_pystate_init(fiber->state, hub->py, low, high, fiber->data_size ? data : NULL,
                    fiber->data_size, fiber->start_context);
    fiber->start_context = NULL;
    fiber->context = make_fcontext(high, fiber->c_size, fiber_entry);
    hub->live++;
  }
  return fiber;
}

static void reap(Hub* hub) {
  Fiber* dead = hub->zombie;
  if (dead == NULL) return;
  hub->zombie = NULL;
  give_stack(hub, dead->stack);
  dead->stack = NULL;
  dead->state = NULL;
  hub->live--;
  Py_DECREF(dead);
}

static void save_context(Hub* hub, Fiber* from, fcontext_t context) {
  if (from != NULL) {
    from->context = context;
  } else {
    hub->main = context;
  }
}

/* The jump's data is the context that was left: a Fiber, or NULL for main. */
static void leave(Hub* hub, Fiber* to) {
  Fiber* from = hub->current;
  RlPyState* from_state = from ? from->state : rl_pyhub_main(hub->py);
  if (to != NULL) {
    rl_pystate_switch(from_state, to->state, hub->py);
    to->status = RUNNING;
  } else { /* the two-call form */
    rl_pystate_switch_out(from_state, hub->py);
    rl_pyhub_main_in(hub->py);
  }
  hub->current = to;
  hub->switches++;
  transfer_t back = jump_fcontext(to ? to->context : hub->main, from);
  save_context(hub, back.data, back.context);
  reap(hub);
}

static void fiber_entry(transfer_t start) {
  Hub* hub = this_hub;
  Fiber* self = hub->current;
  save_context(hub, start.data, start.context);
  reap(hub);
  if (self->pending != NULL) {
    PyErr_SetObject((PyObject*)Py_TYPE(self->pending), self->pending);
    Py_CLEAR(self->pending);
  } else {
    self->result = PyObject_CallObject(self->function, self->args);
  }
  if (self->result == NULL) {
#if PY_VERSION_HEX >= 0x030C0000
    self->exception = PyErr_GetRaisedException();
#else
    PyObject *type, *traceback;
    PyErr_Fetch(&type, &self->exception, &traceback);
    PyErr_NormalizeException(&type, &self->exception, &traceback);
    if (traceback != NULL) PyException_SetTraceback(self->exception, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
#endif
  }
  Py_CLEAR(self->function);
  Py_CLEAR(self->args);
  rl_pystate_finish(self->state, hub->py);
  self->status = DONE;
  Fiber* to = dequeue(hub);
  if (to != NULL) {
    rl_pystate_switch_in(to->state, hub->py);
    to->status = RUNNING;
  } else {
    rl_pyhub_main_in(hub->py);
  }
  hub->zombie = self;
  hub->current = to;
  jump_fcontext(to ? to->context : hub->main, self);
  Py_FatalError("a dead fiber was resumed");
}

/* ---- module functions ---- */

static PyObject* raise_pending(Fiber* self) {
  if (self->pending == NULL) Py_RETURN_TRUE;
  PyObject* exception = self->pending;
  self->pending = NULL;
  PyErr_SetObject((PyObject*)Py_TYPE(exception), exception);
  Py_DECREF(exception);
  return NULL;
}

/* True if it switched (or could have, had there been another fiber), False if it was refused. */
static PyObject* mod_yield(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  Hub* hub = this_hub;
  if (hub == NULL || hub->current == NULL || !rl_pystate_may_switch(hub->py)) Py_RETURN_FALSE;
  Fiber* self = hub->current;
  if (hub->head != NULL) {
    self->status = READY;
    enqueue(hub, self);
    leave(hub, dequeue(hub));
  }
  return raise_pending(self);
}

static PyObject* mod_park(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  Hub* hub = get_hub();
  if (hub == NULL) return NULL;
  Fiber* self = hub->current;
  if (self == NULL || !rl_pystate_may_switch(hub->py)) {
    PyErr_SetString(PyExc_RuntimeError, "cannot park here");
    return NULL;
  }
  self->status = PARKED;
  leave(hub, dequeue(hub));
  return raise_pending(self);
}

static PyObject* spawn(PyObject* context, PyObject* const* args, Py_ssize_t count) {
  Hub* hub = get_hub();
  Fiber* fiber = hub != NULL ? PyObject_GC_New(Fiber, fiber_type) : NULL;
  if (fiber == NULL) {
    Py_XDECREF(context);
    return NULL;
  }
  memset((char*)fiber + sizeof(PyObject), 0, sizeof *fiber - sizeof(PyObject));
  fiber->hub = hub;
  fiber->c_size = c_stack_size;
  fiber->data_size = datastack_size;
  fiber->start_context = context;
  fiber->function = Py_NewRef(args[0]);
  fiber->args = PyTuple_New(count - 1);
  if (fiber->args == NULL) return NULL;
  for (Py_ssize_t i = 1; i < count; i++)
    PyTuple_SET_ITEM(fiber->args, i - 1, Py_NewRef(args[i]));
  PyObject_GC_Track(fiber);
  enqueue(hub, (Fiber*)Py_NewRef(fiber)); /* the reference of the run queue, until the end */
  return (PyObject*)fiber;
}

static PyObject* mod_spawn(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  (void)module;
  PyObject* context = PyContext_CopyCurrent();
  return context != NULL ? spawn(context, args, count) : NULL;
}

static PyObject* mod_spawn_in(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  (void)module;
  return spawn(args[0] == Py_None ? NULL : Py_NewRef(args[0]), args + 1, count - 1);
}

static PyObject* mod_run(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  Hub* hub = get_hub();
  if (hub == NULL) return NULL;
  if (hub->current != NULL) {
    PyErr_SetString(PyExc_RuntimeError, "run() inside a fiber");
    return NULL;
  }
  for (Fiber* fiber = dequeue(hub); fiber != NULL; fiber = dequeue(hub))
    leave(hub, fiber);
  return PyLong_FromLong(hub->live);
}

static PyObject* mod_unpark(PyObject* module, PyObject* fiber) {
  (void)module;
  wake(this_hub, (Fiber*)fiber);
  Py_RETURN_NONE;
}

static PyObject* mod_throw(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  (void)module, (void)count;
  Fiber* fiber = (Fiber*)args[0];
  Py_XSETREF(fiber->pending, Py_NewRef(args[1]));
  wake(this_hub, fiber);
  Py_RETURN_NONE;
}

static PyObject* mod_current(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  if (this_hub == NULL || this_hub->current == NULL) Py_RETURN_NONE;
  return Py_NewRef(this_hub->current);
}

static PyObject* mod_configure(PyObject* module, PyObject* args) {
  (void)module;
  Py_ssize_t c_size, data_size;
  if (!PyArg_ParseTuple(args, "nn", &c_size, &data_size)) return NULL;
  PyObject* previous = Py_BuildValue("nn", (Py_ssize_t)c_stack_size, (Py_ssize_t)datastack_size);
  c_stack_size = (size_t)c_size;
  datastack_size = (size_t)data_size;
  return previous;
}

static PyObject* mod_stats(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  Hub* hub = get_hub();
  if (hub == NULL) return NULL;
  return Py_BuildValue("{s:l,s:l,s:n,s:n}", "live", hub->live, "switches", hub->switches, "size",
                       (Py_ssize_t)rl_pystate_size(), "align", (Py_ssize_t)rl_pystate_align());
}

static PyObject* mod_in_gc(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  Hub* hub = get_hub();
  return hub != NULL ? PyBool_FromLong(rl_pystate_in_gc(hub->py)) : NULL;
}

static PyObject* mod_main_stack(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  return rl_pystate_stack(rl_pyhub_main(this_hub->py), this_hub->py, -1);
}

static PyObject* mod_after_fork(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  if (this_hub != NULL) rl_pyhub_after_fork(this_hub->py);
  Py_RETURN_NONE;
}

static PyObject* mod_abandon(PyObject* module, PyObject* fiber) {
  (void)module;
  Fiber* f = (Fiber*)fiber;
  rl_pystate_abandon(f->state, f->hub->py);
  f->status = ABANDONED;
  f->hub->live--;
  Py_RETURN_NONE;
}

static PyObject* mod_free_hub(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  if (this_hub != NULL) {
    rl_pyhub_free(this_hub->py);
    while (this_hub->pool != NULL) {
      Stack* stack = this_hub->pool;
      this_hub->pool = stack->next;
      munmap(stack->base, stack->size);
    }
    PyMem_RawFree(this_hub);
    this_hub = NULL;
  }
  Py_RETURN_NONE;
}

/* Breaks a rule on purpose; the process must die of it. */
static PyObject* mod_misuse(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  Hub* hub = get_hub();
  if (hub == NULL) return NULL;
  rl_pyhub_main_in(hub->py);
  Py_RETURN_NONE;
}

/* Plants a layout fault under the import check; its first, successful run must not have come yet.
 */
static PyObject* mod_check_planted_fault(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
#if PY_VERSION_HEX >= 0x030D0000
  _PyRuntime.debug_offsets.thread_state.size += 8;
  int result = rl_pystate_check_layout();
  _PyRuntime.debug_offsets.thread_state.size -= 8;
#else
  PyThreadState* ts = PyThreadState_Get();
  _PyErr_StackItem *real = ts->exc_info, elsewhere = {0};
  ts->exc_info = &elsewhere; /* what a shifted exc_state looks like */
  int result = rl_pystate_check_layout();
  ts->exc_info = real;
#endif
  if (result < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject* mod_init(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  if (rl_pystate_check_layout() < 0 || rl_pystate_watch_gc() < 0) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"init", mod_init, METH_NOARGS, NULL},
    {"check_planted_fault", mod_check_planted_fault, METH_NOARGS, NULL},
    {"yield_", mod_yield, METH_NOARGS, NULL},
    {"park", mod_park, METH_NOARGS, NULL},
    {"spawn", (PyCFunction)(void (*)(void))mod_spawn, METH_FASTCALL, NULL},
    {"spawn_in", (PyCFunction)(void (*)(void))mod_spawn_in, METH_FASTCALL, NULL},
    {"run", mod_run, METH_NOARGS, NULL},
    {"unpark", mod_unpark, METH_O, NULL},
    {"throw", (PyCFunction)(void (*)(void))mod_throw, METH_FASTCALL, NULL},
    {"current", mod_current, METH_NOARGS, NULL},
    {"configure", mod_configure, METH_VARARGS, NULL},
    {"stats", mod_stats, METH_NOARGS, NULL},
    {"in_gc", mod_in_gc, METH_NOARGS, NULL},
    {"main_stack", mod_main_stack, METH_NOARGS, NULL},
    {"after_fork", mod_after_fork, METH_NOARGS, NULL},
    {"abandon", mod_abandon, METH_O, NULL},
    {"free_hub", mod_free_hub, METH_NOARGS, NULL},
    {"misuse", mod_misuse, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

/* ---- the Fiber type ---- */

static int fiber_traverse(PyObject* self, visitproc visit, void* arg) {
  Fiber* fiber = (Fiber*)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(fiber->start_context);
  Py_VISIT(fiber->function);
  Py_VISIT(fiber->args);
  Py_VISIT(fiber->result);
  Py_VISIT(fiber->exception);
  Py_VISIT(fiber->pending);
  return fiber->state != NULL ? rl_pystate_visit(fiber->state, visit, arg) : 0;
}

static int fiber_clear(PyObject* self) {
  Fiber* fiber = (Fiber*)self;
  Py_CLEAR(fiber->result);
  Py_CLEAR(fiber->exception);
  Py_CLEAR(fiber->pending);
  return 0;
}

static void fiber_dealloc(PyObject* self) { /* done or never started: else the hub refers to it */
  Fiber* fiber = (Fiber*)self;
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  fiber_clear(self);
  Py_XDECREF(fiber->start_context);
  Py_XDECREF(fiber->function);
  Py_XDECREF(fiber->args);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

static PyObject* fiber_frame(PyObject* self, PyObject* unused) {
  (void)unused;
  Fiber* fiber = (Fiber*)self;
  PyFrameObject* frame = fiber->state ? rl_pystate_frame(fiber->state, fiber->hub->py) : NULL;
  if (frame == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
  return (PyObject*)frame;
}

static PyObject* fiber_stack(PyObject* self, PyObject* limit) {
  Fiber* fiber = (Fiber*)self;
  if (fiber->state == NULL) return PyList_New(0);
  return rl_pystate_stack(fiber->state, fiber->hub->py, (int)PyLong_AsLong(limit));
}

static PyObject* fiber_get(PyObject* self, void* member) {
  PyObject* value = *(PyObject**)((char*)self + (size_t)(uintptr_t)member);
  return Py_NewRef(value != NULL ? value : Py_None);
}

static PyObject* fiber_status(PyObject* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(status_names[((Fiber*)self)->status]);
}

static PyMethodDef fiber_methods[] = {{"frame", fiber_frame, METH_NOARGS, NULL},
                                      {"stack", fiber_stack, METH_O, NULL},
                                      {NULL, NULL, 0, NULL}};
static PyGetSetDef fiber_getset[] = {
    {"result", fiber_get, NULL, NULL, (void*)offsetof(Fiber, result)},
    {"exception", fiber_get, NULL, NULL, (void*)offsetof(Fiber, exception)},
    {"status", fiber_status, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot fiber_slots[] = {{Py_tp_traverse, (void*)fiber_traverse},
                                    {Py_tp_clear, (void*)fiber_clear},
                                    {Py_tp_dealloc, (void*)fiber_dealloc},
                                    {Py_tp_methods, fiber_methods},
                                    {Py_tp_getset, fiber_getset},
                                    {0, NULL}};
static PyType_Spec fiber_spec = {
    "pystate_selftest.Fiber", sizeof(Fiber), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, fiber_slots};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "pystate_selftest", NULL, -1, module_methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_pystate_selftest(void) {
  fiber_type = (PyTypeObject*)PyType_FromSpec(&fiber_spec);
  PyObject* module = fiber_type != NULL ? PyModule_Create(&module_def) : NULL;
#ifdef Py_GIL_DISABLED
  if (module != NULL) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  return module;
}
