#include "core/signals.hpp"

#include "core/g.hpp"
#include "support/errors.hpp"

namespace runloom::python {

void run_signal_handlers(Home& home) {
  if (PyErr_CheckSignals() < 0) deliver_interrupt(home, take_raised());
}

void deliver_interrupt(Home& home, PyObject* exception) noexcept {
  if (home.main && !home.main->done()) {
    interrupt_g(*home.main, exception);
    return;
  }
  Py_XDECREF(std::exchange(home.raised, exception));
  home.scheduler.stop();
}

void pass_on_interrupt(Home& home, PyObject* exception) noexcept {
  (void)home, (void)exception;
}

SignalWatch::SignalWatch(Home& home) : home_(home) {}
SignalWatch::~SignalWatch() = default;

}  // namespace runloom::python
