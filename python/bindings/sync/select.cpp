#include "runloom/sched/select.hpp"

#include <cstdint>
#include <memory_resource>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "core/g.hpp"
#include "net/fd_argument.hpp"
#include "net/socket.hpp"
#include "runloom/net/select_fd.hpp"
#include "support/args.hpp"
#include "support/object.hpp"
#include "support/types.hpp"
#include "sync/channel.hpp"
#include "sync/sync.hpp"
#include "sync/wait.hpp"
#include "tls/socket.hpp"

namespace runloom::python {
namespace {

// Ready whenever somebody looks.
Event& always() {
  static Event* const event = [] {
    auto* made = new Event;
    made->set();
    return made;
  }();
  return *event;
}

enum class Kind : std::uint8_t { recv, send, event, descriptor, after };

// One case. It owns what it waits for, because the caller's list may change while the fiber waits.
class Case {
 public:
  explicit Case(PyObject* chan) : object_(Ref::share(chan)), kind_(Kind::recv) {
    new (&recv_) RecvCase<Ref>(channel_of(chan));
  }
  Case(PyObject* chan, PyObject* value) : object_(Ref::share(chan)), kind_(Kind::send) {
    new (&send_) SendCase<Ref>(channel_of(chan), Ref::share(value));
  }
  Case(PyObject* object, Event& event) : object_(Ref::share(object)), kind_(Kind::event) {
    new (&event_) EventCase(event);
  }
  Case(PyObject* object, int fd, unsigned direction)
      : object_(Ref::share(object)), kind_(Kind::descriptor) {
    new (&descriptor_) net::FdCase(fd, direction);
  }
  explicit Case(Deadline deadline) noexcept : kind_(Kind::after), deadline_(deadline) {}
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  ~Case() {
    if (SelectSource* made = source()) made->~SelectSource();
  }

  Kind kind() const noexcept { return kind_; }
  Deadline deadline() const noexcept { return deadline_; }
  // Null: it is a time, which bounds the whole.
  SelectSource* source() noexcept {
    switch (kind_) {
      case Kind::recv:
        return &recv_;
      case Kind::send:
        return &send_;
      case Kind::event:
        return &event_;
      case Kind::descriptor:
        return &descriptor_;
      case Kind::after:
        break;
    }
    return nullptr;
  }

  // What select() returns when this case, the one of that index, fired.
  PyObject* outcome(std::size_t index) {
    Ref payload = Ref::share(Py_None);
    switch (kind_) {
      case Kind::recv:
        payload = Ref::steal(received(recv_.take()));
        break;
      case Kind::send:
        if (!send_.result()) return raise_send_on_closed();
        break;
      case Kind::descriptor:
        if (const auto ready = descriptor_.ready(); !ready) return raise(ready.error());
        break;
      default:
        break;
    }
    const Ref number = Ref::steal(payload ? PyLong_FromSize_t(index) : nullptr);
    return number ? PyTuple_Pack(2, number.get(), payload.get()) : nullptr;
  }

 private:
  Ref object_;
  const Kind kind_;
  Deadline deadline_;
  union {
    RecvCase<Ref> recv_;
    SendCase<Ref> send_;
    EventCase event_;
    net::FdCase descriptor_;
  };
};

// Memory of one select(), on its own stack for as many cases as most have: a select that finds
// something ready would spend half of its time in the allocator.
class Arena {
 public:
  template <class... Args>
  Case* make(Args&&... args) {
    return new (memory_.allocate(sizeof(Case), alignof(Case))) Case(std::forward<Args>(args)...);
  }
  std::pmr::memory_resource* resource() noexcept { return &memory_; }

 private:
  static constexpr std::size_t kInline = 4 * (sizeof(Case) + 3 * sizeof(void*));
  alignas(Case) std::byte bytes_[kInline];
  std::pmr::monotonic_buffer_resource memory_{bytes_, sizeof bytes_};
};

// ---------------------------------------------------------------- from what Python gives

Case* fail_case(PyObject* type, Py_ssize_t index, const char* what) {
  PyErr_Format(type, "select case %zd %s", index, what);
  return nullptr;
}

Case* of_event(Arena& arena, PyObject* object, Py_ssize_t index) {
  if (!PyObject_TypeCheck(object, event_type))
    return fail_case(PyExc_TypeError, index, "needs an Event");
  return arena.make(object, unwrap<Event>(object));
}

Case* of_descriptor(Arena& arena, PyObject* object, unsigned direction) {
  // Bytes that have left the descriptor make nothing readable there.
  const bool has_bytes =
      direction == net::kRead && ((is_tls(object) && as_tls(object).stream.pending() != 0) ||
                                  (is_socket(object) && as_socket(object).unread));
  if (has_bytes) return arena.make(object, always());
  int fd;
  if (!to_fd(object, fd)) return nullptr;
  return arena.make(object, fd, direction);
}

Case* of_time(Arena& arena, PyObject* value) {
  double seconds;
  if (!to_seconds(value, "seconds", seconds)) return nullptr;
  return arena.make(after_seconds(seconds));
}

Case* to_case(Arena& arena, PyObject* object, Py_ssize_t index) {
  static constexpr char kShape[] =
      "must be ('recv', chan), ('send', chan, value), ('event', event), ('readable', socket), "
      "('writable', socket) or ('after', seconds)";
  if (!PyTuple_Check(object) && !PyList_Check(object))
    return fail_case(PyExc_TypeError, index, kShape);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
  // A list may change while it is looked at.
  const Ref name = Ref::share(size > 0 ? PySequence_Fast_GET_ITEM(object, 0) : nullptr);
  const Ref what = Ref::share(size > 1 ? PySequence_Fast_GET_ITEM(object, 1) : nullptr);
  const Ref value = Ref::share(size > 2 ? PySequence_Fast_GET_ITEM(object, 2) : nullptr);
  if (!what || !PyUnicode_Check(name.get())) return fail_case(PyExc_TypeError, index, kShape);
  const auto is = [&](std::string_view text) {
    if (!PyUnicode_IS_COMPACT_ASCII(name.get()))  // of a subclass of str, perhaps
      return PyUnicode_CompareWithASCIIString(name.get(), text.data()) == 0;
    return text == std::string_view(static_cast<const char*>(PyUnicode_DATA(name.get())),
                                    static_cast<std::size_t>(PyUnicode_GET_LENGTH(name.get())));
  };
  const bool sends = is("send");
  if (size != (sends ? 3 : 2)) return fail_case(PyExc_ValueError, index, kShape);
  if (sends || is("recv")) {
    if (!PyObject_TypeCheck(what.get(), chan_type))
      return fail_case(PyExc_TypeError, index, "needs a Chan");
    return sends ? arena.make(what.get(), value.get()) : arena.make(what.get());
  }
  if (is("event")) return of_event(arena, what.get(), index);
  if (is("readable")) return of_descriptor(arena, what.get(), net::kRead);
  if (is("writable")) return of_descriptor(arena, what.get(), net::kWrite);
  if (is("after")) return of_time(arena, what.get());
  return fail_case(PyExc_ValueError, index, kShape);
}

struct Cases {
  Cases() = default;
  Cases(const Cases&) = delete;
  Cases& operator=(const Cases&) = delete;
  ~Cases() {
    for (Case* each : cases)
      each->~Case();
  }

  Arena arena;
  std::pmr::vector<Case*> cases{arena.resource()};
  std::pmr::vector<SelectSource*> sources{arena.resource()};
  std::pmr::vector<std::size_t> indices{arena.resource()};  // of the sources, among the cases
  Deadline deadline;                                        // the soonest time among the cases
  std::size_t timer = 0;                                    // its case
  bool shared = false;                                      // an OS thread may end it

  bool take(PyObject* sequence) {
    if (PyObject_TypeCheck(sequence, chan_type)) {  // it would be drained for cases
      PyErr_SetString(PyExc_TypeError, "select() needs a list of cases, not a channel");
      return false;
    }
    const Ref list = Ref::steal(PySequence_Fast(sequence, "select() needs a list of cases"));
    if (!list) return false;
    if (PySequence_Fast_GET_SIZE(list.get()) == 0) {
      PyErr_SetString(PyExc_ValueError, "select() needs at least one case");
      return false;
    }
    const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(list.get()));
    cases.reserve(count);
    sources.reserve(count);
    indices.reserve(count);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
      const Ref item = Ref::share(PySequence_Fast_GET_ITEM(list.get(), i));
      Case* const made = to_case(arena, item.get(), i);
      if (!made) return false;
      add(made);
    }
    return true;
  }

 private:
  void add(Case* made) {
    const std::size_t index = cases.size();
    cases.push_back(made);  // there is room
    if (SelectSource* const source = made->source()) {
      sources.push_back(source);
      indices.push_back(index);
      shared |= made->kind() == Kind::event;
    } else if (made->deadline() < deadline || deadline.is_never()) {
      deadline = made->deadline();
      timer = index;
    }
  }
};

// The index of a source that fired.
Result<std::size_t> wait_for_one(Cases& cases, bool waits) {
  const Deadline deadline = cases.deadline;
  if (cases.sources.empty()) {
    if (!waits) return deadline.passed() ? fail(Errc::timed_out) : fail(Errc::would_block);
    ParkGuard guard;
    if (G* g = current_g()) g->wakes_ns = deadline.ns();
    if (auto slept = this_fiber::sleep_until(deadline); !slept) return Unexpected{slept.error()};
    return fail(Errc::timed_out);
  }
  if (!waits) {
    auto fired = try_select(cases.sources);
    if (fired || fired.error() != make_error_code(Errc::would_block)) return fired;
    return deadline.passed() ? fail(Errc::timed_out) : fail(Errc::would_block);
  }
  if (cases.shared) {
    SharedWait wait;
    return select(cases.sources, deadline);
  }
  ParkGuard guard;
  return select(cases.sources, deadline);
}

PyObject* select_cases(Cases& cases, bool has_default) {
  const auto fired = wait_for_one(cases, this_fiber::exists() && !has_default);
  if (fired) {
    const std::size_t index = cases.indices[*fired];
    return cases.cases[index]->outcome(index);
  }
  if (fired.error() == make_error_code(Errc::would_block))
    return has_default ? PyLong_FromLong(-1) : raise_would_wait("select()");
  if (!cases.deadline.is_never() && own_time_is_up(fired.error(), cases.deadline))
    return cases.cases[cases.timer]->outcome(cases.timer);
  return raise(fired.error());
}

PyObject* select_function(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"cases", "default"};
  static const Signature signature{"select", parameters, 2, 1, 2};
  PyObject* value[2];
  if (!parse(signature, args, count, names, value)) return nullptr;
  const int has_default = value[1] ? PyObject_IsTrue(value[1]) : 0;
  if (has_default < 0) return nullptr;
  return or_no_memory([&]() -> PyObject* {
    Cases cases;
    return cases.take(value[0]) ? select_cases(cases, has_default != 0) : nullptr;
  });
}

PyMethodDef functions[] = {
    fast_method("select", &select_function,
                "select($module, /, cases, default=False)\n--\n\n"
                "Wait for the first of several things to be possible, and do it.\n\n"
                "A case is ('recv', chan), ('send', chan, value), ('event', event), ('readable', "
                "socket),\n('writable', socket) or ('after', seconds). Returns (index, (value, "
                "ok)) of a receive,\n(index, None) of any other; -1 if `default` and none is "
                "possible now. The choice among\nthose that are possible is fair. A socket is "
                "also a descriptor or what has a fileno()."),
    {},
};

}  // namespace

bool add_select(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
