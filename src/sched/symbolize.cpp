#include "symbolize.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace runloom::detail {
namespace {

// A file, mapped to be read.
class MappedFile {
 public:
  explicit MappedFile(const char* path) noexcept {
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat about {};
    if (::fstat(fd, &about) == 0 && about.st_size > 0) {
      const auto size = static_cast<std::size_t>(about.st_size);
      void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
      if (memory != MAP_FAILED) {
        data_ = static_cast<const char*>(memory);
        size_ = size;
      }
    }
    ::close(fd);
  }
  ~MappedFile() {
    if (data_) ::munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // `count` objects at `offset`; null when they don't lie in the file.
  template <class T>
  const T* at(std::uint64_t offset, std::uint64_t count) const noexcept {
    if (offset > size_ || count > (size_ - offset) / sizeof(T)) return nullptr;
    if (offset % alignof(T) != 0) return nullptr;
    return reinterpret_cast<const T*>(data_ + offset);
  }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

struct Symbol {
  std::string name;
  std::uint64_t offset = 0;  // of the address in it
};

// The function of the file's full symbol table that holds `address` (as linked). The dynamic
// table, which dladdr reads, lacks what an executable does not export.
Symbol find_symbol(const MappedFile& file, std::uint64_t address) {
  const auto* header = file.at<ElfW(Ehdr)>(0, 1);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return {};
  const auto* sections = file.at<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
  if (!sections) return {};
  for (int i = 0; i < header->e_shnum; ++i) {
    const auto& table = sections[i];
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
    const auto& strings = sections[table.sh_link];
    const std::uint64_t count = table.sh_size / sizeof(ElfW(Sym));
    const auto* symbols = file.at<ElfW(Sym)>(table.sh_offset, count);
    const char* text = file.at<char>(strings.sh_offset, strings.sh_size);
    if (!symbols || !text || strings.sh_size == 0 || text[strings.sh_size - 1] != '\0') return {};
    for (std::uint64_t s = 0; s < count; ++s) {
      const auto& symbol = symbols[s];
      if ((symbol.st_info & 0xf) != STT_FUNC || symbol.st_name >= strings.sh_size) continue;
      if (address < symbol.st_value || address - symbol.st_value >= symbol.st_size) continue;
      return {text + symbol.st_name, address - symbol.st_value};
    }
  }
  return {};
}

std::string hex(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string demangled(const char* name) {
  int status = 0;
  char* plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = plain && status == 0 ? plain : name;
  std::free(plain);
  return text;
}

}  // namespace

std::string describe_frame(void* pc, bool is_return_address) {
  // A return address belongs to the call before it, which may be a function's last instruction.
  const auto address = reinterpret_cast<std::uintptr_t>(pc) - (is_return_address ? 1 : 0);
  Dl_info info{};
  link_map* map = nullptr;
  if (::dladdr1(reinterpret_cast<void*>(address), &info, reinterpret_cast<void**>(&map),
                RTLD_DL_LINKMAP) == 0 ||
      !map)
    return hex(reinterpret_cast<std::uintptr_t>(pc));
  const char* object = map->l_name[0] ? map->l_name : "/proc/self/exe";
  Symbol symbol = find_symbol(MappedFile(object), address - map->l_addr);
  if (symbol.name.empty() && info.dli_sname)
    symbol = {info.dli_sname, address - reinterpret_cast<std::uintptr_t>(info.dli_saddr)};
  if (symbol.name.empty())
    return hex(reinterpret_cast<std::uintptr_t>(pc)) + " (" + info.dli_fname + "+" +
           hex(address - map->l_addr) + ")";
  return demangled(symbol.name.c_str()) + "+" + hex(symbol.offset) + " (" + info.dli_fname + ")";
}

}  // namespace runloom::detail
