// Peer: reads of a file by plain threads.
// Usage: files_threads pread | pool FILE
//   pread: pread(2) on the calling thread, what a read costs at least
//   pool:  each read is a job for one other thread; at most 32 at a time
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <semaphore>
#include <thread>
#include <vector>

#include "../net/files.hpp"
#include "micro.hpp"

using micro::Clock;
using micro::measure;
using micro::now_ns;

namespace {

void read_block(int fd, off_t offset, char* buffer) {
  if (::pread(fd, buffer, files::kRead, offset) != static_cast<ssize_t>(files::kRead))
    files::fail("pread");
}

double plain(int fd, int n) {
  std::array<char, files::kRead> buffer;
  files::Offsets offsets(1);
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; ++i)
    read_block(fd, offsets.next(), buffer.data());
  return now_ns(Clock::kCpu) - start;
}

struct Job {
  off_t offset = 0;
  std::vector<char> buffer = std::vector<char>(files::kRead);
};

// One thread that reads what is put into its queue.
class Pool {
 public:
  explicit Pool(int fd) : fd_(fd), thread_([this] { work(); }) {}
  ~Pool() {
    submit(nullptr);
    thread_.join();
  }
  void submit(Job* job) {
    {
      std::lock_guard hold(mutex_);
      queue_.push_back(job);
    }
    some_.notify_one();
  }
  // Waits for the end of one.
  Job* finished() {
    std::unique_lock hold(mutex_);
    done_.wait(hold, [this] { return !finished_.empty(); });
    Job* job = finished_.front();
    finished_.pop_front();
    return job;
  }

 private:
  void work() {
    for (;;) {
      Job* job;
      {
        std::unique_lock hold(mutex_);
        some_.wait(hold, [this] { return !queue_.empty(); });
        job = queue_.front();
        queue_.pop_front();
      }
      if (!job) return;
      read_block(fd_, job->offset, job->buffer.data());
      {
        std::lock_guard hold(mutex_);
        finished_.push_back(job);
      }
      done_.notify_one();
    }
  }

  const int fd_;
  std::mutex mutex_;
  std::condition_variable some_;
  std::condition_variable done_;
  std::deque<Job*> queue_;
  std::deque<Job*> finished_;
  std::thread thread_;
};

double pooled(int fd, int n, int depth) {
  Pool pool(fd);
  std::vector<Job> jobs(static_cast<std::size_t>(depth));
  files::Offsets offsets(1);
  const double start = now_ns(Clock::kCpu);
  for (Job& job : jobs) {
    job.offset = offsets.next();
    pool.submit(&job);
  }
  for (int i = depth; i < n; ++i) {
    Job* job = pool.finished();
    job->offset = offsets.next();
    pool.submit(job);
  }
  for (int i = 0; i < depth; ++i)
    pool.finished();
  return now_ns(Clock::kCpu) - start;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const files::Work work(argv[2]);
  if (std::strcmp(argv[1], "pread") == 0) {
    measure("depth 1", files::kReads, [&](int n) { return plain(work.fd(), n); });
    measure("depth 32", files::kReads, [&](int n) { return plain(work.fd(), n); });
  } else {
    constexpr int kFewer = files::kReads / 10;
    measure("depth 1", kFewer, [&](int n) { return pooled(work.fd(), n, 1); });
    measure("depth 32", kFewer, [&](int n) { return pooled(work.fd(), n, files::kDepth); });
  }
  return 0;
}
