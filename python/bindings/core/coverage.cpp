#include "core/coverage.hpp"

#include <cstring>
#include <utility>

#include "support/errors.hpp"
#include "support/ref.hpp"

namespace runloom::python {
namespace {

bool is_coverage(PyThreadState* state) noexcept {
  PyObject* tracer = state->c_traceobj;
  return tracer && std::strcmp(Py_TYPE(tracer)->tp_name, "coverage.CTracer") == 0;
}

// Nothing may run in the middle of a switch: neither a trace function, ours included, nor a
// collection, which frame objects that are made could begin on 3.11.
class Quiet {
 public:
  explicit Quiet(PyThreadState* state) noexcept
      : state_(state), collects_(PyGC_Disable() != 0), raised_(take_raised()) {
    PyThreadState_EnterTracing(state_);
  }
  ~Quiet() {
    PyThreadState_LeaveTracing(state_);
    PyErr_Clear();
    if (raised_) raise_again(raised_);
    if (collects_) PyGC_Enable();
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  PyThreadState* const state_;
  const bool collects_;
  PyObject* const raised_;
};

// The tracer marks each frame whose call it was told of.
bool was_called(PyFrameObject* frame, PyObject* tracer) noexcept {
  const Ref mark =
      Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_trace"));
  PyErr_Clear();
  return mark.get() == tracer;
}

void tell(PyThreadState* state, PyFrameObject* frame, int event) noexcept {
  if (!was_called(frame, state->c_traceobj)) return;
  if (state->c_tracefunc && state->c_tracefunc(state->c_traceobj, frame, event, Py_None) < 0)
    PyErr_Clear();
}

// Returns go from the innermost frame out, calls from the outermost one in. A fiber's stack may
// have no room for a C frame a frame, so they are put into a list.
void tell_fiber(int event) noexcept {
  PyThreadState* state = PyThreadState_Get();
  if (!is_coverage(state)) return;
  const Quiet quiet(state);
  const Ref frames = Ref::steal(PyList_New(0));
  Ref frame = Ref::steal(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(state)));
  while (frames && frame) {
    if (PyList_Append(frames.get(), frame.get()) < 0) return;
    auto* inner = reinterpret_cast<PyFrameObject*>(frame.get());
    frame = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(inner)));
  }
  if (!frames || (event == PyTrace_CALL && PyList_Reverse(frames.get()) < 0)) return;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(frames.get()); ++i)
    tell(state, reinterpret_cast<PyFrameObject*>(PyList_GET_ITEM(frames.get(), i)), event);
}

}  // namespace

void coverage_leaves() noexcept {
  tell_fiber(PyTrace_RETURN);
}

void coverage_enters() noexcept {
  tell_fiber(PyTrace_CALL);
}

}  // namespace runloom::python
