// What the file system does by path.
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <new>
#include <string_view>

#include "file_op.hpp"
#include "file_use.hpp"
#include "runloom/net/file.hpp"

namespace runloom::net {
namespace {

bool has_zero(std::string_view path) noexcept {
  return path.find('\0') != std::string_view::npos;
}

Result<void> run_on_path(FileCall call, std::string path, int flags, mode_t mode,
                         Deadline deadline) {
  if (has_zero(path)) return fail_errno(EINVAL);
  FileOp op(call);
  op.path = std::move(path);
  op.flags = flags;
  op.mode = mode;
  const auto done = run_waiting(op, deadline);
  if (!done) return Unexpected{done.error()};
  return {};
}

FileType type_of(unsigned mode) noexcept {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return FileType::regular;
    case S_IFDIR:
      return FileType::directory;
    case S_IFLNK:
      return FileType::link;
    case S_IFIFO:
      return FileType::fifo;
    case S_IFSOCK:
      return FileType::socket;
    case S_IFCHR:
      return FileType::character_device;
    case S_IFBLK:
      return FileType::block_device;
    default:
      return FileType::unknown;
  }
}

timespec time_of(const statx_timestamp& time) noexcept {
  return {.tv_sec = time.tv_sec, .tv_nsec = static_cast<long>(time.tv_nsec)};
}

FileStatus to_status(const struct statx& found) noexcept {
  return {
      .type = type_of(found.stx_mode),
      .mode = found.stx_mode & 07777u,
      .size = found.stx_size,
      .blocks = found.stx_blocks,
      .inode = found.stx_ino,
      .device = ::makedev(found.stx_dev_major, found.stx_dev_minor),
      .links = found.stx_nlink,
      .user = found.stx_uid,
      .group = found.stx_gid,
      .accessed = time_of(found.stx_atime),
      .modified = time_of(found.stx_mtime),
      .changed = time_of(found.stx_ctime),
  };
}

Result<FileStatus> run_status(int fd, FileUse use, std::string path, int flags, Deadline deadline) {
  auto op = std::unique_ptr<FileOp>(new (std::nothrow) FileOp(FileCall::status));
  if (!op) return fail_errno(ENOMEM);
  op->fd = fd;
  op->use = std::move(use);
  op->path = std::move(path);
  op->flags = flags;
  const auto done = run_or_leave(op, deadline);
  if (!done) return Unexpected{done.error()};
  return to_status(op->status);
}

// Six letters and digits.
Result<std::string> random_suffix() {
  static constexpr char kLetters[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789__";
  unsigned char bytes[6];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return fail(last_errno());
  std::string text;
  for (const unsigned char byte : bytes)
    text += kLetters[byte % 64];
  return text;
}

}  // namespace

Result<FileStatus> File::status(Deadline deadline) const {
  FileUse use = use_of(*this);
  if (!use) return fail(Errc::closed);
  const int fd = use.number();
  return run_status(fd, std::move(use), {}, AT_EMPTY_PATH, deadline);
}

Result<FileStatus> file_status(std::string path, bool follow_links, Deadline deadline) {
  if (has_zero(path)) return fail_errno(EINVAL);
  const int flags = follow_links ? 0 : AT_SYMLINK_NOFOLLOW;
  return run_status(AT_FDCWD, FileUse(), std::move(path), flags, deadline);
}

Result<void> rename_file(std::string from, std::string to, Deadline deadline) {
  if (has_zero(from) || has_zero(to)) return fail_errno(EINVAL);
  FileOp op(FileCall::rename);
  op.path = std::move(from);
  op.other_path = std::move(to);
  const auto done = run_waiting(op, deadline);
  if (!done) return Unexpected{done.error()};
  return {};
}

Result<void> remove_file(std::string path, Deadline deadline) {
  return run_on_path(FileCall::remove, std::move(path), 0, 0, deadline);
}

Result<void> remove_directory(std::string path, Deadline deadline) {
  return run_on_path(FileCall::remove, std::move(path), AT_REMOVEDIR, 0, deadline);
}

Result<void> make_directory(std::string path, mode_t mode, Deadline deadline) {
  return run_on_path(FileCall::make_directory, std::move(path), 0, mode, deadline);
}

Result<TempFile> make_temp_file(const std::string& directory, const std::string& prefix,
                                Deadline deadline) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    RUNLOOM_TRY(const std::string suffix, random_suffix());
    std::string path = directory;
    path.append(1, '/').append(prefix).append(suffix);
    auto made = File::open(path, O_RDWR | O_CREAT | O_EXCL, 0600, deadline);
    if (made) return TempFile{std::move(*made), std::move(path)};
    if (made.error() != errno_code(EEXIST)) return Unexpected{made.error()};
  }
  return fail_errno(EEXIST);
}

}  // namespace runloom::net
