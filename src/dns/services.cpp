#include "services.hpp"

#include <charconv>

#include "text.hpp"

namespace runloom::dns {

Services Services::parse(std::string_view text) {
  Services out;
  std::string_view line;
  while (next_line(text, line)) {
    line = without_comment(line);
    const std::string_view name = next_word(line);
    const std::string_view spec = next_word(line);
    const std::size_t slash = spec.find('/');
    if (slash == std::string_view::npos) continue;
    const std::string protocol(spec.substr(slash + 1));
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(spec.data(), spec.data() + slash, port);
    if (error != std::errc() || end != spec.data() + slash || protocol.empty()) continue;
    out.names_.emplace(std::pair(port, protocol), name);
    out.ports_.emplace(std::pair(std::string(name), protocol), port);
    for (auto alias = next_word(line); !alias.empty(); alias = next_word(line))
      out.ports_.emplace(std::pair(std::string(alias), protocol), port);
  }
  return out;
}

std::optional<std::uint16_t> Services::port(std::string_view name,
                                            std::string_view protocol) const {
  const auto it = ports_.find(std::pair(std::string(name), std::string(protocol)));
  if (it == ports_.end()) return std::nullopt;
  return it->second;
}

std::string_view Services::name(std::uint16_t port, std::string_view protocol) const {
  const auto it = names_.find(std::pair(port, std::string(protocol)));
  return it == names_.end() ? std::string_view() : it->second;
}

}  // namespace runloom::dns
