// Records: what a name server answers, read and checked.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runloom/sched/result.hpp"

namespace runloom::dns {

// Any other number may be asked for, too; its data comes as bytes.
enum class RecordType : std::uint16_t {
  a = 1,
  ns = 2,
  cname = 5,
  soa = 6,
  ptr = 12,
  mx = 15,
  txt = 16,
  aaaa = 28,
  srv = 33,
  dname = 39,
  svcb = 64,
  https = 65,
  any = 255,
  caa = 257,
};
// "AAAA", "TYPE1234". And back, in any case; EINVAL for an unknown one.
std::string to_string(RecordType type);
Result<RecordType> parse_record_type(std::string_view text);

// Names are text as in zone files, without the trailing dot ("." is the root): a dot or a
// backslash inside a label is written \. and \\, what doesn't print \DDD.
struct NameData {  // NS, CNAME, PTR, DNAME
  std::string name;
};
struct MxData {
  std::uint16_t preference = 0;
  std::string exchange;
};
struct TxtData {
  std::vector<std::string> strings;  // bytes
};
struct SrvData {
  std::uint16_t priority = 0;
  std::uint16_t weight = 0;
  std::uint16_t port = 0;
  std::string target;
};
struct CaaData {
  std::uint8_t flags = 0;
  std::string tag;
  std::string value;
};
struct SoaData {
  std::string primary;
  std::string mailbox;
  std::uint32_t serial = 0;
  std::uint32_t refresh = 0;
  std::uint32_t retry = 0;
  std::uint32_t expire = 0;
  std::uint32_t minimum = 0;
};
struct SvcbData {              // SVCB, HTTPS: RFC 9460
  std::uint16_t priority = 0;  // 0: an alias
  std::string target;
  std::vector<std::pair<std::uint16_t, std::string>> parameters;  // key, its value as bytes
};
struct OtherData {
  std::string bytes;
};

struct Record {
  std::string name;
  RecordType type{};
  std::uint16_t record_class = 1;
  std::uint32_t ttl = 0;  // seconds
  std::variant<in_addr, in6_addr, NameData, MxData, TxtData, SrvData, CaaData, SoaData, SvcbData,
               OtherData>
      data{OtherData{}};
};
// As a zone file has it: "www.example.org. 300 IN A 192.0.2.1".
std::string to_string(const Record& record);
// The data alone: "192.0.2.1".
std::string data_text(const Record& record);

// A whole answer.
struct Answer {
  std::string name;  // the question
  RecordType type{};
  int rcode = 0;  // 0 NOERROR, 2 SERVFAIL, 3 NXDOMAIN, 5 REFUSED
  bool authoritative = false;
  bool truncated = false;  // the server had more, also over TCP
  bool recursion_available = false;
  bool authenticated = false;  // as the server claims
  std::vector<Record> answers;
  std::vector<Record> authorities;
  std::vector<Record> additionals;
};

// Reads an answer. Never reads outside `message`, and takes a time that is bounded by its size.
// DnsErrc::bad_answer for what is none. Records after the first one that can't be read are left out
// when the message says that it was truncated.
Result<Answer> parse_answer(std::span<const std::byte> message);

}  // namespace runloom::dns
