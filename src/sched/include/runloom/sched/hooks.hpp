// SwitchHooks: how a language binding follows the fibers of a hub. All are called on the hub's
// thread and must neither park nor throw.
#pragma once

#include <cstddef>

namespace runloom {

namespace detail {
struct Fiber;
}
class Hub;

// How C++ code starts fibers that are the language's own, see SpawnOptions::guest: a server whose
// handlers are written in it. Such a fiber's local memory belongs to the binding.
struct GuestHooks {
  // What a guest needs of local memory, when its stack has `stack_size` bytes (0: the default).
  std::size_t (*local_size)(void* context, std::size_t stack_size) = nullptr;
  // The guest was allocated: makes what its local memory, of `local_size` bytes, holds. On the
  // spawner's thread, which is the hub's. False: there is no memory, and the guest is given back,
  // without drop().
  bool (*make)(void* context, detail::Fiber* fiber, std::size_t local_size) = nullptr;
  // It will never start. Unmakes what make() made.
  void (*drop)(void* context, detail::Fiber* fiber) = nullptr;
  // On its own stack: makes the fiber one of the language's, calls run(frame), and ends it. Lets
  // through what run() throws; may park.
  void (*run)(void* context, void (*run)(void* frame), void* frame) = nullptr;
};

struct SwitchHooks {
  void* context = nullptr;  // passed to each call

  // `from` stops running and `to` runs next; null stands for the hub's own context. Called on
  // the old stack. Nothing of the language may run between this and the switch (I8).
  void (*switched)(void* context, detail::Fiber* from, detail::Fiber* to) = nullptr;
  // The hub is about to block in its driver / has returned. Called in the hub's own context.
  void (*before_block)(void* context) = nullptr;
  void (*after_block)(void* context) = nullptr;
  // All fibers are blocked, and nothing that the scheduler knows of can wake one. True: something
  // else may (a thread of the program that will set an event), so run() goes on waiting. Called in
  // a hub's own context with a lock held: must not call the scheduler.
  bool (*expects_wake)(void* context) = nullptr;
  // A started fiber has ended; its local memory is still valid. Called on its own stack, last.
  void (*finished)(void* context, detail::Fiber* fiber) = nullptr;
  // All of them, or none.
  GuestHooks guest{};
};

}  // namespace runloom
