#include "runloom/dns/record.hpp"

#include <arpa/inet.h>

#include <array>
#include <charconv>

#include "message.hpp"
#include "runloom/dns/error.hpp"

namespace runloom::dns {
namespace {

struct TypeName {
  RecordType type;
  std::string_view name;
};
constexpr std::array kTypes{
    TypeName{RecordType::a, "A"},         TypeName{RecordType::ns, "NS"},
    TypeName{RecordType::cname, "CNAME"}, TypeName{RecordType::soa, "SOA"},
    TypeName{RecordType::ptr, "PTR"},     TypeName{RecordType::mx, "MX"},
    TypeName{RecordType::txt, "TXT"},     TypeName{RecordType::aaaa, "AAAA"},
    TypeName{RecordType::srv, "SRV"},     TypeName{RecordType::dname, "DNAME"},
    TypeName{RecordType::svcb, "SVCB"},   TypeName{RecordType::https, "HTTPS"},
    TypeName{RecordType::any, "ANY"},     TypeName{RecordType::caa, "CAA"},
};

template <class T>
bool take(Bytes data, T& value) {
  if (data.size() != sizeof value) return false;
  std::copy(data.begin(), data.end(), reinterpret_cast<std::byte*>(&value));
  return true;
}

SvcbData read_svcb(Reader& reader) {
  SvcbData data;
  data.priority = reader.u16();
  data.target = reader.name();
  while (reader.ok() && reader.left() > 0) {
    const std::uint16_t key = reader.u16();
    data.parameters.emplace_back(key, reader.text(reader.u16()));
  }
  return data;
}

// The data of a record, from `reader`, which is limited to it. False: it can't be read.
bool read_data(Record& record, Reader& reader) {
  switch (record.type) {
    case RecordType::a: {
      in_addr ip;
      if (!take(reader.bytes(reader.left()), ip)) return false;
      record.data = ip;
      return true;
    }
    case RecordType::aaaa: {
      in6_addr ip;
      if (!take(reader.bytes(reader.left()), ip)) return false;
      record.data = ip;
      return true;
    }
    case RecordType::ns:
    case RecordType::cname:
    case RecordType::ptr:
    case RecordType::dname:
      record.data = NameData{reader.name()};
      break;
    case RecordType::mx: {
      MxData data;
      data.preference = reader.u16();
      data.exchange = reader.name();
      record.data = std::move(data);
      break;
    }
    case RecordType::txt: {
      TxtData data;
      while (reader.ok() && reader.left() > 0)
        data.strings.push_back(reader.short_text());
      record.data = std::move(data);
      break;
    }
    case RecordType::srv: {
      SrvData data;
      data.priority = reader.u16();
      data.weight = reader.u16();
      data.port = reader.u16();
      data.target = reader.name();
      record.data = std::move(data);
      break;
    }
    case RecordType::caa: {
      CaaData data;
      data.flags = reader.u8();
      data.tag = reader.short_text();
      data.value = reader.text(reader.left());
      record.data = std::move(data);
      break;
    }
    case RecordType::soa: {
      SoaData data;
      data.primary = reader.name();
      data.mailbox = reader.name();
      for (auto* number : {&data.serial, &data.refresh, &data.retry, &data.expire, &data.minimum})
        *number = reader.u32();
      record.data = std::move(data);
      break;
    }
    case RecordType::svcb:
    case RecordType::https:
      record.data = read_svcb(reader);
      break;
    default:
      record.data = OtherData{reader.text(reader.left())};
      break;
  }
  return reader.ok() && reader.left() == 0;
}

bool read_record(Bytes message, Reader& reader, Record& record) {
  record.name = reader.name();
  record.type = static_cast<RecordType>(reader.u16());
  record.record_class = reader.u16();
  record.ttl = reader.u32();
  if (record.ttl > 0x7fff'ffff) record.ttl = 0;  // RFC 2181, 8
  const std::size_t size = reader.u16();
  const std::size_t at = reader.at();
  reader.bytes(size);
  if (!reader.ok()) return false;
  // Data of a class that we don't know means anything.
  Reader data(message, at);
  data.limit(at + size);
  if (record.record_class != 1) {
    record.data = OtherData{data.text(size)};
    return true;
  }
  return read_data(record, data);
}

std::string quoted(std::string_view bytes) {
  std::string out = "\"";
  for (const char c : bytes) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u >= 0x20 && u < 0x7f) {
      out += c;
    } else {
      const std::string number = std::to_string(u);
      out += '\\' + std::string(3 - number.size(), '0') + number;
    }
  }
  return out + '"';
}

std::string absolute(const std::string& name) {
  return name == "." ? name : name + '.';
}

std::string ip_text(int family, const void* ip) {
  char text[INET6_ADDRSTRLEN];
  return ::inet_ntop(family, ip, text, sizeof text) ? text : "";
}

std::string hex(std::string_view bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

// RFC 9460: the keys that have a form of their own, the rest as keyN="...".
std::string svcb_parameter(std::uint16_t key, const std::string& value) {
  Reader reader(std::as_bytes(std::span(value)));
  std::string list;
  const auto add = [&](const std::string& item) { list += (list.empty() ? "" : ",") + item; };
  switch (key) {
    case 1:
      while (reader.ok() && reader.left() > 0)
        add(reader.short_text());
      if (reader.ok()) return "alpn=" + quoted(list);
      break;
    case 2:
      if (value.empty()) return "no-default-alpn";
      break;
    case 3:
      if (value.size() == 2) return "port=" + std::to_string(reader.u16());
      break;
    case 4:
      if (value.empty() || value.size() % 4 != 0) break;
      while (reader.left() > 0)
        add(ip_text(AF_INET, reader.bytes(4).data()));
      return "ipv4hint=" + list;
    case 6:
      if (value.empty() || value.size() % 16 != 0) break;
      while (reader.left() > 0)
        add(ip_text(AF_INET6, reader.bytes(16).data()));
      return "ipv6hint=" + list;
    default:
      break;
  }
  return "key" + std::to_string(key) + '=' + quoted(value);
}

struct DataText {
  std::string operator()(const in_addr& ip) const { return ip_text(AF_INET, &ip); }
  std::string operator()(const in6_addr& ip) const { return ip_text(AF_INET6, &ip); }
  std::string operator()(const NameData& data) const { return absolute(data.name); }
  std::string operator()(const MxData& data) const {
    return std::to_string(data.preference) + ' ' + absolute(data.exchange);
  }
  std::string operator()(const TxtData& data) const {
    std::string out;
    for (const auto& text : data.strings)
      out += (out.empty() ? "" : " ") + quoted(text);
    return out;
  }
  std::string operator()(const SrvData& data) const {
    return std::to_string(data.priority) + ' ' + std::to_string(data.weight) + ' ' +
           std::to_string(data.port) + ' ' + absolute(data.target);
  }
  std::string operator()(const CaaData& data) const {
    return std::to_string(data.flags) + ' ' + data.tag + ' ' + quoted(data.value);
  }
  std::string operator()(const SoaData& data) const {
    std::string out = absolute(data.primary) + ' ' + absolute(data.mailbox);
    for (const auto number : {data.serial, data.refresh, data.retry, data.expire, data.minimum})
      out += ' ' + std::to_string(number);
    return out;
  }
  std::string operator()(const SvcbData& data) const {
    std::string out = std::to_string(data.priority) + ' ' + absolute(data.target);
    for (const auto& [key, value] : data.parameters)
      out += ' ' + svcb_parameter(key, value);
    return out;
  }
  std::string operator()(const OtherData& data) const {  // RFC 3597
    std::string out = "\\# " + std::to_string(data.bytes.size());
    if (!data.bytes.empty()) out += ' ' + hex(data.bytes);
    return out;
  }
};

}  // namespace

std::string to_string(RecordType type) {
  for (const TypeName& known : kTypes)
    if (known.type == type) return std::string(known.name);
  return "TYPE" + std::to_string(static_cast<unsigned>(type));
}

Result<RecordType> parse_record_type(std::string_view text) {
  for (const TypeName& known : kTypes)
    if (same_name(known.name, text)) return known.type;
  if (text.size() > 4 && same_name(text.substr(0, 4), "TYPE")) {
    std::uint16_t number = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + 4, end, number);
    if (error == std::errc() && at == end) return static_cast<RecordType>(number);
  }
  return fail_errno(EINVAL);
}

std::string data_text(const Record& record) {
  return std::visit(DataText{}, record.data);
}

std::string to_string(const Record& record) {
  const std::string record_class =
      record.record_class == 1 ? "IN" : "CLASS" + std::to_string(record.record_class);
  return absolute(record.name) + ' ' + std::to_string(record.ttl) + ' ' + record_class + ' ' +
         to_string(record.type) + ' ' + data_text(record);
}

Result<Answer> parse_answer(std::span<const std::byte> message) {
  Reader reader(message);
  const Header header = read_header(reader);
  if (!reader.ok() || !header.is_answer() || header.counts[0] > 1) return fail(DnsErrc::bad_answer);
  Answer answer;
  if (header.counts[0] == 1) {
    answer.name = reader.name();
    answer.type = static_cast<RecordType>(reader.u16());
    reader.u16();
    if (!reader.ok()) return fail(DnsErrc::bad_answer);
  }
  answer.rcode = header.rcode();
  answer.authoritative = header.authoritative();
  answer.truncated = header.truncated();
  answer.recursion_available = header.recursion_available();
  answer.authenticated = header.authenticated();

  std::vector<Record>* const sections[] = {&answer.answers, &answer.authorities,
                                           &answer.additionals};
  for (std::size_t section = 0; section < 3; ++section) {
    for (unsigned i = 0; i < header.counts[section + 1]; ++i) {
      Record record;
      if (read_record(message, reader, record)) {
        sections[section]->push_back(std::move(record));
      } else if (answer.truncated) {
        return answer;
      } else {
        return fail(DnsErrc::bad_answer);
      }
    }
  }
  return answer;
}

}  // namespace runloom::dns
