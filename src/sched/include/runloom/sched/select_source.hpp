// SelectSource: what select() can wait for. For authors of sources; a program uses the cases of
// select.hpp.
#pragma once

#include <cstdint>

#include "runloom/sched/park.hpp"

namespace runloom {

namespace detail {

// How a source took a node of a wait that other sources may claim at the same time.
enum class Joined : std::uint8_t {
  waiting,  // the node is linked
  done,     // completed at once: the wait is claimed, nobody else completes it
  lost,     // somebody else has claimed the wait
  retry,    // the wait is claimed but what was there is gone: start over with a fresh wait
};

struct SelectAccess;

}  // namespace detail

// One case of a select.
//
// The source keeps a list of WaitNodes, as any primitive does (park.hpp tells how), and whoever
// makes it ready claims a node with the node's own code. That claim completes the case: what it
// brings is handed over before the waiter is scheduled.
class SelectSource {
 public:
  virtual ~SelectSource() = default;
  SelectSource(const SelectSource&) = delete;
  SelectSource& operator=(const SelectSource&) = delete;

  // Completes the case if that is possible now. Must not park.
  virtual bool try_take() = 0;
  // Under the source's lock: when not ready, links `node` and returns waiting. When ready, first
  // wins the wait itself by claim(node.token, node.code), or returns lost; then completes the
  // case and returns done, or retry if nothing is left to take. Must not park.
  virtual detail::Joined enqueue(detail::WaitNode& node) = 0;
  // Called once for each enqueue() that returned waiting, when the wait is over. Unlinks `node`
  // if it is still linked. `fired`: the wait was claimed with this node's code.
  virtual void dequeue(detail::WaitNode& node, bool fired) noexcept = 0;
  // True when something outside of the scheduler (a descriptor) can complete the case.
  virtual bool external() const noexcept { return false; }

 protected:
  SelectSource() = default;

 private:
  friend struct detail::SelectAccess;
  detail::WaitNode node_{detail::WaitToken{}};
  std::uint16_t order_ = 0;  // select's random order, spread over the cases
};

}  // namespace runloom
