// CRC-32C (Castagnoli), as the PROXY protocol and iSCSI (RFC 3720, appendix B.4) have it. For a few
// hundred bytes a connection, so a table of 16 is enough.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace runloom::net {

class Crc32c {
 public:
  void add(std::uint8_t byte) noexcept {
    value_ ^= byte;
    value_ = (value_ >> 4) ^ kTable[value_ & 15];
    value_ = (value_ >> 4) ^ kTable[value_ & 15];
  }
  std::uint32_t value() const noexcept { return ~value_; }

 private:
  static constexpr std::array<std::uint32_t, 16> kTable = [] {
    std::array<std::uint32_t, 16> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 4; ++bit)
        value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t value_ = ~std::uint32_t{0};
};

}  // namespace runloom::net
