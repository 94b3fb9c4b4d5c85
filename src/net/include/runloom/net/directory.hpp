// Directory: the names in a directory, read in batches.
//
// Parks while the file system is asked, and is a cancel point; see file.hpp for both and for the
// errors. One fiber at a time uses a Directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runloom/net/file.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct DirectoryEntry {
  std::string name;
  FileType type = FileType::unknown;  // of the entry itself; unknown on some file systems
  std::uint64_t inode = 0;
  friend bool operator==(const DirectoryEntry&, const DirectoryEntry&) = default;
};

class Directory {
 public:
  // ENOTDIR for anything else.
  static Result<Directory> open(std::string path, Deadline deadline = {});
  // A relative path begins at `directory`. A last step that is a symbolic link is not followed.
  static Result<Directory> open_at(const File& directory, std::string path, Deadline deadline = {});
  Directory(Directory&&) noexcept;
  Directory& operator=(Directory&&) noexcept;
  ~Directory();

  // The next entry, in no order; nothing at the end. "." and ".." are left out. What is made or
  // removed meanwhile may or may not be seen; everything else is, once.
  Result<std::optional<DirectoryEntry>> next(Deadline deadline = {});
  // To open entries with File::open_at.
  const File& file() const noexcept { return file_; }

 private:
  struct Batch;
  explicit Directory(File file) noexcept;
  Result<bool> fetch(Deadline deadline);

  File file_;
  std::unique_ptr<Batch> batch_;
};

// All entries, sorted by name.
Result<std::vector<DirectoryEntry>> list_directory(std::string path, Deadline deadline = {});

}  // namespace runloom::net
