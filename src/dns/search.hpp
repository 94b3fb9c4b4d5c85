// The search list: which names are asked for when a program asks for one, and what comes of the
// answers together. res_search(3), as glibc 2.36 has it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "impl.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::dns {

// What is known of a name that has nothing to give, in the order of <netdb.h>'s h_errno.
enum class Miss : unsigned char { none, host_not_found, no_data, try_again, no_recovery };

struct SearchResult {
  Miss miss = Miss::none;
  bool silent = false;           // try_again: nobody answered, or nobody was there
  std::error_code why;           // the particular of try_again
  std::array<Reply, 2> replies;  // one a type; when there is no miss, at least one has records
};

// Asks for records of up to two types. `early`, where given, is told of a part of the replies for
// the name that the result will be about, should the others be long in coming.
Result<SearchResult> search(Resolver::Impl& impl, std::string_view name,
                            std::span<const RecordType> types, const Config& config,
                            Deadline deadline, const EarlyReplies* early = nullptr);

}  // namespace runloom::dns
