// Two ends of a stream without a buffer: a write is taken by a read that waits, or waits for one.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "runloom/net/stream.hpp"
#include "runloom/sched/cond_var.hpp"
#include "runloom/sched/mutex.hpp"

namespace runloom::test {

class Rendezvous final : public net::Stream {
 public:
  static std::pair<std::unique_ptr<Rendezvous>, std::unique_ptr<Rendezvous>> pair() {
    auto up = std::make_shared<Way>();
    auto down = std::make_shared<Way>();
    return {std::make_unique<Rendezvous>(up, down), std::make_unique<Rendezvous>(down, up)};
  }

  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline) override {
    std::unique_lock hold(in_->lock);
    if (auto ok = in_->changed.wait_until(
            hold, [&] { return in_->closed || in_->here || !in_->offered.empty(); }, deadline);
        !ok)
      return Unexpected{ok.error()};
    if (in_->here) return fail(Errc::closed);
    const std::size_t count = std::min(buffer.size(), in_->offered.size());
    std::copy_n(in_->offered.begin(), count, buffer.begin());
    in_->offered = in_->offered.subspan(count);
    in_->changed.notify_all();
    return count;
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline) override {
    std::unique_lock hold(out_->lock);
    if (out_->closed) return fail_errno(EPIPE);
    out_->offered = data;
    out_->changed.notify_all();
    const auto taken = out_->changed.wait_until(
        hold, [&] { return out_->closed || out_->offered.size() < data.size(); }, deadline);
    const std::size_t count = data.size() - out_->offered.size();
    out_->offered = {};
    if (count != 0) return count;
    if (!taken) return Unexpected{taken.error()};
    return fail_errno(EPIPE);
  }
  Result<void> wait_readable(Deadline deadline) override {
    std::unique_lock hold(in_->lock);
    return in_->changed.wait_until(
        hold, [&] { return in_->closed || in_->here || !in_->offered.empty(); }, deadline);
  }
  Result<void> shutdown_write() override {
    end(*out_);
    return {};
  }
  void close() noexcept override {
    {
      const std::unique_lock hold(in_->lock);
      in_->here = true;
    }
    end(*in_);
    end(*out_);
  }

  struct Way {
    Mutex lock;
    CondVar changed;
    std::span<const std::byte> offered;
    bool closed = false;
    bool here = false;  // by its reader
  };
  Rendezvous(std::shared_ptr<Way> in, std::shared_ptr<Way> out)
      : in_(std::move(in)), out_(std::move(out)) {}

 private:
  static void end(Way& way) {
    const std::unique_lock hold(way.lock);
    way.closed = true;
    way.changed.notify_all();
  }
  std::shared_ptr<Way> in_;
  std::shared_ptr<Way> out_;
};

}  // namespace runloom::test
