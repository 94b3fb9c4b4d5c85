// getdents64(2) moves the position of the descriptor, so a fiber that is cancelled in the middle
// stays for the batch: nothing would tell where the next one begins.
#include "runloom/net/directory.hpp"

#include <dirent.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "file_op.hpp"
#include "file_use.hpp"

namespace runloom::net {
namespace {

constexpr std::size_t kBatch = 32 * 1024;

FileType type_of(unsigned char type) noexcept {
  switch (type) {
    case DT_REG:
      return FileType::regular;
    case DT_DIR:
      return FileType::directory;
    case DT_LNK:
      return FileType::link;
    case DT_FIFO:
      return FileType::fifo;
    case DT_SOCK:
      return FileType::socket;
    case DT_CHR:
      return FileType::character_device;
    case DT_BLK:
      return FileType::block_device;
    default:
      return FileType::unknown;
  }
}

}  // namespace

// What getdents64 wrote, of which `at` is the next record.
struct Directory::Batch {
  Batch() noexcept : op(FileCall::list) {}
  FileOp op;
  std::size_t at = 0;
  std::size_t end = 0;
};

Directory::Directory(File file) noexcept : file_(std::move(file)) {}
Directory::Directory(Directory&&) noexcept = default;
Directory& Directory::operator=(Directory&&) noexcept = default;
Directory::~Directory() = default;

Result<Directory> Directory::open(std::string path, Deadline deadline) {
  RUNLOOM_TRY(File file, File::open(std::move(path), O_RDONLY | O_DIRECTORY, 0, deadline));
  return Directory(std::move(file));
}

Result<Directory> Directory::open_at(const File& directory, std::string path, Deadline deadline) {
  RUNLOOM_TRY(File file, File::open_at(directory, std::move(path),
                                       O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, deadline));
  return Directory(std::move(file));
}

Result<bool> Directory::fetch(Deadline deadline) {
  if (!batch_) {
    batch_.reset(new (std::nothrow) Batch);
    if (batch_) batch_->op.memory = allocate_aligned(kBatch);
    if (!batch_ || !batch_->op.memory) {
      batch_.reset();
      return fail_errno(ENOMEM);
    }
  }
  const FileUse use = use_of(file_);
  if (!use) return fail(Errc::closed);
  FileOp& op = batch_->op;
  op.fd = use.number();
  op.size = kBatch;
  RUNLOOM_TRY(const long filled, run_waiting(op, deadline));
  batch_->at = 0;
  batch_->end = static_cast<std::size_t>(filled);
  return filled != 0;
}

Result<std::optional<DirectoryEntry>> Directory::next(Deadline deadline) {
  for (;;) {
    if (!batch_ || batch_->at == batch_->end) {
      RUNLOOM_TRY(const bool more, fetch(deadline));
      if (!more) return std::optional<DirectoryEntry>();
    }
    // linux_dirent64 is what glibc calls dirent64; records are aligned to 8 bytes.
    const auto* record = reinterpret_cast<const dirent64*>(batch_->op.memory.get() + batch_->at);
    batch_->at += record->d_reclen;
    const std::string_view name(static_cast<const char*>(record->d_name));
    if (name == "." || name == "..") continue;
    return std::optional(DirectoryEntry{std::string(name), type_of(record->d_type), record->d_ino});
  }
}

Result<std::vector<DirectoryEntry>> list_directory(std::string path, Deadline deadline) {
  RUNLOOM_TRY(Directory directory, Directory::open(std::move(path), deadline));
  std::vector<DirectoryEntry> entries;
  for (;;) {
    RUNLOOM_TRY(auto entry, directory.next(deadline));
    if (!entry) break;
    entries.push_back(std::move(*entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

}  // namespace runloom::net
