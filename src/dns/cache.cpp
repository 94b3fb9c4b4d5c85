#include "cache.hpp"

#include <algorithm>

#include "message.hpp"

namespace runloom::dns {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::uint32_t kLongestNegative = 3 * 3600;  // RFC 2308, 5

std::string key_of(std::string_view name, RecordType type) {
  if (name.size() > 1 && name.ends_with('.')) name.remove_suffix(1);
  return lower(name) + '/' + std::to_string(static_cast<unsigned>(type));
}

}  // namespace

std::optional<std::uint32_t> lifetime(const Answer& answer) noexcept {
  if (answer.truncated || (answer.rcode != 0 && answer.rcode != 3)) return std::nullopt;
  std::optional<std::uint32_t> shortest;
  if (answer.rcode == 0 && !answer.answers.empty()) {
    for (const Record& record : answer.answers)
      shortest = std::min(shortest.value_or(record.ttl), record.ttl);
    return shortest;
  }
  for (const Record& record : answer.authorities)
    if (const auto* soa = std::get_if<SoaData>(&record.data))
      return std::min({record.ttl, soa->minimum, kLongestNegative});
  return std::nullopt;
}

std::shared_ptr<const Answer> Cache::find(std::string_view name, RecordType type,
                                          std::int64_t now) {
  if (!enabled()) return nullptr;
  const std::string key = key_of(name, type);
  std::unique_lock hold(mutex_);
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return nullptr;
  const auto entry = it->second;
  if (entry->until <= now) {
    by_key_.erase(it);
    entries_.erase(entry);
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, entry);
  const auto age = static_cast<std::uint32_t>((now - entry->since) / kSecond);
  auto kept = entry->answer;
  hold.unlock();
  if (age == 0) return kept;
  auto aged = std::make_shared<Answer>(*kept);
  for (auto* section : {&aged->answers, &aged->authorities, &aged->additionals})
    for (Record& record : *section)
      record.ttl -= std::min(record.ttl, age);
  return aged;
}

void Cache::add(std::string_view name, RecordType type, std::shared_ptr<const Answer> answer,
                std::int64_t now) {
  if (!enabled()) return;
  const auto seconds = lifetime(*answer);
  if (!seconds || *seconds == 0) return;
  const std::int64_t kept = std::min<std::int64_t>(*seconds, longest_.count());
  Entry entry{key_of(name, type), std::move(answer), now, now + kept * kSecond};
  std::lock_guard hold(mutex_);
  if (const auto it = by_key_.find(entry.key); it != by_key_.end()) {
    const auto old = it->second;
    by_key_.erase(it);
    entries_.erase(old);
  }
  entries_.push_front(std::move(entry));
  by_key_.emplace(entries_.front().key, entries_.begin());
  if (entries_.size() > most_) {
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

void Cache::clear() noexcept {
  std::lock_guard hold(mutex_);
  by_key_.clear();
  entries_.clear();
}

std::size_t Cache::size() const noexcept {
  std::lock_guard hold(mutex_);
  return entries_.size();
}

}  // namespace runloom::dns
