#include "runloom/sched/select.hpp"

#include <memory>
#include <new>
#include <vector>

#include "support/args.hpp"
#include "support/types.hpp"
#include "sync/channel.hpp"
#include "sync/sync.hpp"
#include "sync/wait.hpp"

namespace runloom::python {
namespace {

// One case. It owns its channel, because the caller's list may change while the fiber waits.
class Case {
 public:
  static std::unique_ptr<Case> recv(PyObject* chan) {
    return std::unique_ptr<Case>(new (std::nothrow) Case(chan));
  }
  static std::unique_ptr<Case> send(PyObject* chan, PyObject* value) {
    return std::unique_ptr<Case>(new (std::nothrow) Case(chan, value));
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  ~Case() {
    if (sends_) {
      send_.~SendCase();
    } else {
      recv_.~RecvCase();
    }
  }

  SelectSource* source() noexcept { return sends_ ? static_cast<SelectSource*>(&send_) : &recv_; }

  // What select() returns when this case, the one of that index, fired.
  PyObject* outcome(std::size_t index) {
    if (sends_ && !send_.result()) return raise_send_on_closed();
    Ref payload = sends_ ? Ref::share(Py_None) : Ref::steal(received(recv_.take()));
    return payload ? Py_BuildValue("(nO)", static_cast<Py_ssize_t>(index), payload.get()) : nullptr;
  }

 private:
  explicit Case(PyObject* chan) : chan_(Ref::share(chan)), sends_(false), recv_(channel_of(chan)) {}
  Case(PyObject* chan, PyObject* value)
      : chan_(Ref::share(chan)), sends_(true), send_(channel_of(chan), Ref::share(value)) {}

  Ref chan_;
  const bool sends_;
  union {
    RecvCase<Ref> recv_;
    SendCase<Ref> send_;
  };
};

std::unique_ptr<Case> fail_case(PyObject* type, Py_ssize_t index, const char* what) {
  PyErr_Format(type, "select case %zd %s", index, what);
  return nullptr;
}

std::unique_ptr<Case> to_case(PyObject* object, Py_ssize_t index) {
  static constexpr char kShape[] = "must be ('recv', chan) or ('send', chan, value)";
  if (!PyTuple_Check(object) && !PyList_Check(object))
    return fail_case(PyExc_TypeError, index, kShape);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
  PyObject** items = PySequence_Fast_ITEMS(object);
  if (size < 2 || !PyUnicode_Check(items[0])) return fail_case(PyExc_TypeError, index, kShape);
  const bool recv = PyUnicode_CompareWithASCIIString(items[0], "recv") == 0;
  const bool send = PyUnicode_CompareWithASCIIString(items[0], "send") == 0;
  if (!recv && !send) return fail_case(PyExc_ValueError, index, kShape);
  if (size != (recv ? 2 : 3)) return fail_case(PyExc_ValueError, index, kShape);
  if (!PyObject_TypeCheck(items[1], chan_type))
    return fail_case(PyExc_TypeError, index, "needs a Chan");
  auto made = recv ? Case::recv(items[1]) : Case::send(items[1], items[2]);
  if (!made) PyErr_NoMemory();
  return made;
}

struct Cases {
  std::vector<std::unique_ptr<Case>> cases;
  std::vector<SelectSource*> sources;

  bool take(PyObject* sequence) {
    const Ref list = Ref::steal(PySequence_Fast(sequence, "select() needs a list of cases"));
    if (!list) return false;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(list.get());
    if (count == 0) {
      PyErr_SetString(PyExc_ValueError, "select() needs at least one case");
      return false;
    }
    cases.reserve(static_cast<std::size_t>(count));
    sources.reserve(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      auto made = to_case(PySequence_Fast_GET_ITEM(list.get(), i), i);
      if (!made) return false;
      sources.push_back(made->source());
      cases.push_back(std::move(made));
    }
    return true;
  }
};

PyObject* select_cases(Cases& cases, bool has_default) {
  const bool waits = this_fiber::exists() && !has_default;
  const Result<std::size_t> fired = [&] {
    if (!waits) return try_select(cases.sources);
    ParkGuard guard;
    return select(cases.sources);
  }();
  if (fired) return cases.cases[*fired]->outcome(*fired);
  if (fired.error() != make_error_code(Errc::would_block)) return raise(fired.error());
  return has_default ? PyLong_FromLong(-1) : raise_would_wait("select()");
}

PyObject* select_function(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"cases", "default"};
  static const Signature signature{"select", parameters, 2, 1, 2};
  PyObject* value[2];
  if (!parse(signature, args, count, names, value)) return nullptr;
  const int has_default = value[1] ? PyObject_IsTrue(value[1]) : 0;
  if (has_default < 0) return nullptr;
  try {
    Cases cases;
    return cases.take(value[0]) ? select_cases(cases, has_default != 0) : nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyMethodDef functions[] = {
    fast_method("select", &select_function,
                "select($module, /, cases, default=False)\n--\n\n"
                "Wait for the first of several channel operations to be possible, and do it.\n\n"
                "A case is ('recv', chan) or ('send', chan, value). Returns (index, (value, ok)) "
                "of a receive,\n(index, None) of a send; -1 if `default` and none is possible now. "
                "The choice among those\nthat are possible is fair."),
    {},
};

}  // namespace

bool add_select(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
