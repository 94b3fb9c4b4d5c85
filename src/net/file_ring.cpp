#include "file_ring.hpp"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include "runloom/net/file.hpp"

namespace runloom::net {
namespace {

// Files have few operations in flight; more than this in a turn take several system calls.
constexpr unsigned kEntries = 128;

std::mutex refusal_mutex;
std::string refusal;  // guarded by it

void tell_refused(std::string why) noexcept {
  const std::lock_guard hold(refusal_mutex);
  if (!refusal.empty()) return;
  refusal = "io_uring can't be used: " + std::move(why);
  std::fprintf(stderr, "runloom: %s; files are on threads\n", refusal.c_str());
}

}  // namespace

std::string file_ring_refusal() {
  const std::lock_guard hold(refusal_mutex);
  return refusal;
}

Uring* FileRing::get(int wake) noexcept {
  if (ring_ && !blind_) return ring_->usable() ? ring_.get() : nullptr;
  if (refused_ || blind_ || wake < 0) return nullptr;
  std::string why;
  auto made = Uring::make(kEntries, &why);
  if (!made) {
    refused_ = true;
    tell_refused(std::move(why));
    return nullptr;
  }
  if (::io_uring_register_eventfd(&(*made)->raw(), wake) != 0) return nullptr;
  ring_ = std::move(*made);
  return ring_.get();
}

int FileRing::turn() noexcept {
  if (!ring_) return 0;
  const int count = ring_->enter(0);
  if (blind_ && ring_->in_flight() == 0) {
    ring_.reset();
    blind_ = false;
  }
  return std::max(count, 0);
}

std::int64_t FileRing::most_sleep(std::int64_t timeout_ns) const noexcept {
  constexpr std::int64_t kLookAgainNs = 5'000'000;
  if (!blind_ || !busy()) return timeout_ns;
  return timeout_ns < 0 ? kLookAgainNs : std::min(timeout_ns, kLookAgainNs);
}

// What is being cancelled comes to its end first: the kernel takes a ring from one thread only.
void FileRing::leave_thread() noexcept {
  if (!ring_ || !ring_->usable()) return;
  constexpr int kMostTurns = 100;
  constexpr std::int64_t kPatienceNs = 10'000'000;
  for (int k = 0; k < kMostTurns && ring_->ending() != 0; ++k)
    ring_->enter(kPatienceNs);
  if (ring_->in_flight() != 0) return;  // there are fibers that still wait
  ring_.reset();
  blind_ = false;
}

void FileRing::abandon() noexcept {
  if (ring_) ring_->abandon();
  ring_.reset();
  refused_ = blind_ = false;
}

void FileRing::lost() noexcept {
  if (!ring_) return;
  ring_->forget_number();
  blind_ = true;
  turn();
}

}  // namespace runloom::net
