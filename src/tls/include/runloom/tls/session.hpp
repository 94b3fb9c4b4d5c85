// Session: what a client keeps of a connection to begin the next one to the same server sooner.
#pragma once

#include <memory>
#include <utility>

namespace runloom::tls {

// A handle; copies name the same session. Any thread. Belongs to the context and the host that it
// was made with: a connection with another context or to another host ignores it, because what was
// verified then says nothing there.
class Session {
 public:
  Session() = default;
  // False when there is none.
  explicit operator bool() const noexcept { return state_ != nullptr; }

  struct State;  // opaque
  explicit Session(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}
  const std::shared_ptr<const State>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace runloom::tls
