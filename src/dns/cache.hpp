// Cache: answers for as long as their TTL says, and that a name or a type does not exist (RFC
// 2308). Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runloom/dns/record.hpp"

namespace runloom::dns {

class Cache {
 public:
  // 0 entries: it keeps nothing.
  Cache(std::size_t entries, std::chrono::seconds longest) noexcept
      : most_(entries), longest_(longest) {}

  bool enabled() const noexcept { return most_ > 0; }
  // An answer with what is left of its TTLs; null: none.
  std::shared_ptr<const Answer> find(std::string_view name, RecordType type, std::int64_t now);
  void add(std::string_view name, RecordType type, std::shared_ptr<const Answer> answer,
           std::int64_t now);
  void clear() noexcept;
  std::size_t size() const noexcept;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Answer> answer;
    std::int64_t since;
    std::int64_t until;
  };
  const std::size_t most_;
  const std::chrono::seconds longest_;
  mutable std::mutex mutex_;
  // Guarded by mutex_: the least lately used ones last.
  std::list<Entry> entries_;
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
};

// For how many seconds an answer may be kept; none: not at all.
std::optional<std::uint32_t> lifetime(const Answer& answer) noexcept;

}  // namespace runloom::dns
