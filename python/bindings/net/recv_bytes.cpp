#include "net/recv_bytes.hpp"

namespace runloom::python {
namespace {
constexpr std::size_t kSharedSize = 64 * 1024;
constexpr std::ptrdiff_t kSmall = 2048;
alignas(64) std::byte shared[kSharedSize];
}  // namespace

std::span<std::byte> RecvBytes::take() noexcept {
  if (small_ && size_ <= kSharedSize) return {shared, size_};
  bytes_ = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size_));
  if (!bytes_) return {};
  return {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes_)), size_};
}

std::span<std::byte> RecvBytes::take_for(std::size_t count) noexcept {
  bytes_ = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count));
  if (!bytes_) return {};
  return {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes_)), count};
}

void RecvBytes::give_back(std::ptrdiff_t count) noexcept {
  if (count < 0) {
    const int err = errno;
    Py_CLEAR(bytes_);
    errno = err;
    return;
  }
  if (bytes_) {
    if (count != PyBytes_GET_SIZE(bytes_)) _PyBytes_Resize(&bytes_, count);
  } else {
    bytes_ = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(shared), count);
  }
  small_ = count <= kSmall;
}

}  // namespace runloom::python
