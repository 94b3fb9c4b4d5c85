#include "core/signals.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "core/g.hpp"
#include "runloom/net/netpoll.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"

namespace runloom::python {
namespace {

// The main thread's. Made once and kept: CPython's signal handler may be writing at any time.
struct SignalPipe {
  int read = -1;
  int write = -1;
  int chained = -1;          // the wakeup descriptor that was set before
  bool interrupted = false;  // SIGINT came and nobody has left run() for it
  bool watching = false;     // CPython writes to it
  ino_t inode = 0;           // of both ends

  bool open() noexcept {
    int ends[2];
    struct stat status;
    if (read >= 0) return true;
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    read = ends[0];
    write = ends[1];
    inode = ::fstat(read, &status) == 0 ? status.st_ino : 0;
    return true;
  }
  // False when other code has closed an end: the number may be a stranger's by now.
  bool intact() const noexcept {
    struct stat ends[2];
    if (read < 0 || ::fstat(read, &ends[0]) != 0 || ::fstat(write, &ends[1]) != 0) return false;
    return S_ISFIFO(ends[0].st_mode) && S_ISFIFO(ends[1].st_mode) && ends[0].st_ino == inode &&
           ends[1].st_ino == inode;
  }
  void forget() noexcept { read = write = -1; }
  // Takes out what has arrived and passes it on.
  void drain() noexcept {
    if (!intact()) return;
    unsigned char numbers[64];
    ssize_t count;
    while ((count = ::read(read, numbers, sizeof numbers)) > 0) {
      for (ssize_t i = 0; i < count; ++i)
        interrupted |= numbers[i] == SIGINT;
      if (chained >= 0) {
        [[maybe_unused]] const auto passed =
            ::write(chained, numbers, static_cast<std::size_t>(count));
      }
    }
  }
};
SignalPipe pipe;

// signal.set_wakeup_fd(): the old descriptor, -1 if there was none. The C function behind it is not
// exported on 3.11.
PyObject* set_wakeup_fd_function = nullptr;

int set_wakeup_fd(int fd) noexcept {
  const Ref old = Ref::steal(PyObject_CallFunction(set_wakeup_fd_function, "i", fd));
  const long number = old ? PyLong_AsLong(old.get()) : -1;
  if (!PyErr_Occurred()) return static_cast<int>(number);
  // The descriptor was closed behind our back: it can't be set again.
  PyErr_Clear();
  return fd == -1 ? -1 : set_wakeup_fd(-1);
}

void drain_pipe(void*) {
  pipe.drain();
}

}  // namespace

void deliver_interrupt(Home& home, PyObject* exception) noexcept {
  pipe.interrupted = false;
  if (home.main && !home.main->done()) {
    interrupt_g(*home.main, exception);
    return;
  }
  Py_XDECREF(std::exchange(home.raised, exception));
  home.scheduler.stop();
}

void run_signal_handlers(Home& home) {
  if (PyErr_CheckSignals() < 0) deliver_interrupt(home, take_raised());
}

bool pass_on_interrupt(Home& home, PyObject* exception) noexcept {
  if (!home.on_main_thread || !pipe.watching) return false;
  pipe.drain();
  if (!pipe.interrupted) return false;
  deliver_interrupt(home, Py_NewRef(exception));
  return true;
}

SignalWatch::SignalWatch(Home& home) {
  // Without a pipe EINTR has to do.
  if (!home.on_main_thread || !home.netpoll) return;
  if (!pipe.intact()) {
    pipe.forget();
    (void)home.netpoll->watch({});
  }
  if (!pipe.open() || !home.netpoll->watch({.fd = pipe.read, .ready = &drain_pipe})) return;
  home_ = &home;
  pipe.interrupted = false;
  pipe.watching = true;
  pipe.chained = set_wakeup_fd(pipe.write);
}

SignalWatch::~SignalWatch() {
  if (!home_) return;
  // Somebody who set another one meanwhile keeps it.
  const int last = set_wakeup_fd(pipe.chained);
  if (last != pipe.write) set_wakeup_fd(last);
  pipe.drain();
  pipe.watching = false;
  pipe.chained = -1;
}

bool init_signals() {
  const Ref signal = Ref::steal(PyImport_ImportModule("signal"));
  if (signal) set_wakeup_fd_function = PyObject_GetAttrString(signal.get(), "set_wakeup_fd");
  return set_wakeup_fd_function != nullptr;
}

void forget_signal_pipe() noexcept {
  if (pipe.read < 0) return;
  const bool ours = pipe.watching;
  if (pipe.intact()) {
    ::close(pipe.read);
    ::close(pipe.write);
  }
  pipe.forget();
  if (ours) set_wakeup_fd(pipe.open() ? pipe.write : pipe.chained);
}

}  // namespace runloom::python
