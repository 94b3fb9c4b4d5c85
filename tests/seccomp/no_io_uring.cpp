// Runs a program in a process that may not use io_uring, as container runtimes forbid it: a seccomp
// filter answers io_uring_setup, io_uring_enter and io_uring_register with EPERM.
//
//     no_io_uring PROGRAM [ARGUMENT...]
//
// The program finds RUNLOOM_TEST_NO_IO_URING=1 in its environment. Source: seccomp(2).
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace {

#if defined(__x86_64__)
constexpr unsigned kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "name the AUDIT_ARCH_* of this architecture"
#endif

bool install() {
  constexpr unsigned kRefuse = SECCOMP_RET_ERRNO | EPERM;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      // The three numbers follow each other: setup, enter, register.
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, kRefuse),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  static_assert(SYS_io_uring_register == SYS_io_uring_setup + 2);
  if (argc < 2) {
    std::fprintf(stderr, "usage: no_io_uring PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  if (!install()) {
    std::perror("seccomp");
    return 77;  // as CTest's SKIP_RETURN_CODE
  }
  io_uring_params parameters{};
  if (::syscall(SYS_io_uring_setup, 2, &parameters) != -1 || errno != EPERM) {
    std::fprintf(stderr, "io_uring_setup is not refused\n");
    return 1;
  }
  ::setenv("RUNLOOM_TEST_NO_IO_URING", "1", 1);
  ::execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return 127;
}
