/* What a Python fiber owns of its hub's PyThreadState, saved and loaded at each fiber switch.
 *
 * A hub is an OS thread that runs fibers, each on a C stack of its own. All fibers of a hub share
 * the thread's one PyThreadState; an RlPyState holds the fields that belong to the fiber while
 * another one runs. pystate.c tells which fields these are, by CPython version, and why.
 *
 * Rules for every function here, unless it says otherwise:
 *  - Thread: the hub's own, with its PyThreadState attached (GIL held).
 *  - None parks, and none runs Python code except where said.
 *  - States: at any time at most one state is loaded. The hub's main context (whatever called
 *    into the hub loop) has a state too. A switch is out + in, or finish + in; between the two the
 *    thread state is nobody's, so nothing may run Python, release the GIL or allocate objects.
 *    A direct fiber to fiber switch is rl_pystate_switch(a, b). When no Python fiber follows (the
 *    hub goes idle, runs signal handlers, or runs a C++ fiber that may call Python), the main
 *    context is what follows: out(a), rl_pyhub_main_in().
 *  - A state stays with the hub that first loaded it, for ever.
 *  - A broken rule ends the process with a sentence (Py_FatalError): going on would corrupt the
 *    interpreter. */
#ifndef RUNLOOM_BINDINGS_PYSTATE_H
#define RUNLOOM_BINDINGS_PYSTATE_H

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct RlPyState RlPyState; /* one fiber's part; memory is the caller's */
typedef struct RlPyHub RlPyHub;     /* one hub thread's part */

/* ---- At import -------------------------------------------------------------------------- */

/* rl_pystate_check_layout refuses an interpreter that lays out its structures differently from
 * the headers that this file was compiled with: another minor version, another size of
 * PyThreadState (patch releases have changed it). Call it first. 0, or -1 with ImportError set. */
int rl_pystate_check_layout(void);

/* rl_pystate_watch_gc makes rl_pystate_in_gc work, by an entry in gc.callbacks (about 0.1 us a
 * collection). Call it once. 0, or -1 with an exception set. */
int rl_pystate_watch_gc(void);

/* ---- Hub -------------------------------------------------------------------------------- */

/* rl_pyhub_new makes the hub of the calling thread; its main context is loaded. NULL with
 * MemoryError set on failure. */
RlPyHub* rl_pyhub_new(void);

/* rl_pyhub_free removes what the hub added to the interpreter. Call it before the interpreter
 * finalises and while main is loaded; any attached thread of the interpreter may. Fibers that are
 * still parked stay as they are, and never run again. */
void rl_pyhub_free(RlPyHub* hub);

/* rl_pyhub_after_fork repairs a hub in the child: call it for every hub, from
 * os.register_at_fork(after_in_child=...), before any switch. The forking thread's hub goes on,
 * with its parked fibers (rl_pystate_abandon drops them one by one). Every other hub is dead: its
 * states must not be used, only rl_pyhub_free remains allowed. */
void rl_pyhub_after_fork(RlPyHub* hub);

PyThreadState* rl_pyhub_tstate(RlPyHub* hub); /* NULL for a hub that a fork left dead */
RlPyState* rl_pyhub_main(RlPyHub* hub);       /* the main context's state */
RlPyState* rl_pyhub_running(RlPyHub* hub);    /* the loaded state; NULL in mid-switch */

/* ---- A fiber's life --------------------------------------------------------------------- */

/* Bytes and alignment that an RlPyState needs. It must not move. */
size_t rl_pystate_size(void);
size_t rl_pystate_align(void);

/* rl_pystate_init prepares a fiber that has not run yet.
 *  [stack_low, stack_high): its usable C stack, without the guard.
 *  datastack: where its Python frames go first: at least 256 bytes, 8-aligned, alive and unmoved
 *    until the fiber has finished. Deeper calls take 16 KiB chunks from CPython and return them.
 *    NULL, 0: everything comes from CPython's chunks.
 *  context: the contextvars.Context that the fiber starts in; the reference is stolen. NULL: an
 *    empty one. It should be a copy (PyContext_CopyCurrent), since it is not marked as entered.
 * Small stacks get a smaller recursion allowance, see pystate.c. */
void rl_pystate_init(RlPyState* state, RlPyHub* hub, const void* stack_low, const void* stack_high,
                     void* datastack, size_t datastack_size, PyObject* context);

/* rl_pystate_copy_context gives a copy of the running context, for a fiber that is spawned now: 0,
 * or -1 with an exception set. *copy is NULL when there is nothing to copy: an empty context costs
 * more to make than to leave out. */
int rl_pystate_copy_context(RlPyHub* hub, PyObject** copy);

/* rl_pystate_finish ends the running fiber, on its own stack, after its result or exception has
 * been taken. It drops the context and the last references of the fiber, so it runs Python code,
 * which may switch away and back. Afterwards nobody's state is loaded, and the memory of state and
 * datastack is free. An exception that is still set is reported as unraisable. */
void rl_pystate_finish(RlPyState* state, RlPyHub* hub);

/* rl_pystate_abandon forgets a fiber that will never run (again). One that never ran gives back
 * its context. A parked one is leaked: frame objects may point into its stack and its datastack,
 * so that memory must stay as it is for as long as the interpreter lives. */
void rl_pystate_abandon(RlPyState* state, RlPyHub* hub);

/* rl_pystate_visit is for the tp_traverse of the object that owns the state: it visits what the
 * state itself refers to. Not what the fiber's frames refer to: they count as alive. */
int rl_pystate_visit(RlPyState* state, visitproc visit, void* arg);

/* ---- Switching -------------------------------------------------------------------------- */

/* rl_pystate_may_switch is false inside a trace or profile function or a sys.monitoring callback,
 * whose "do not trace me" mark belongs to the whole thread. Finalisers that the collector runs and
 * gc callbacks are the caller's check: see rl_pystate_in_gc. */
int rl_pystate_may_switch(RlPyHub* hub);

/* rl_pystate_in_gc is true while the hub's thread is inside a garbage collection, that is in a
 * finaliser, weakref callback or gc callback that the collector runs. A switch there is safe for
 * memory, but no collection starts anywhere until the fiber has come back and ended this one.
 * Always false without rl_pystate_watch_gc. */
int rl_pystate_in_gc(RlPyHub* hub);

/* rl_pystate_other_threads is true when the interpreter has threads besides the hub's. */
int rl_pystate_other_threads(RlPyHub* hub);

void rl_pystate_switch_out(RlPyState* state, RlPyHub* hub); /* state is running: park it */
void rl_pystate_switch_in(RlPyState* state, RlPyHub* hub);  /* load state, new or parked */
void rl_pystate_switch(RlPyState* from, RlPyState* to, RlPyHub* hub); /* both in one call */
void rl_pyhub_main_out(RlPyHub* hub);
void rl_pyhub_main_in(RlPyHub* hub);

/* ---- Introspection: of a running, parked or new state, from its hub's thread or, with a GIL,
 *      from any thread that holds it -------------------------------------------------------- */

/* rl_pystate_frame gives a new reference to the innermost Python frame, NULL without an exception
 * if there is none. On 3.12+ the f_back of a PARKED fiber's outermost frame leads into frames of
 * other fibers (see pystate.c): use rl_pystate_stack to show a stack. */
PyFrameObject* rl_pystate_frame(RlPyState* state, RlPyHub* hub);

/* rl_pystate_stack gives a new list of (filename, lineno or None, name), innermost frame first, at
 * most limit of them (negative: all), and ends at the fiber's own outermost frame. NULL with an
 * exception set on failure. Runs no Python code. */
PyObject* rl_pystate_stack(RlPyState* state, RlPyHub* hub, int limit);

#ifdef __cplusplus
}
#endif

#endif /* RUNLOOM_BINDINGS_PYSTATE_H */
