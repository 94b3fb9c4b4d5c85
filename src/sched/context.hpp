// A suspended C stack and the jump between two of them: the only user of Boost.Context.
//
// jump_fcontext keeps the callee-saved registers, MXCSR and the x87 control word. What the C++
// runtime keeps per thread and a fiber may hold across a park is exchanged here too: the caught
// exceptions of __cxa_get_globals (a fiber may park inside a catch block) and errno.
#pragma once

#include <cxxabi.h>

#include <boost/context/detail/fcontext.hpp>
#include <cerrno>
#include <cstddef>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#define RUNLOOM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RUNLOOM_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define RUNLOOM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RUNLOOM_TSAN 1
#endif
#endif
#ifdef RUNLOOM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef RUNLOOM_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace runloom::detail {

// The Itanium C++ ABI's per-thread exception state.
struct EhGlobals {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};
inline EhGlobals* thread_eh_globals() noexcept {
  return reinterpret_cast<EhGlobals*>(__cxxabiv1::__cxa_get_globals());
}

// What a switch needs of the OS thread; looked up once, valid because fibers stay on it (I1).
struct ThreadPointers {
  EhGlobals* eh = nullptr;
  int* error = nullptr;
  void bind() noexcept {
    eh = thread_eh_globals();
    error = &errno;
  }
};

// jump_fcontext leaves by an indirect jump, not by a return. Entered by a call it would leave one
// stale entry on the processor's return stack, and the next return of whoever runs then is
// mispredicted (18 ns measured, four times the jump itself). So it is entered by a jump.
inline boost::context::detail::transfer_t jump_balanced(boost::context::detail::fcontext_t to,
                                                        void* data) noexcept {
#if defined(__x86_64__) && !defined(__CET__)
  boost::context::detail::fcontext_t from;
  void* arrived_data;
  asm volatile(
      "lea -128(%%rsp), %%rsp\n\t"  // past the red zone
      "lea 1f(%%rip), %%rax\n\t"
      "push %%rax\n\t"
      "jmp *%[jump]\n\t"
      "1:\n\t"
      "lea 128(%%rsp), %%rsp\n\t"
      : "=&a"(from), "=&d"(arrived_data), "+D"(to), "+S"(data)
      : [jump] "r"(&boost::context::detail::jump_fcontext)
      : "rcx", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",
        "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc",
        "memory");
  return {from, arrived_data};
#else
  return boost::context::detail::jump_fcontext(to, data);
#endif
}

class Context {
 public:
  using Entry = void (*)(boost::context::detail::transfer_t);

  // A fresh context at the top of [stack_low, stack_high).
  void make(void* stack_low, void* stack_high, Entry entry) noexcept {
    const auto size =
        static_cast<std::size_t>(static_cast<char*>(stack_high) - static_cast<char*>(stack_low));
    handle_ = boost::context::detail::make_fcontext(stack_high, size, entry);
    eh_ = EhGlobals{};
    errno_ = 0;
#ifdef RUNLOOM_ASAN
    fake_stack_ = nullptr;
    low_ = stack_low;
    size_ = size;
    ASAN_UNPOISON_MEMORY_REGION(stack_low, size);
#endif
#ifdef RUNLOOM_TSAN
    tsan_fiber_ = __tsan_create_fiber(0);
#endif
  }

  // Where the suspended stack ends; its callers' frames lie above.
  const void* stack_pointer() const noexcept {
    return handle_;
  }

  // The context of the calling thread's own stack, to be switched from.
  void adopt_thread() noexcept {
#ifdef RUNLOOM_ASAN
    fake_stack_ = nullptr;
    low_ = nullptr;  // learnt at the first switch away
    size_ = 0;
#endif
#ifdef RUNLOOM_TSAN
    tsan_fiber_ = __tsan_get_current_fiber();
#endif
  }

  // Runs `to`; returns when something switches back to `from`.
  static void jump(Context& from, Context& to, ThreadPointers thread) noexcept {
    from.eh_ = *thread.eh;
    *thread.eh = to.eh_;
    from.errno_ = *thread.error;
    *thread.error = to.errno_;
#ifdef RUNLOOM_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.low_, to.size_);
#endif
#ifdef RUNLOOM_TSAN
    __tsan_switch_to_fiber(to.tsan_fiber_, 0);
#endif
    arrived(from, jump_balanced(to.handle_, &from));
  }

  // The last jump of a context that ends: never returns.
  [[noreturn]] static void jump_last(Context& from, Context& to, ThreadPointers thread) noexcept {
    *thread.eh = to.eh_;
    *thread.error = to.errno_;
#ifdef RUNLOOM_ASAN
    __sanitizer_start_switch_fiber(nullptr, to.low_, to.size_);
#endif
#ifdef RUNLOOM_TSAN
    __tsan_switch_to_fiber(to.tsan_fiber_, 0);
#endif
    boost::context::detail::jump_fcontext(to.handle_, &from);
    __builtin_unreachable();
  }

  // First thing on a fresh context.
  static void entered(Context& self, boost::context::detail::transfer_t transfer) noexcept {
    arrived(self, transfer);
  }

  // After the context has ended for good, on another one.
  void destroy() noexcept {
#ifdef RUNLOOM_TSAN
    __tsan_destroy_fiber(tsan_fiber_);
#endif
  }

 private:
  static void arrived(Context& self, boost::context::detail::transfer_t transfer) noexcept {
    auto& previous = *static_cast<Context*>(transfer.data);
    previous.handle_ = transfer.fctx;
#ifdef RUNLOOM_ASAN
    const void* low = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(self.fake_stack_, &low, &size);
    previous.low_ = low;
    previous.size_ = size;
#else
    (void)self;
#endif
  }

  boost::context::detail::fcontext_t handle_ = nullptr;
  EhGlobals eh_;
  int errno_ = 0;
#ifdef RUNLOOM_ASAN
  void* fake_stack_ = nullptr;
  const void* low_ = nullptr;
  std::size_t size_ = 0;
#endif
#ifdef RUNLOOM_TSAN
  void* tsan_fiber_ = nullptr;
#endif
};

}  // namespace runloom::detail
