// Result<T>: a value or a std::error_code, with the member names of std::expected (C++23).
//
// I/O reports errors by value because a throw costs microseconds and an error (a peer that
// resets, a deadline) is part of normal traffic.
#pragma once

#include <new>
#include <system_error>
#include <type_traits>
#include <utility>

#include "runloom/sched/error.hpp"

namespace runloom {

// The failure side of a Result: `return fail(Errc::closed);`
struct Unexpected {
  std::error_code error;
};
inline Unexpected fail(std::error_code error) noexcept {
  return {error};
}
inline Unexpected fail(Errc error) noexcept {
  return {make_error_code(error)};
}
inline Unexpected fail_errno(int err) noexcept {
  return {errno_code(err)};
}

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  using error_type = std::error_code;

  Result(const T& value) : value_(value), has_(true) {}
  Result(T&& value) noexcept(std::is_nothrow_move_constructible_v<T>)
      : value_(std::move(value)), has_(true) {}
  Result(Unexpected failure) noexcept : error_(failure.error), has_(false) {}
  Result(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) : has_(other.has_) {
    construct(std::move(other));
  }
  Result(const Result& other) : has_(other.has_) { construct(other); }
  Result& operator=(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) {
    if (this != &other) {
      destroy();
      has_ = other.has_;
      construct(std::move(other));
    }
    return *this;
  }
  Result& operator=(const Result& other) {
    if (this != &other) *this = Result(other);
    return *this;
  }
  ~Result() { destroy(); }

  bool has_value() const noexcept { return has_; }
  explicit operator bool() const noexcept { return has_; }

  // The value; throws std::system_error(error()) when there is none.
  T& value() & {
    require();
    return value_;
  }
  const T& value() const& {
    require();
    return value_;
  }
  T&& value() && {
    require();
    return std::move(value_);
  }
  // Unchecked access: undefined when there is no value.
  T& operator*() & noexcept { return value_; }
  const T& operator*() const& noexcept { return value_; }
  T&& operator*() && noexcept { return std::move(value_); }
  T* operator->() noexcept { return &value_; }
  const T* operator->() const noexcept { return &value_; }

  // The error; a default (zero) error_code when there is a value.
  std::error_code error() const noexcept { return has_ ? std::error_code{} : error_; }

  template <class U>
  T value_or(U&& other) const& {
    return has_ ? value_ : static_cast<T>(std::forward<U>(other));
  }
  template <class U>
  T value_or(U&& other) && {
    return has_ ? std::move(value_) : static_cast<T>(std::forward<U>(other));
  }
  // f(value) -> Result<U>; passes an error through.
  template <class F>
  auto and_then(F&& f) && -> std::invoke_result_t<F, T> {
    if (has_) return std::forward<F>(f)(std::move(value_));
    return Unexpected{error_};
  }
  // f(value) -> U; passes an error through.
  template <class F>
  auto transform(F&& f) && -> Result<std::invoke_result_t<F, T>> {
    if (has_) return std::forward<F>(f)(std::move(value_));
    return Unexpected{error_};
  }
  // f(error) -> Result<T>; passes a value through.
  template <class F>
  Result or_else(F&& f) && {
    if (has_) return std::move(*this);
    return std::forward<F>(f)(error_);
  }

 private:
  void require() const {
    if (!has_) throw std::system_error(error_);
  }
  template <class R>
  void construct(R&& other) {
    if (has_) {
      new (&value_) T(std::forward<R>(other).value_);
    } else {
      new (&error_) std::error_code(other.error_);
    }
  }
  void destroy() noexcept {
    if (has_) value_.~T();
  }

  union {
    T value_;
    std::error_code error_;
  };
  bool has_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  using error_type = std::error_code;

  Result() noexcept = default;
  Result(Unexpected failure) noexcept : error_(failure.error), has_(false) {}

  bool has_value() const noexcept { return has_; }
  explicit operator bool() const noexcept { return has_; }
  void value() const {
    if (!has_) throw std::system_error(error_);
  }
  void operator*() const noexcept {}
  std::error_code error() const noexcept { return error_; }
  template <class F>
  auto and_then(F&& f) && -> std::invoke_result_t<F> {
    if (has_) return std::forward<F>(f)();
    return Unexpected{error_};
  }
  template <class F>
  Result or_else(F&& f) && {
    if (has_) return *this;
    return std::forward<F>(f)(error_);
  }

 private:
  std::error_code error_;
  bool has_ = true;
};

// `RUNLOOM_TRY(auto n, stream.read_some(buf));` binds the value or returns the error. Several
// statements: not for an `if` without braces, and once a line. A Result<void> has nothing to bind:
// `if (auto sent = stream.write_all(data); !sent) return sent;`
#define RUNLOOM_TRY_CONCAT_(a, b) a##b
#define RUNLOOM_TRY_CONCAT(a, b) RUNLOOM_TRY_CONCAT_(a, b)
#define RUNLOOM_TRY(decl, expr) \
  RUNLOOM_TRY_IMPL(RUNLOOM_TRY_CONCAT(rl_result_, __LINE__), decl, expr)
#define RUNLOOM_TRY_IMPL(tmp, decl, expr)      \
  auto tmp = (expr);                           \
  if (!tmp) [[unlikely]]                       \
    return ::runloom::Unexpected{tmp.error()}; \
  decl = *std::move(tmp)

}  // namespace runloom
