#include "core/crash_handler.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "runloom/sched/error.hpp"
#include "runloom/sched/fault.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

// What else to do. Written before the handler is installed, read by it.
struct Wanted {
  bool backtrace = false;
  bool wait = false;
  bool gdb = false;
  int file = -1;
};
Wanted wanted;
bool installed = false;
std::array<struct sigaction, kSignals.size()> before;
std::atomic<bool> reporting{false};

// ---- the report, by what may be called in a signal handler ----

class Text {
 public:
  Text& add(const char* text) noexcept {
    while (*text && size_ < sizeof bytes_)
      bytes_[size_++] = *text++;
    return *this;
  }
  Text& add(const char* text, std::size_t most) noexcept {
    for (std::size_t i = 0; i < most && text[i]; ++i)
      if (size_ < sizeof bytes_) bytes_[size_++] = text[i];
    return *this;
  }
  Text& number(std::uint64_t value, unsigned base = 10) noexcept {
    char digits[24];
    std::size_t count = 0;
    do {
      digits[count++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (count > 0 && size_ < sizeof bytes_)
      bytes_[size_++] = digits[--count];
    return *this;
  }
  void write_to(int fd) noexcept {
    std::size_t done = 0;
    while (done < size_) {
      const ssize_t count = ::write(fd, bytes_ + done, size_ - done);
      if (count <= 0) return;
      done += static_cast<std::size_t>(count);
    }
  }

 private:
  char bytes_[512];
  std::size_t size_ = 0;
};

const char* name_of(int signal) noexcept {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGILL:
      return "SIGILL";
    case SIGFPE:
      return "SIGFPE";
    default:
      return "SIGABRT";
  }
}

void report(int fd, int signal, const siginfo_t& info) noexcept {
  const bool is_access = info.si_code > 0 && (signal == SIGSEGV || signal == SIGBUS);
  const Fault fault = classify_fault(is_access ? info.si_addr : nullptr);
  Text text;
  text.add("runloom: fatal ").add(name_of(signal));
  if (is_access)
    text.add(" at address 0x").number(reinterpret_cast<std::uintptr_t>(info.si_addr), 16);
  if (fault.fiber != 0) {
    text.add(" in fiber ").number(fault.fiber).add(" '").add(fault.name, sizeof fault.name);
    text.add("'");
  } else {
    text.add(" outside of fibers");
  }
  switch (fault.kind) {
    case Fault::Kind::overflow:
      text.add(": STACK OVERFLOW of its ").number(fault.stack_size).add(" bytes");
      break;
    case Fault::Kind::foreign_guard:
      text.add(": a wild pointer into the guard page of another fiber's stack");
      break;
    case Fault::Kind::elsewhere:
      if (is_access) text.add(": no stack overflow, a wild pointer");
      break;
  }
  text.add("\n").write_to(fd);
  dump_all_fibers(fd);
  if (wanted.backtrace) {
    void* frames[64];
    const int count = ::backtrace(frames, std::size(frames));
    ::backtrace_symbols_fd(frames, count, fd);
  }
}

// The debugger's view of this process, as a program of its own.
void run_gdb() noexcept {
  char pid[16];
  std::snprintf(pid, sizeof pid, "%d", static_cast<int>(::getpid()));
  const pid_t child = ::fork();
  if (child < 0) return;
  if (child == 0) {
    ::dup2(2, 1);
    ::execlp("gdb", "gdb", "-q", "-batch", "-ex", "thread apply all backtrace", "-p", pid,
             static_cast<char*>(nullptr));
    Text().add("runloom: gdb can't be run\n").write_to(2);
    ::_exit(127);
  }
  int status;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
}

void wait_for_debugger() noexcept {
  Text text;
  text.add("runloom: waiting for a debugger: gdb -p ")
      .number(static_cast<std::uint64_t>(::getpid()));
  text.add("\n").write_to(2);
  ::raise(SIGSTOP);
}

void on_crash(int signal, siginfo_t* info, void*) noexcept {
  const int err = errno;
  // A second fault, in the report or on another thread, takes its course at once.
  if (!reporting.exchange(true)) {
    report(2, signal, *info);
    if (wanted.file >= 0) report(wanted.file, signal, *info);
    if (wanted.gdb) run_gdb();
    if (wanted.wait) wait_for_debugger();
  }
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal) ::sigaction(signal, &before[i], nullptr);
  errno = err;
  // A fault comes again with the instruction, for whoever had the signal before. One that was sent
  // does not.
  if (info->si_code <= 0) ::raise(signal);
}

// ---- functions ----

bool to_level(std::string_view level, Wanted& out) {
  if (level == "on") return true;
  if (level == "backtrace" || level == "all") out.backtrace = true;
  if (level == "wait") out.wait = true;
  if (level == "gdb") out.gdb = true;
  return level == "backtrace" || level == "all" || level == "wait" || level == "gdb" ||
         level == "pystack";
}

PyObject* uninstall(PyObject*, PyObject*) {
  if (installed) {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction now {};
      // Whoever came later stays.
      if (::sigaction(kSignals[i], nullptr, &now) == 0 && now.sa_sigaction == &on_crash)
        ::sigaction(kSignals[i], &before[i], nullptr);
    }
    installed = false;
  }
  if (wanted.file >= 0) ::close(wanted.file);
  wanted = Wanted{};
  Py_RETURN_NONE;
}

// _install_crash_handler(level, file or None)
PyObject* install(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "_install_crash_handler() takes 2 arguments");
    return nullptr;
  }
  const char* level = PyUnicode_AsUTF8(args[0]);
  if (!level) return nullptr;
  Wanted next;
  if (!to_level(level, next)) {
    PyErr_Format(PyExc_ValueError,
                 "the level must be on, all, backtrace, pystack, wait, gdb or off, not %R",
                 args[0]);
    return nullptr;
  }
  if (args[1] != Py_None) {
    PyObject* path = nullptr;
    if (!PyUnicode_FSConverter(args[1], &path)) return nullptr;
    const Ref keep = Ref::steal(path);
    next.file = ::open(PyBytes_AS_STRING(path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (next.file < 0) {
      errno = last_errno().value();
      return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, args[1]);
    }
  }
  Py_XDECREF(uninstall(nullptr, nullptr));
  wanted = next;
  // The first call of backtrace() loads a library, which must not happen in the handler.
  void* frame;
  (void)::backtrace(&frame, 1);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction ours {};
    ours.sa_sigaction = &on_crash;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    ::sigemptyset(&ours.sa_mask);
    ::sigaction(kSignals[i], &ours, &before[i]);
  }
  installed = true;
  Py_RETURN_NONE;
}

PyObject* is_installed(PyObject*, PyObject*) {
  return PyBool_FromLong(installed);
}

PyMethodDef functions[] = {
    method("_install_crash_handler", &install, METH_FASTCALL, nullptr),
    method("uninstall_crash_handler", &uninstall, METH_NOARGS,
           "uninstall_crash_handler($module, /)\n--\n\nGive the signals back."),
    method("crash_handler_installed", &is_installed, METH_NOARGS,
           "crash_handler_installed($module, /)\n--\n\nWhether the crash handler is installed."),
    {},
};

}  // namespace

bool add_crash_handler(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
