/* pystate.c: the only file that knows CPython's internals.
 *
 * CPython thinks that a PyThreadState and a C stack belong together. Fibers break that: one OS
 * thread, a hub, owns one PyThreadState and jumps between many C stacks. So at each jump the fields
 * that describe a *stack* must go with the stack, and those that describe a *thread* must stay.
 * The other design, a PyThreadState per fiber, was rejected: attaching one releases and takes the
 * GIL at every switch (40 ns and a chance to lose it), PyGILState_Ensure dead-locks on 3.11, each
 * costs 0.3 to 0.9 KiB and far more on free-threaded builds, and everything keyed by thread id
 * (async exceptions, sys._current_frames) finds the wrong one of many.
 *
 * What goes with the fiber, and why
 *  - The chain of Python frames: `cframe` (3.11, 3.12: a pointer into the C stack) or
 *    `current_frame` (3.13+). A fiber starts with an empty chain of its own.
 *  - The data stack, where frames of ordinary functions live: it is a stack, two fibers cannot
 *    interleave on one. The first chunk is the caller's memory. CPython never frees a chunk whose
 *    `previous` is NULL: _PyThreadState_PopFrame frees a chunk when the frame at data[0] goes, and
 *    in a first chunk data[0] is skipped, which is why datastack_top starts at data[1]. Chunks
 *    that CPython adds on deep calls are freed by the same rule while the calls return; what is
 *    left at the end (CPython's own first chunk, where the caller gave none) is freed here. The
 *    spare chunk that 3.13.13+ and 3.14.4+ keep in `datastack_cached_chunk` is the thread's.
 *  - `exc_info`, the stack of exceptions being *handled* (what sys.exc_info() and __context__ see).
 *    Its bottom item is `exc_base` in the fiber's state, so the thread's own `exc_state` is only
 *    ever the main context's. Generators push their item while they run, and pop it wherever they
 *    are resumed: a generator may move between fibers.
 *  - The exception being *raised*, normally none at a switch.
 *  - `context`, for contextvars. `context_ver` is not restored but counted up: a ContextVar caches
 *    its value under (thread state id, context_ver).
 *  - Recursion. The Python counter is kept as a DEPTH, limit minus remaining, so that a
 *    sys.setrecursionlimit() made while the fiber was parked holds when it comes back. 3.12 and
 *    3.13 count C calls apart, against a limit made for 8 MiB: a fiber gets an allowance for its
 *    own stack. 3.11 has one counter for both; there a stack below 1 MiB withholds part of the
 *    limit, and larger ones are trusted with all of it: at the default of 1000 ordinary code needs
 *    less than 1 MiB, and the worst, sorted() nested in its own key function, 2.5 MiB. 3.14
 *    compares the stack pointer with limits, which are the fiber's. `recursion_headroom` is
 * non-zero while an overflow is being reported.
 *  - The trashcan's nesting depth (3.11, 3.12), since it counts C frames. The list of dead objects
 *    is shared: it is a chain of objects without references that any fiber may destroy. 3.13 has no
 *    depth; it looks at the C allowance, defers below 50 and resumes above 100, so an allowance
 *    below 100 would defer deallocation for ever.
 *  - `tracing` and the event being traced; both are at rest, since rl_pystate_may_switch().
 *  - JIT executor, and on free-threaded builds the critical sections: a parked fiber must not keep
 *    objects locked (its own hub would dead-lock), so they are released before parking and taken
 *    again afterwards, as a thread does when it detaches.
 *  - 3.14: asyncio's running loop and task, which lie in the thread state there.
 *
 * What stays with the hub: trace and profile functions (a new fiber is traced too; 3.11 copies
 * their presence into cframe->use_tracing, set at each load), the thread-local dict, gilstate
 * counter, asynchronous exceptions, async generator hooks, ids, allocator and GC state.
 *
 * The anchor (3.12+)
 *  CPython finds frames by walking interp->threads, and a parked fiber is in no thread state. Two
 *  walkers must find it: sys.settrace and sys.monitoring rewrite the code of all executing frames
 *  (else events come late, and debug builds abort), and the collector of free-threaded 3.14 counts
 *  the references that frames hold without counting them (else it frees classes and functions that
 *  a parked fiber uses). So a hub has a second thread state, the anchor, which is never attached
 *  nor bound to an OS thread (bound, it would share the hub's thread id, and catch asynchronous
 *  exceptions meant for the hub), only linked. As a thread id it has its own address: newer patch
 *  releases take 0 for a freed thread state, and faulthandler then ends its dump right there. Its
 *  frame chain runs through all parked fibers:
 *
 *     anchor -> top..bottom of A -> A.root -> top..bottom of B -> B.root -> ... -> main context
 *
 *  Parking is O(1): root.previous and the anchor's top change. The main context has no root that we
 *  own, so it is the tail. `root` is a frame like that of a function which has been entered but has
 *  not reached its RESUME instruction: every walker skips those as incomplete. It is not a copy of
 *  the shim that CPython puts below each C to Python call, because faulthandler believes (and
 *  asserts) that two shims never follow each other, and reads the second one's None as code; it
 *  prints `line 1 in fiber` for ours. The price of the chain: while a fiber is parked, f_back of
 *  its outermost frame is the next fiber's top frame, and sys._current_frames() shows the whole
 *  chain under the anchor's id. There is no link that the one walker follows and f_back does not.
 *
 * What the collector of the other builds needs: nothing. Frames own counted references there, and
 * an unseen one looks like an outside reference: alive. A cycle through a parked fiber is therefore
 * not collected until the fiber ends.
 *
 * Layouts change between minor versions and, rarely, between patch releases; hence the gate below
 * and rl_pystate_check_layout(). */

#include "pystate.h"

#include <limits.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "runloom's thread state switch has been audited for CPython 3.11 to 3.14 only"
#endif
#define RL_MINOR PY_MINOR_VERSION
#define RL_ANCHOR (RL_MINOR >= 12)
#ifdef Py_GIL_DISABLED
#define RL_FREE_THREADED 1
#else
#define RL_FREE_THREADED 0
#endif
#define RL_STACKREFS (RL_MINOR >= 14 && RL_FREE_THREADED)

#pragma GCC diagnostic push /* CPython's own headers are not clean under -Wextra */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define Py_BUILD_CORE 1
#undef _PyGC_FINALIZED /* 3.12: defined again by pycore_gc.h */
#include "internal/pycore_context.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_interp.h"
#if RL_MINOR >= 13
#include "internal/pycore_runtime.h"
#endif
#if RL_MINOR >= 14
#include "internal/pycore_interpframe.h"
#include "internal/pycore_pythonrun.h"
#include "internal/pycore_stackref.h"
#include "internal/pycore_tstate.h"
#endif
#undef Py_BUILD_CORE
#pragma GCC diagnostic pop

#define RL_LIKELY(condition) __builtin_expect(!!(condition), 1)

typedef struct _PyInterpreterFrame Frame;

/* ---- The state -------------------------------------------------------------------------- */

/* Fields saved and loaded as they are: X(member of RlPyState, member of PyThreadState). */
#define RL_FIELDS_COMMON(X)                 \
  X(datastack_chunk, datastack_chunk)       \
  X(datastack_top, datastack_top)           \
  X(datastack_limit, datastack_limit)       \
  X(exc_info, exc_info)                     \
  X(context, context)                       \
  X(recursion_headroom, recursion_headroom) \
  X(tracing, tracing)

#if RL_MINOR == 11
#define RL_FIELDS(X)                     \
  RL_FIELDS_COMMON(X)                    \
  X(cframe, cframe)                      \
  X(raised, curexc_value)                \
  X(raised_type, curexc_type)            \
  X(raised_traceback, curexc_traceback)  \
  X(trash_nesting, trash_delete_nesting) \
  X(event, tracing_what)
#elif RL_MINOR == 12
#define RL_FIELDS(X)                              \
  RL_FIELDS_COMMON(X)                             \
  X(cframe, cframe)                               \
  X(raised, current_exception)                    \
  X(c_recursion_remaining, c_recursion_remaining) \
  X(trash_nesting, trash.delete_nesting)          \
  X(event, what_event)
#elif RL_MINOR == 13
#define RL_FIELDS(X)                              \
  RL_FIELDS_COMMON(X)                             \
  X(current_frame, current_frame)                 \
  X(raised, current_exception)                    \
  X(c_recursion_remaining, c_recursion_remaining) \
  X(executor, previous_executor)                  \
  X(critical_section, critical_section)           \
  X(event, what_event)
#else
#define RL_FIELDS(X)                    \
  RL_FIELDS_COMMON(X)                   \
  X(current_frame, current_frame)       \
  X(raised, current_exception)          \
  X(executor, current_executor)         \
  X(critical_section, critical_section) \
  X(event, what_event)
#endif

/* The same for the part of the thread state that only the core sees. */
#if RL_STACKREFS
#define RL_CORE_FIELDS_STACKREFS(X) X(c_stack_refs)
#else
#define RL_CORE_FIELDS_STACKREFS(X)
#endif
#if RL_MINOR >= 14
#define RL_CORE_FIELDS(X) \
  X(c_stack_top)          \
  X(c_stack_soft_limit)   \
  X(c_stack_hard_limit)   \
  X(asyncio_running_loop) \
  X(asyncio_running_task) \
  RL_CORE_FIELDS_STACKREFS(X)
#else
#define RL_CORE_FIELDS(X)
#endif

enum Phase { PHASE_NEW, PHASE_RUNNING, PHASE_PARKED, PHASE_OVER };

struct RlPyState {
#define DECLARE(member, source) __typeof__(((PyThreadState*)0)->source) member;
  RL_FIELDS(DECLARE)
#undef DECLARE
#define DECLARE(member) __typeof__(((_PyThreadStateImpl*)0)->member) member;
  RL_CORE_FIELDS(DECLARE)
#undef DECLARE
  int depth; /* Python calls in progress */
#if RL_MINOR == 11
  int allowance; /* calls that the C stack bears */
  int withheld;  /* what the last load took off the limit because of it */
#endif
  enum Phase phase;
  _PyErr_StackItem exc_base;
  _PyStackChunk* root_chunk; /* the caller's datastack */
#if RL_MINOR <= 12
  _PyCFrame root_cframe;
#endif
#if RL_ANCHOR
  RlPyState *newer, *older; /* neighbours in the hub's list of parked states */
  Frame root;
#endif
#if RL_STACKREFS
  _PyCStackRef root_ref; /* what `root` is for frames, for references held by C frames */
#endif
};

struct RlPyHub {
  PyThreadState* ts;
  RlPyState* running; /* NULL between out and in */
#if RL_ANCHOR
  PyThreadState* anchor;
  RlPyState *newest, *oldest; /* parked */
#endif
  RlPyState main;
};

#if RL_MINOR <= 12 /* works on a PyThreadState and on an RlPyState */
#define TOP(owner) ((owner)->cframe->current_frame)
#else
#define TOP(owner) ((owner)->current_frame)
#endif
#if RL_MINOR == 11
#define RECURSION_LIMIT(ts) ((ts)->recursion_limit)
#define RECURSION_REMAINING(ts) ((ts)->recursion_remaining)
#else
#define RECURSION_LIMIT(ts) ((ts)->py_recursion_limit)
#define RECURSION_REMAINING(ts) ((ts)->py_recursion_remaining)
#endif
#if RL_ANCHOR
#define ROOT(state) (&(state)->root)
#else
#define ROOT(state) ((void)(state), (Frame*)NULL)
#endif
#if RL_MINOR >= 13
#define CURRENT_TSTATE() PyThreadState_GetUnchecked()
#else
#define CURRENT_TSTATE() _PyThreadState_UncheckedGet()
#endif

#define REQUIRE(condition, message)                    \
  do {                                                 \
    if (!RL_LIKELY(condition)) Py_FatalError(message); \
  } while (0)

/* ---- Layout ----------------------------------------------------------------------------- */

/* The collector's "enabled" word answers to the public switch: interp->gc is where we think. */
static int gc_is_where_expected(PyInterpreterState* interp) {
  int was_enabled = PyGC_Disable();
  int ok = interp->gc.enabled == 0;
  PyGC_Enable();
  ok = ok && interp->gc.enabled == 1;
  if (!was_enabled) PyGC_Disable();
  return ok;
}

/* NULL, or what is unexpected. 3.13+ publishes its offsets for debuggers. Before that, what public
 * functions tell of the same fields must agree, from the first field to the last (exc_state, where
 * the stack of handled exceptions ends as long as no fiber runs). */
static const char* find_layout_fault(PyThreadState* ts) {
#if RL_MINOR >= 13
  const struct _Py_DebugOffsets* offsets = &_PyRuntime.debug_offsets;
  if (memcmp(offsets->cookie, _Py_Debug_Cookie, sizeof offsets->cookie) != 0) return "_PyRuntime";
  if (offsets->thread_state.size != sizeof(PyThreadState) ||
      offsets->thread_state.datastack_chunk != offsetof(PyThreadState, datastack_chunk) ||
      offsets->thread_state.current_frame != offsetof(PyThreadState, current_frame)) {
    return "PyThreadState";
  }
  if (offsets->interpreter_frame.size != sizeof(Frame) ||
      offsets->interpreter_frame.owner != offsetof(Frame, owner)) {
    return "_PyInterpreterFrame";
  }
  if (offsets->gc.collecting != offsetof(struct _gc_runtime_state, collecting)) return "gc";
#else
  const _PyErr_StackItem* handled = ts->exc_info;
  while (handled != NULL && handled->previous_item != NULL)
    handled = handled->previous_item;
  if (handled != &ts->exc_state || ts->id != PyThreadState_GetID(ts) ||
      ts->interp != PyThreadState_GetInterpreter(ts) ||
      ts->thread_id != PyThread_get_thread_ident() ||
      RECURSION_LIMIT(ts) != Py_GetRecursionLimit()) {
    return "PyThreadState";
  }
#endif
  return gc_is_where_expected(ts->interp) ? NULL : "PyInterpreterState";
}

#if RL_ANCHOR
/* What every state's root "executes": a generator function at its first instruction, which comes
 * before RESUME and, unlike a MAKE_CELL there, has a line number. It lives for ever, since a leaked
 * fiber's root outlives its hub. */
static PyCodeObject* root_code;
static PyObject* root_globals; /* empty; a frame without globals passes for an invalid one */

static int make_root_code(void) {
  static const char source[] = "def fiber():\n  yield\n";
  PyObject* module = Py_CompileString(source, "<runloom>", Py_file_input);
  if (module == NULL) return -1;
  PyObject* constants = ((PyCodeObject*)module)->co_consts;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); i++) {
    PyObject* constant = PyTuple_GET_ITEM(constants, i);
    if (PyCode_Check(constant)) root_code = (PyCodeObject*)Py_NewRef(constant);
  }
  Py_DECREF(module);
  root_globals = PyDict_New();
  if (root_globals == NULL) return -1;
  if (root_code != NULL && root_code->_co_firsttraceable > 0) return 0;
  PyErr_SetString(PyExc_ImportError, "runloom: this Python compiles functions in an unknown way");
  return -1;
}
#else
static int make_root_code(void) {
  return 0;
}
#endif

int rl_pystate_check_layout(void) {
  static int checked; /* a second import may come from inside a fiber, where the check would fail */
  if (checked) return 0;
  if ((Py_Version >> 16) != (PY_VERSION_HEX >> 16)) {
    PyErr_Format(PyExc_ImportError, "runloom was built for Python %d.%d and runs under %s",
                 PY_MAJOR_VERSION, PY_MINOR_VERSION, Py_GetVersion());
    return -1;
  }
  const char* fault = find_layout_fault(PyThreadState_Get());
  if (fault != NULL) {
    PyErr_Format(
        PyExc_ImportError,
        "runloom was built for Python %s and runs under %s, which lays out %s differently: "
        "build it again with this interpreter",
        PY_VERSION, Py_GetVersion(), fault);
    return -1;
  }
  if (make_root_code() < 0) return -1;
  checked = 1;
  return 0;
}

/* ---- The anchor's chain of parked states ------------------------------------------------ */

#if RL_ANCHOR
#if RL_MINOR == 12
PyAPI_FUNC(PyThreadState*) _PyThreadState_New(PyInterpreterState*);
#define NEW_UNBOUND_TSTATE(interp) _PyThreadState_New(interp)
#else
PyAPI_FUNC(PyThreadState*) _PyThreadState_New(PyInterpreterState*, int whence);
#define NEW_UNBOUND_TSTATE(interp) _PyThreadState_New(interp, 0)
#endif

static PyThreadState* new_anchor(void) {
  PyThreadState* anchor = NEW_UNBOUND_TSTATE(PyInterpreterState_Get());
  if (anchor != NULL) anchor->thread_id = (unsigned long)(uintptr_t)anchor;
  return anchor;
}

static void delete_anchor(PyThreadState* anchor) {
  TOP(anchor) = NULL;
#if RL_STACKREFS
  ((_PyThreadStateImpl*)anchor)->c_stack_refs = NULL;
#endif
  PyThreadState_Clear(anchor);
#if RL_MINOR == 12 /* a debug build insists that what it deletes was bound to some thread */
  anchor->_status.bound = 1;
#ifdef PY_HAVE_THREAD_NATIVE_ID
  anchor->native_thread_id = PyThread_get_thread_native_id();
#endif
#endif
  PyThreadState_Delete(anchor);
}

/* chain lets the frames of `below` (NULL: nothing) follow those of `above` (NULL: the anchor). */
static inline void chain(RlPyHub* hub, RlPyState* above, RlPyState* below) {
  Frame* top = below != NULL ? TOP(below) : NULL;
  if (above != NULL) {
    above->root.previous = top;
  } else {
    TOP(hub->anchor) = top;
  }
#if RL_STACKREFS
  _PyCStackRef* refs = below != NULL ? below->c_stack_refs : NULL;
  if (above != NULL) {
    above->root_ref.next = refs;
  } else {
    ((_PyThreadStateImpl*)hub->anchor)->c_stack_refs = refs;
  }
#endif
}

/* Our neighbours towards the anchor are "newer": fibers enter at the head. */
static inline void link_parked(RlPyState* state, RlPyHub* hub) {
  if (RL_LIKELY(state != &hub->main)) {
    state->newer = NULL;
    state->older = hub->newest;
  } else {
    state->newer = hub->oldest;
    state->older = NULL;
  }
  if (state->newer != NULL) {
    state->newer->older = state;
  } else {
    hub->newest = state;
  }
  if (state->older != NULL) {
    state->older->newer = state;
  } else {
    hub->oldest = state;
  }
  if (state != &hub->main) chain(hub, state, state->older);
  chain(hub, state->newer, state);
}

static inline void unlink_parked(RlPyState* state, RlPyHub* hub) {
  if (state->newer != NULL) {
    state->newer->older = state->older;
  } else {
    hub->newest = state->older;
  }
  if (state->older != NULL) {
    state->older->newer = state->newer;
  } else {
    hub->oldest = state->newer;
  }
  chain(hub, state->newer, state->older);
  if (state != &hub->main) chain(hub, state, NULL);
}

static void init_root(RlPyState* state) {
  REQUIRE(root_code != NULL, "runloom: rl_pystate_check_layout was not called");
#if RL_MINOR == 12
  state->root.f_code = root_code;
  state->root.prev_instr = _PyCode_CODE(root_code);
#elif RL_MINOR == 13
  state->root.f_executable = (PyObject*)root_code;
  state->root.instr_ptr = _PyCode_CODE(root_code);
#else
  state->root.f_executable = PyStackRef_FromPyObjectBorrow((PyObject*)root_code);
  state->root.f_funcobj = PyStackRef_None;
  state->root.instr_ptr = _PyCode_CODE(root_code);
  state->root.stackpointer = state->root.localsplus;
  state->root.localsplus[0] = PyStackRef_NULL;
#endif
  state->root.f_globals = root_globals;
  state->root.f_builtins = root_globals;
  state->root.owner = FRAME_OWNED_BY_THREAD;
  TOP(state) = &state->root;
#if RL_STACKREFS
  state->root_ref.ref = PyStackRef_NULL;
  state->c_stack_refs = &state->root_ref;
#endif
}
#else
static inline void link_parked(RlPyState* state, RlPyHub* hub) {
  (void)state, (void)hub;
}
static inline void unlink_parked(RlPyState* state, RlPyHub* hub) {
  (void)state, (void)hub;
}
#endif

/* ---- Save and load ---------------------------------------------------------------------- */

#if RL_FREE_THREADED
PyAPI_FUNC(void) _PyCriticalSection_SuspendAll(PyThreadState*);
PyAPI_FUNC(void) _PyCriticalSection_Resume(PyThreadState*);
#endif

static inline void save(RlPyState* state, PyThreadState* ts) {
#if RL_FREE_THREADED
  if (ts->critical_section != 0) _PyCriticalSection_SuspendAll(ts);
#endif
#define SAVE(member, source) state->member = ts->source;
  RL_FIELDS(SAVE)
#undef SAVE
#define SAVE(member) state->member = ((_PyThreadStateImpl*)ts)->member;
  RL_CORE_FIELDS(SAVE)
#undef SAVE
  state->depth = RECURSION_LIMIT(ts) - RECURSION_REMAINING(ts);
#if RL_MINOR == 11
  state->depth -= state->withheld;
#endif
}

static inline void load(RlPyState* state, PyThreadState* ts) {
#define LOAD(member, source) ts->source = state->member;
  RL_FIELDS(LOAD)
#undef LOAD
#define LOAD(member) ((_PyThreadStateImpl*)ts)->member = state->member;
  RL_CORE_FIELDS(LOAD)
#undef LOAD
  ts->context_ver++;
  RECURSION_REMAINING(ts) = RECURSION_LIMIT(ts) - state->depth;
#if RL_MINOR == 11
  /* Lowering ts->recursion_limit would not last: an overflow resets it to the interpreter's. */
  int excess = RECURSION_LIMIT(ts) - state->allowance;
  state->withheld = excess > 0 ? excess : 0;
  RECURSION_REMAINING(ts) -= state->withheld;
  int traced = ts->tracing == 0 && (ts->c_tracefunc != NULL || ts->c_profilefunc != NULL);
  ts->cframe->use_tracing = traced ? 255 : 0;
#endif
#if RL_FREE_THREADED
  if (ts->critical_section != 0) _PyCriticalSection_Resume(ts);
#endif
}

static inline void out(RlPyState* state, RlPyHub* hub) {
  REQUIRE(hub->running == state, "runloom: a fiber that is not running was switched out");
  hub->running = NULL;
  save(state, hub->ts);
  state->phase = PHASE_PARKED;
  link_parked(state, hub);
}

static inline void in(RlPyState* state, RlPyHub* hub) {
  REQUIRE(hub->running == NULL, "runloom: switch to a fiber while another one is running");
  if (RL_LIKELY(state->phase == PHASE_PARKED)) {
    unlink_parked(state, hub);
  } else {
    REQUIRE(state->phase == PHASE_NEW, "runloom: switch to a fiber that has ended");
  }
  state->phase = PHASE_RUNNING;
  hub->running = state;
  load(state, hub->ts);
}

void rl_pystate_switch_out(RlPyState* state, RlPyHub* hub) {
  out(state, hub);
}
void rl_pystate_switch_in(RlPyState* state, RlPyHub* hub) {
  in(state, hub);
}
void rl_pyhub_main_out(RlPyHub* hub) {
  out(&hub->main, hub);
}
void rl_pyhub_main_in(RlPyHub* hub) {
  in(&hub->main, hub);
}

void rl_pystate_switch(RlPyState* from, RlPyState* to, RlPyHub* hub) {
  out(from, hub);
  in(to, hub);
}

int rl_pystate_other_threads(RlPyHub* hub) {
  PyThreadState* ts = PyInterpreterState_ThreadHead(hub->ts->interp);
  for (; ts != NULL; ts = PyThreadState_Next(ts)) {
    int is_anchor = ts->thread_id == (unsigned long)(uintptr_t)ts;
    if (ts != hub->ts && !is_anchor) return 1;
  }
  return 0;
}

int rl_pystate_may_switch(RlPyHub* hub) {
  return hub->ts->tracing == 0;
}

/* ---- Hub -------------------------------------------------------------------------------- */

RlPyHub* rl_pyhub_new(void) {
  RlPyHub* hub = PyMem_RawCalloc(1, sizeof *hub);
  if (hub == NULL) {
    PyErr_NoMemory();
    return NULL;
  }
  hub->ts = PyThreadState_Get();
  hub->main.phase = PHASE_RUNNING;
#if RL_MINOR == 11
  hub->main.allowance = INT_MAX;
#endif
  hub->running = &hub->main;
#if RL_ANCHOR
  hub->anchor = new_anchor();
  if (hub->anchor == NULL) {
    PyMem_RawFree(hub);
    PyErr_NoMemory();
    return NULL;
  }
#endif
  return hub;
}

void rl_pyhub_free(RlPyHub* hub) {
#if RL_ANCHOR
  if (hub->anchor != NULL) delete_anchor(hub->anchor);
  for (RlPyState* state = hub->newest; state != NULL; state = state->older) {
    if (state != &hub->main) state->root.previous = NULL;
  }
#endif
  PyMem_RawFree(hub);
}

/* CPython's own handler has freed every thread state except the forking thread's: our anchor, and
 * the hubs' of other threads. */
void rl_pyhub_after_fork(RlPyHub* hub) {
  if (hub->ts != CURRENT_TSTATE()) hub->ts = NULL;
#if RL_ANCHOR
  hub->anchor = NULL;
  if (hub->ts == NULL) return;
  hub->anchor = new_anchor();
  REQUIRE(hub->anchor != NULL, "runloom: out of memory after fork");
  chain(hub, NULL, hub->newest);
#endif
}

PyThreadState* rl_pyhub_tstate(RlPyHub* hub) {
  return hub->ts;
}
RlPyState* rl_pyhub_main(RlPyHub* hub) {
  return &hub->main;
}
RlPyState* rl_pyhub_running(RlPyHub* hub) {
  return hub->running;
}

/* ---- A fiber's life --------------------------------------------------------------------- */

size_t rl_pystate_size(void) {
  return sizeof(RlPyState);
}
size_t rl_pystate_align(void) {
  return _Alignof(RlPyState);
}

#if RL_MINOR <= 13
/* How many nested C calls a stack bears. Measured: 400 to 1,200 bytes a level for getattr, repr,
 * map, format; 2,000 to 2,500 for ABC subclass checks; 5,000 in two units for sort keys. Some 50
 * KiB stay for whatever sits on top. Too small a number has its own price: nothing works, and
 * on 3.13 the trashcan defers for ever (see the essay), so very small stacks get more than their
 * share and rely on their guard page. */
static int c_call_allowance(size_t stack_size) {
  enum { BYTES_PER_CALL = 1750, RESERVE = 30, LEAST = RL_MINOR == 13 ? 128 : 64 };
  size_t calls = stack_size / BYTES_PER_CALL;
  if (calls > INT_MAX) calls = INT_MAX;
  int allowance = (int)calls - RESERVE;
  return allowance > LEAST ? allowance : LEAST;
}
#endif

static void init_recursion(RlPyState* state, const char* stack_low, const char* stack_high) {
#if RL_MINOR == 11
  /* A little below 1 MiB, since the caller keeps its own data at the top of such a stack. */
  enum { SAFE_AT_DEFAULT_LIMIT = 960 * 1024 };
  size_t size = (size_t)(stack_high - stack_low);
  state->allowance = size >= SAFE_AT_DEFAULT_LIMIT ? INT_MAX : c_call_allowance(size);
#elif RL_MINOR <= 13
#if RL_MINOR == 12
  const int interpreter_limit = C_RECURSION_LIMIT;
#else
  const int interpreter_limit = Py_C_RECURSION_LIMIT;
#endif
  int allowance = c_call_allowance((size_t)(stack_high - stack_low));
  state->c_recursion_remaining = allowance < interpreter_limit ? allowance : interpreter_limit;
#else
  /* As CPython's own PyUnstable_ThreadState_SetStackProtection(), which 3.14.0 lacks. */
  state->c_stack_top = (uintptr_t)stack_high;
  state->c_stack_hard_limit = (uintptr_t)stack_low + _PyOS_STACK_MARGIN_BYTES;
  state->c_stack_soft_limit = (uintptr_t)stack_low + 2 * _PyOS_STACK_MARGIN_BYTES;
#endif
}

void rl_pystate_init(RlPyState* state, RlPyHub* hub, const void* stack_low, const void* stack_high,
                     void* datastack, size_t datastack_size, PyObject* context) {
  (void)hub;
  memset(state, 0, sizeof *state);
  state->phase = PHASE_NEW;
  state->context = context;
  state->exc_info = &state->exc_base;
  state->event = -1;
  if (datastack != NULL) {
    REQUIRE(datastack_size >= 256, "runloom: a fiber's datastack is too small");
    _PyStackChunk* chunk = datastack;
    chunk->previous = NULL;
    chunk->size = datastack_size & ~(sizeof(PyObject*) - 1);
    chunk->top = 0;
    state->root_chunk = chunk;
    state->datastack_chunk = chunk;
    state->datastack_top = &chunk->data[1];
    state->datastack_limit = (PyObject**)((char*)chunk + chunk->size);
  }
#if RL_MINOR <= 12
  state->cframe = &state->root_cframe;
#endif
#if RL_ANCHOR
  init_root(state);
#endif
  init_recursion(state, stack_low, stack_high);
}

int rl_pystate_copy_context(RlPyHub* hub, PyObject** copy) {
  PyContext* current = (PyContext*)hub->ts->context;
  *copy = NULL;
  if (current == NULL || current->ctx_vars->h_count == 0) return 0;
  *copy = PyContext_CopyCurrent();
  return *copy != NULL ? 0 : -1;
}

/* Every dropped reference may run Python code that sets a context variable, which makes a context
 * anew. A program that does it again and again in __del__ is answered by a leak, not by a hang. */
static void drop_references(RlPyState* state, PyThreadState* ts) {
  for (int round = 0; round < 8; round++) {
    PyObject* context = ts->context;
    PyObject* handled = state->exc_base.exc_value;
    if (context == NULL && handled == NULL) return;
    ts->context = NULL;
    ts->context_ver++;
    state->exc_base.exc_value = NULL;
    Py_XDECREF(context);
    Py_XDECREF(handled);
  }
}

static void free_chunks(PyThreadState* ts, const _PyStackChunk* root) {
  PyObjectArenaAllocator arena;
  PyObject_GetArenaAllocator(&arena);
  while (ts->datastack_chunk != NULL && ts->datastack_chunk != root) {
    _PyStackChunk* chunk = ts->datastack_chunk;
    ts->datastack_chunk = chunk->previous;
    arena.free(arena.ctx, chunk, chunk->size);
  }
}

void rl_pystate_finish(RlPyState* state, RlPyHub* hub) {
  PyThreadState* ts = hub->ts;
  REQUIRE(hub->running == state && state != &hub->main,
          "runloom: a fiber that is not running has ended");
  if (PyErr_Occurred()) PyErr_WriteUnraisable(NULL);
  drop_references(state, ts);
#if RL_MINOR >= 14
  Py_CLEAR(((_PyThreadStateImpl*)ts)->asyncio_running_loop);
  Py_CLEAR(((_PyThreadStateImpl*)ts)->asyncio_running_task);
#endif
  REQUIRE(ts->exc_info == &state->exc_base && TOP(ts) == ROOT(state),
          "runloom: a fiber ended inside a Python frame or an exception handler");
  if (ts->datastack_chunk != state->root_chunk) free_chunks(ts, state->root_chunk);
  state->phase = PHASE_OVER;
  hub->running = NULL;
}

void rl_pystate_abandon(RlPyState* state, RlPyHub* hub) {
  REQUIRE(state != hub->running, "runloom: the running fiber was abandoned");
  enum Phase phase = state->phase;
  state->phase = PHASE_OVER;
  if (phase == PHASE_NEW) {
    Py_CLEAR(state->context);
  } else if (phase == PHASE_PARKED && !RL_FREE_THREADED) {
    /* Free-threaded builds keep it linked: the collector must go on seeing what its frames use, as
     * long as a frame object can show them. */
    unlink_parked(state, hub);
  }
}

int rl_pystate_visit(RlPyState* state, visitproc visit, void* arg) {
  if (state->phase != PHASE_NEW && state->phase != PHASE_PARKED) return 0;
  Py_VISIT(state->context);
  Py_VISIT(state->exc_base.exc_value);
  Py_VISIT(state->raised);
#if RL_MINOR == 11
  Py_VISIT(state->raised_type);
  Py_VISIT(state->raised_traceback);
#endif
#if RL_MINOR >= 14
  Py_VISIT(state->asyncio_running_loop);
  Py_VISIT(state->asyncio_running_task);
#endif
  return 0;
}

/* ---- Introspection ---------------------------------------------------------------------- */

/* The first frame from `frame` outwards that has begun and is this fiber's. */
static Frame* next_frame(RlPyState* state, Frame* frame) {
  while (frame != NULL && frame != ROOT(state) && _PyFrame_IsIncomplete(frame)) {
    frame = frame->previous;
  }
  return frame == ROOT(state) ? NULL : frame;
}

static Frame* innermost_frame(RlPyState* state, RlPyHub* hub) {
  if (state == hub->running) return next_frame(state, TOP(hub->ts));
  return state->phase == PHASE_PARKED ? next_frame(state, TOP(state)) : NULL;
}

/* 3.11 collects inside allocations; a finaliser could let the fiber run while we look at it. */
static int pause_collector(void) {
  return RL_MINOR == 11 && PyGC_Disable();
}
static void resume_collector(int paused) {
  if (paused) PyGC_Enable();
}

/* Frame objects are made by a function that the core does not export; it is reached through
 * PyThreadState_GetFrame, which reads nothing but the top frame of the thread state it is given. */
PyFrameObject* rl_pystate_frame(RlPyState* state, RlPyHub* hub) {
  Frame* frame = innermost_frame(state, hub);
  if (frame == NULL) return NULL;
  PyThreadState probe;
  memset(&probe, 0, sizeof probe);
#if RL_MINOR <= 12
  _PyCFrame cframe;
  memset(&cframe, 0, sizeof cframe);
  probe.cframe = &cframe;
#endif
  TOP(&probe) = frame;
  int paused = pause_collector();
  PyFrameObject* result = PyThreadState_GetFrame(&probe);
  resume_collector(paused);
  return result;
}

static PyObject* describe_frame(Frame* frame) {
#if RL_MINOR == 11
  PyCodeObject* code = (PyCodeObject*)Py_NewRef(frame->f_code);
  int line = PyCode_Addr2Line(code, _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT));
#else
  PyCodeObject* code = (PyCodeObject*)PyUnstable_InterpreterFrame_GetCode(frame);
  int line = PyUnstable_InterpreterFrame_GetLine(frame);
#endif
  PyObject* lineno = line >= 0 ? PyLong_FromLong(line) : Py_NewRef(Py_None);
  PyObject* entry = NULL;
  if (lineno != NULL) entry = PyTuple_Pack(3, code->co_filename, lineno, code->co_name);
  Py_XDECREF(lineno);
  Py_DECREF(code);
  return entry;
}

PyObject* rl_pystate_stack(RlPyState* state, RlPyHub* hub, int limit) {
  int paused = pause_collector();
  PyObject* stack = PyList_New(0);
  Frame* frame = innermost_frame(state, hub);
  for (int n = 0; stack != NULL && frame != NULL && (limit < 0 || n < limit); n++) {
    PyObject* entry = describe_frame(frame);
    if (entry == NULL || PyList_Append(stack, entry) < 0) Py_CLEAR(stack);
    Py_XDECREF(entry);
    frame = next_frame(state, frame->previous);
  }
  resume_collector(paused);
  return stack;
}

/* ---- The collector ---------------------------------------------------------------------- */

/* interp->gc.collecting tells that somebody collects, and a collection can lose the GIL in the
 * middle (finalisers are Python code). Who it is, we are told: the collector calls gc.callbacks in
 * its own thread, before anything else. There is one collection at a time. */
static unsigned long collecting_thread;

static PyObject* note_collecting_thread(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  (void)self, (void)args, (void)count;
  __atomic_store_n(&collecting_thread, PyThread_get_thread_ident(), __ATOMIC_RELAXED);
  Py_RETURN_NONE;
}

int rl_pystate_watch_gc(void) {
  static PyMethodDef method = {"note_collecting_thread",
                               (PyCFunction)(void (*)(void))note_collecting_thread, METH_FASTCALL,
                               NULL};
  int result = -1;
  PyObject* gc = PyImport_ImportModule("gc");
  PyObject* callbacks = gc != NULL ? PyObject_GetAttrString(gc, "callbacks") : NULL;
  PyObject* callback = callbacks != NULL ? PyCFunction_New(&method, NULL) : NULL;
  if (callback != NULL) result = PyList_Insert(callbacks, 0, callback);
  Py_XDECREF(callback);
  Py_XDECREF(callbacks);
  Py_XDECREF(gc);
  return result;
}

int rl_pystate_in_gc(RlPyHub* hub) {
  return __atomic_load_n(&hub->ts->interp->gc.collecting, __ATOMIC_RELAXED) != 0 &&
         __atomic_load_n(&collecting_thread, __ATOMIC_RELAXED) == hub->ts->thread_id;
}
