// File: an open regular file, block device or directory. And what the file system does by path.
//
// Everything here parks the fiber (on an OS thread: blocks) where a device, or the network behind a
// file system, may have to be waited for, and never stops the other fibers of the hub meanwhile.
// What the page cache has is read without parking. Any fiber and any OS thread may use a File at
// the same time, close() included; only moving and destroying it need that nobody else uses the
// object.
//
// Everything that parks is a cancel point. Outcomes, by precedence: something moved > closed >
// cancelled > timed out. A deadline that has passed still reads what is in memory. What a cancel
// or a deadline ends has not happened, except that a sync may still come to pass. Calls that
// change something (writes, truncate, rename, reads at the position, an open with O_CREAT or
// O_TRUNC) can't be taken back once the kernel works on them: the fiber then stays for the end of
// the piece that is under way, a megabyte at most, and the result counts. All others leave at once.
// See docs/decisions/040-what-a-cancelled-file-operation-leaves-behind.md.
//
// Fails with the errno of the system call, EINVAL for a path with a zero byte, Errc::closed for a
// file that was closed, cancelled, timed_out, thread_limit, park_forbidden.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

class Fd;
class FileUse;
struct FileState;

enum class FileType : std::uint8_t {
  unknown,  // only in listings of file systems that don't tell
  regular,
  directory,
  link,
  fifo,
  socket,
  character_device,
  block_device,
};

// statx(2).
struct FileStatus {
  FileType type = FileType::unknown;
  unsigned mode = 0;  // permissions, set-id and sticky bits
  std::uint64_t size = 0;
  std::uint64_t blocks = 0;  // of 512 bytes
  std::uint64_t inode = 0;
  std::uint64_t device = 0;  // dev_t
  std::uint32_t links = 0;
  std::uint32_t user = 0;
  std::uint32_t group = 0;
  timespec accessed{};
  timespec modified{};
  timespec changed{};
};

class File {
 public:
  File() noexcept = default;  // closed
  // open(2); close-on-exec always. `mode` counts for a file that is created. A FIFO, socket or
  // terminal is refused with ESPIPE, and never waited for.
  static Result<File> open(std::string path, int flags = O_RDONLY, mode_t mode = 0666,
                           Deadline deadline = {});
  // As open; a relative path begins at `directory`.
  static Result<File> open_at(const File& directory, std::string path, int flags = O_RDONLY,
                              mode_t mode = 0666, Deadline deadline = {});
  // Takes `fd` over. On failure it still belongs to the caller: EBADF, ESPIPE as open.
  static Result<File> adopt(int fd);
  File(File&&) noexcept = default;
  File& operator=(File&& other) noexcept;
  // Closes here and now, once nobody uses the file any more; an error of close(2) is lost. Who has
  // written calls close().
  ~File();

  // False once it was closed.
  explicit operator bool() const noexcept { return number() >= 0; }
  // The descriptor's number; -1 once it was closed.
  int number() const noexcept;

  // Waits for the operations in flight and closes. Fails with what close(2) says (EIO, ENOSPC,
  // EDQUOT: what was written is lost), or with the error of a sync whose fiber left before it;
  // Errc::closed when it was closed before. It is closed in any case. No cancel point; when
  // `deadline` passes (timed_out) the last operation in flight closes, and the error is lost.
  Result<void> close(Deadline deadline = {});
  // Waits likewise and hands the descriptor over.
  Result<int> detach(Deadline deadline = {});

  // --- from and to an offset; the position stays. Any number at the same time ---
  // Read until the buffers are full or the file ends; fewer bytes also when an error, the deadline
  // or a cancel ended it after some, or the file is none of blocks (/proc). 0 is the end.
  Result<std::size_t> read_at(std::span<std::byte> buffer, off_t offset,
                              Deadline deadline = {}) const;
  Result<std::size_t> readv_at(std::span<const iovec> buffers, off_t offset,
                               Deadline deadline = {}) const;
  // Write all; fewer bytes when an error (ENOSPC, EFBIG), the deadline or a cancel ended it after
  // some. With O_APPEND the kernel writes at the end all the same.
  Result<std::size_t> write_at(std::span<const std::byte> data, off_t offset,
                               Deadline deadline = {}) const;
  Result<std::size_t> writev_at(std::span<const iovec> buffers, off_t offset,
                                Deadline deadline = {}) const;
  // Whole, or an error: ReadErrc::end_of_stream when the file ends before. The count is set
  // whatever the outcome.
  Result<void> read_exact_at(std::span<std::byte> buffer, off_t offset, Deadline deadline = {},
                             std::size_t* bytes_read = nullptr) const;
  Result<void> write_all_at(std::span<const std::byte> data, off_t offset, Deadline deadline = {},
                            std::size_t* bytes_written = nullptr) const;

  // --- at the position of the descriptor, one after the other ---
  Result<std::size_t> read(std::span<std::byte> buffer, Deadline deadline = {}) const;
  Result<std::size_t> readv(std::span<const iovec> buffers, Deadline deadline = {}) const;
  Result<std::size_t> write(std::span<const std::byte> data, Deadline deadline = {}) const;
  Result<std::size_t> writev(std::span<const iovec> buffers, Deadline deadline = {}) const;
  Result<void> read_exact(std::span<std::byte> buffer, Deadline deadline = {},
                          std::size_t* bytes_read = nullptr) const;
  Result<void> write_all(std::span<const std::byte> data, Deadline deadline = {},
                         std::size_t* bytes_written = nullptr) const;
  // From the position to the end, files that grow and those without a size (/proc) included. Fails
  // with ReadErrc::limit_exceeded when that is more than `limit` bytes.
  Result<std::string> read_all(std::size_t limit = std::size_t{1} << 30,
                               Deadline deadline = {}) const;
  // lseek(2): the new position.
  Result<off_t> seek(off_t offset, int whence = SEEK_SET, Deadline deadline = {}) const;
  Result<off_t> position(Deadline deadline = {}) const { return seek(0, SEEK_CUR, deadline); }

  // --- the file itself ---
  Result<FileStatus> status(Deadline deadline = {}) const;
  Result<void> truncate(std::uint64_t size, Deadline deadline = {}) const;
  // fallocate(2): room for that many bytes; EOPNOTSUPP on some file systems.
  Result<void> allocate(off_t offset, std::uint64_t size, Deadline deadline = {}) const;
  // fsync(2) and fdatasync(2).
  Result<void> sync(Deadline deadline = {}) const;
  Result<void> sync_data(Deadline deadline = {}) const;

 private:
  explicit File(std::shared_ptr<FileState> state) noexcept : state_(std::move(state)) {}
  static Result<File> open_below(int directory, FileUse use, std::string path, int flags,
                                 mode_t mode, Deadline deadline);
  static Result<File> make(int fd, int flags);
  friend FileUse use_of(const File& file) noexcept;

  std::shared_ptr<FileState> state_;
};

// --- by path ---
Result<FileStatus> file_status(std::string path, bool follow_links = true, Deadline deadline = {});
// rename(2): replaces `to` at once and whole.
Result<void> rename_file(std::string from, std::string to, Deadline deadline = {});
// unlink(2), mkdir(2), rmdir(2).
Result<void> remove_file(std::string path, Deadline deadline = {});
Result<void> make_directory(std::string path, mode_t mode = 0777, Deadline deadline = {});
Result<void> remove_directory(std::string path, Deadline deadline = {});

// A new file in `directory`, open for reading and writing by its owner only.
struct TempFile {
  File file;
  std::string path;
};
Result<TempFile> make_temp_file(const std::string& directory, const std::string& prefix = "tmp",
                                Deadline deadline = {});

// --- between files, sockets and pipes, without a copy through user space ---
// Whole, fewer bytes only at the end of `from`: return how many. When they fail, `bytes_moved`
// tells how many were moved before.

// Copies a part of a file to another one (or elsewhere in the same), which shares the blocks where
// the file system can.
Result<std::uint64_t> copy_range(const File& from, off_t from_offset, const File& to,
                                 off_t to_offset, std::uint64_t size, Deadline deadline = {},
                                 std::uint64_t* bytes_moved = nullptr);
// To a socket, see Fd::send_file.
Result<std::size_t> send_file(const Fd& to, const File& from, off_t offset, std::size_t size,
                              Deadline deadline = {}, std::size_t* bytes_moved = nullptr);
// From a socket into a file. The bytes that were received when writing failed are lost.
Result<std::uint64_t> receive_file(const Fd& from, const File& to, off_t offset, std::uint64_t size,
                                   Deadline deadline = {}, std::uint64_t* bytes_moved = nullptr);

// Whether this process may make an io_uring: the kernel knows it, and neither
// kernel.io_uring_disabled nor a seccomp filter forbids it. Tried once.
bool io_uring_available() noexcept;
// Why the calls on files that may wait are on threads although a hub asked for a ring; empty: they
// aren't. Any thread.
std::string file_ring_refusal();

}  // namespace runloom::net
