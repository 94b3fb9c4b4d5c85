// SwitchHooks: how a language binding follows the fibers of a hub. All are called on the hub's
// thread and must neither park nor throw.
#pragma once

namespace runloom {

namespace detail {
struct Fiber;
}
class Hub;

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
};

}  // namespace runloom
