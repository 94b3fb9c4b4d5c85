#include "runloom/dns/resolver.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/join_set.hpp"
#include "support/child.hpp"
#include "support/dns_test.hpp"
#include "support/race.hpp"

namespace runloom::dns {
namespace {

using namespace std::chrono_literals;
using namespace test;

const DnsServer::Script kWww =
    zone({{"www.test/A", {"192.0.2.1"}}, {"www.test/AAAA", {"2001:db8::1"}}});

NET_TEST(DnsResolver, ANameHasAddressesOfBothFamilies) {
  DnsFiles files;
  DnsServer server(kWww);
  Resolver resolver(files.options({server.address()}));
  auto found = addresses_of(resolver, "www.test");
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (Texts{"192.0.2.1", "2001:db8::1"}));
  EXPECT_EQ(addresses_of(resolver, "www.test", {.family = AF_INET, .socktype = SOCK_STREAM}),
            Texts{"192.0.2.1"});
  EXPECT_EQ(addresses_of(resolver, "www.test", {.family = AF_INET6, .socktype = SOCK_STREAM}),
            Texts{"2001:db8::1"});
  EXPECT_EQ(server.questions("www.test/A"), 2);
  EXPECT_EQ(server.questions("www.test/AAAA"), 2);
  EXPECT_EQ(resolver.stats().queries, 4u);
  EXPECT_EQ(resolver.stats().in_flight, 0u);
}

NET_TEST(DnsResolver, D12NumbersAskNobody) {
  DnsFiles files;
  DnsServer server(kWww);
  Resolver resolver(files.options({server.address()}));
  EXPECT_EQ(addresses_of(resolver, "127.1"), Texts{"127.0.0.1"});
  EXPECT_EQ(addresses_of(resolver, "0x7f.1"), Texts{"127.0.0.1"});
  EXPECT_EQ(addresses_of(resolver, "::1%lo"), Texts{"Name or service not known"});
  EXPECT_EQ(addresses_of(resolver, "fe80::1%lo"), Texts{"fe80::1"});
  const auto scoped = resolver.getaddrinfo("fe80::1%lo", "80", {.socktype = SOCK_STREAM});
  ASSERT_TRUE(scoped);
  EXPECT_EQ((*scoped)[0].address.to_string(), "[fe80::1%lo]:80");
  EXPECT_EQ(resolver.getaddrinfo("www.test", "80", {.flags = AI_NUMERICHOST}).error(),
            DnsErrc::not_found);
  EXPECT_EQ(resolver.resolve("[::1]", 80).value()[0].to_string(), "[::1]:80");
  EXPECT_EQ(server.questions(), 0);
  EXPECT_EQ(resolver.stats().reloads, 0u) << "no file is read for a number";
}

NET_TEST(DnsResolver, D02AHostOfOneFamilyAsksNoServer) {
  DnsFiles files;
  files.write("hosts", "192.0.2.7 Printer.test printer # at home\n192.0.2.8 printer\n::1 six\n");
  DnsServer server(kWww);
  Resolver resolver(files.options({server.address()}));
  EXPECT_EQ(addresses_of(resolver, "PRINTER"), (Texts{"192.0.2.7", "192.0.2.8"}));
  const auto named = resolver.getaddrinfo("printer", std::nullopt,
                                          {.flags = AI_CANONNAME, .socktype = SOCK_STREAM});
  ASSERT_TRUE(named);
  EXPECT_EQ((*named)[0].canonical_name, "Printer.test");
  EXPECT_EQ((*named)[1].canonical_name, "");
  EXPECT_EQ(server.questions(), 0);
  EXPECT_EQ(resolver.stats().from_files, 2u);
  // The other family alone is not in the file, so that is asked for.
  EXPECT_EQ(resolver.getaddrinfo("printer", std::nullopt, {.family = AF_INET6}).error(),
            DnsErrc::not_found);
  EXPECT_EQ(server.log(), Texts{"printer/AAAA"});
  EXPECT_EQ(addresses_of(resolver, "six", {.family = AF_INET, .socktype = SOCK_STREAM}),
            Texts{"127.0.0.1"});
}

NET_TEST(DnsResolver, D03ANewResolvConfIsSeen) {
  DnsFiles files;
  DnsServer server(kWww);
  auto options = files.options();
  // The server's port can't stand in the file; so the search list tells which file was read.
  options.servers = {server.address()};
  Resolver resolver(options);
  EXPECT_EQ(addresses_of(resolver, "www"), Texts{"Name or service not known"});
  files.write("resolv.conf", "search test\n");
  const Deadline limit = Deadline::after(10s);
  while (resolver.stats().reloads < 2 && !limit.passed()) {
    (void)addresses_of(resolver, "www");
    ASSERT_TRUE(this_fiber::sleep_for(5ms));
  }
  EXPECT_EQ(addresses_of(resolver, "www").size(), 2u);
  // Written in place, too.
  files.overwrite("hosts", "192.0.2.99 fresh\n");
  while (resolver.stats().reloads < 3 && !limit.passed()) {
    (void)addresses_of(resolver, "fresh");
    ASSERT_TRUE(this_fiber::sleep_for(5ms));
  }
  EXPECT_EQ(addresses_of(resolver, "fresh"), Texts{"192.0.2.99"});
}

// The names that were asked for, one search after the other.
Texts names_asked(std::string_view resolv_conf, std::string_view name) {
  DnsFiles files;
  files.write("resolv.conf", resolv_conf);
  DnsServer server(zone({}));
  Resolver resolver(files.options({server.address()}));
  (void)resolver.getaddrinfo(name, std::nullopt, {.family = AF_INET});
  Texts names = server.log();
  for (std::string& text : names)
    text.erase(text.find("/A"));
  return names;
}

NET_TEST(DnsResolver, D04TheSearchListIsGlibcs) {
  const std::string list = "search one.test two.test\n";
  EXPECT_EQ(names_asked(list, "a"), (Texts{"a.one.test", "a.two.test", "a"}));
  EXPECT_EQ(names_asked(list, "a.b"), (Texts{"a.b", "a.b.one.test", "a.b.two.test"}));
  EXPECT_EQ(names_asked(list, "a.b."), Texts{"a.b"});
  EXPECT_EQ(names_asked(list + "options ndots:0\n", "a"), (Texts{"a", "a.one.test", "a.two.test"}));
  EXPECT_EQ(names_asked(list + "options ndots:5\n", "a.b"),
            (Texts{"a.b.one.test", "a.b.two.test", "a.b"}));
  EXPECT_EQ(names_asked(list + "options ndots:5\n", "a.b.c.d.e.f"),
            (Texts{"a.b.c.d.e.f", "a.b.c.d.e.f.one.test", "a.b.c.d.e.f.two.test"}));
  EXPECT_EQ(names_asked("search .\n", "a"), Texts{"a"});
}

NET_TEST(DnsResolver, D06ErrorsAreToldApart) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    DnsReply reply(question);
    if (question.name == "nx.test") return responder.send(reply.rcode(3));
    if (question.name == "empty.test") return responder.send(reply);
    if (question.name == "servfail.test") return responder.send(reply.rcode(2));
    if (question.name == "refused.test") return responder.send(reply.rcode(5));
    if (question.name == "notimp.test") return responder.send(reply.rcode(4));
    if (question.name == "badid.test")
      return responder.send(reply.id(static_cast<std::uint16_t>(reply.id() + 1)).a("192.0.2.66"));
    if (question.name == "alias.test") return responder.send(reply.cname("nowhere.test"));
    if (question.name == "junk.test") return responder.send(reply.bytes() + "junk");
    if (question.name == "cut.test")
      return responder.send(reply.a("192.0.2.1").bytes().substr(0, 30));
  });
  auto options = files.options({server.address()});
  options.timeout = 50ms;
  options.attempts = 1;
  Resolver resolver(options);
  const auto error = [&](std::string_view name) {
    return resolver.getaddrinfo(name, "80", {.socktype = SOCK_STREAM}).error();
  };
  EXPECT_EQ(error("nx.test"), DnsErrc::not_found);
  EXPECT_EQ(error("empty.test"), DnsErrc::no_data);
  EXPECT_EQ(error("servfail.test"), DnsErrc::server_failure);
  EXPECT_EQ(error("refused.test"), DnsErrc::refused);
  EXPECT_EQ(error("notimp.test"), DnsErrc::server_failure);
  EXPECT_EQ(error("badid.test"), DnsErrc::no_answer);
  EXPECT_EQ(error("silence.test"), DnsErrc::no_answer);
  EXPECT_EQ(error("alias.test"), DnsErrc::not_found);
  EXPECT_EQ(error("junk.test"), DnsErrc::no_data);
  EXPECT_EQ(error("cut.test"), DnsErrc::bad_answer);
  for (const char* name : {"servfail.test", "refused.test", "silence.test"})
    EXPECT_EQ(eai(error(name)), EAI_AGAIN) << name;
  EXPECT_EQ(eai(error("nx.test")), EAI_NONAME);
  EXPECT_EQ(eai(error("empty.test")), EAI_NODATA);
  EXPECT_EQ(explain(error("nx.test"), "nx.test"), "nx.test: Name or service not known");
  EXPECT_GE(resolver.stats().dropped, 2u);
}

NET_TEST(DnsResolver, D06APortWithoutServerIsUnreachable) {
  DnsFiles files;
  const net::Address closed = [] {
    const DnsServer gone([](const DnsQuestion&, DnsServer::Responder&) {});
    return gone.address();
  }();
  Resolver resolver(files.options({closed}));
  const auto failed = resolver.getaddrinfo("www.test", "80", {});
  EXPECT_EQ(eai(failed.error()), EAI_AGAIN) << failed.error().message();
}

NET_TEST(DnsResolver, D08ATruncatedAnswerComesOverTcp) {
  DnsFiles files;
  const auto all = [](const DnsQuestion& question) {
    DnsReply reply(question);
    for (int i = 1; i <= 60; ++i)
      reply.a("192.0.2." + std::to_string(i));
    return reply;
  };
  DnsServer server([&](const DnsQuestion& question, DnsServer::Responder& responder) {
    if (!question.tcp) return responder.send(DnsReply(question).truncated().a("192.0.2.1"));
    const std::string message = all(question).bytes();
    if (question.name == "pieces.test") {
      // The length in two pieces, the rest in small ones.
      const std::string whole = be16(static_cast<unsigned>(message.size())) + message;
      for (std::size_t at = 0, i = 0; at < whole.size(); ++i) {
        const std::size_t size = i < 3 ? 1 : 97;
        responder.send_raw(whole.substr(at, size), std::chrono::milliseconds(1 + i));
        at += size;
      }
      return;
    }
    // Still not the whole: what is there counts.
    if (question.name == "still.test")
      return responder.send(DnsReply(question).truncated().a("192.0.2.1").a("192.0.2.2"));
    responder.send(message);
  });
  Resolver resolver(files.options({server.address()}));
  const Hints hints{.family = AF_INET, .socktype = SOCK_STREAM};
  EXPECT_EQ(addresses_of(resolver, "whole.test", hints).size(), 60u);
  EXPECT_EQ(addresses_of(resolver, "pieces.test", hints).size(), 60u);
  EXPECT_EQ(addresses_of(resolver, "still.test", hints).size(), 2u);
  EXPECT_EQ(resolver.stats().tcp_connections, 3u);
  // Back to back: two questions at a time over one connection.
  JoinSet<> set;
  for (const char* name : {"one.test", "two.test", "three.test"})
    ASSERT_TRUE(
        set.spawn([&, name] { EXPECT_EQ(addresses_of(resolver, name, hints).size(), 60u); }));
  EXPECT_TRUE(set.wait());
}

NET_TEST(DnsResolver, D24ForgedAnswersAreIgnored) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    const auto forged = [&] { return DnsReply(question).a("203.0.113.66"); };
    responder.send(forged().id(static_cast<std::uint16_t>(forged().id() ^ 1)));
    responder.send(forged().question("other.test", question.type));
    responder.send(forged().question(question.name, RecordType::mx));
    responder.send(forged().no_question());
    responder.send_from_elsewhere(forged().bytes());
    std::string not_an_answer = forged().bytes();
    not_an_answer[2] = static_cast<char>(not_an_answer[2] & 0x7f);
    responder.send(not_an_answer);
    responder.send("x");
    // A record of another name, in a right answer.
    responder.send_after(20ms,
                         DnsReply(question).a("203.0.113.67", "evil.test").a("192.0.2.1").bytes());
  });
  Resolver resolver(files.options({server.address()}));
  EXPECT_EQ(addresses_of(resolver, "www.test", {.family = AF_INET, .socktype = SOCK_STREAM}),
            Texts{"192.0.2.1"});
  EXPECT_EQ(resolver.stats().dropped, 6u);
}

NET_TEST(DnsResolver, D24PortsAndIdsDiffer) {
  DnsFiles files;
  std::mutex mutex;
  std::set<std::uint16_t> ids;  // guarded by mutex
  DnsServer server([&](const DnsQuestion& question, DnsServer::Responder& responder) {
    {
      std::lock_guard hold(mutex);
      ids.insert(DnsReply(question).id());
    }
    responder.send(DnsReply(question).a("192.0.2.1"));
  });
  {
    Resolver resolver(files.options({server.address()}));
    for (int i = 0; i < 40; ++i)
      EXPECT_EQ(addresses_of(resolver, "www.test", {.family = AF_INET, .socktype = SOCK_STREAM}),
                Texts{"192.0.2.1"});
  }
  const auto ports = server.ports();
  EXPECT_GT(std::set(ports.begin(), ports.end()).size(), 30u);
  std::lock_guard hold(mutex);
  EXPECT_GT(ids.size(), 35u);
}

NET_TEST(DnsResolver, ALoopOfAliasesEnds) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    responder.send(DnsReply(question)
                       .cname("b.test", "a.test")
                       .cname("a.test", "b.test")
                       .cname("self.test", "self.test"));
  });
  Resolver resolver(files.options({server.address()}));
  for (const char* name : {"a.test", "self.test"})
    EXPECT_EQ(resolver.getaddrinfo(name, std::nullopt, {}).error(), DnsErrc::not_found);
}

NET_TEST(DnsResolver, AliasesAreFollowedInTheAnswer) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    DnsReply reply(question);
    reply.cname("Mid.test").cname("end.test", "mid.test");
    if (question.type == RecordType::a) reply.a("192.0.2.1", "end.test");
    responder.send(reply);
  });
  Resolver resolver(files.options({server.address()}));
  const auto found = resolver.getaddrinfo("www.test", std::nullopt,
                                          {.flags = AI_CANONNAME, .socktype = SOCK_STREAM});
  ASSERT_TRUE(found) << found.error().message();
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ((*found)[0].canonical_name, "end.test");
  const auto records = resolver.query("www.test", RecordType::a);
  ASSERT_TRUE(records);
  EXPECT_EQ((*records)->answers.size(), 3u);
}

NET_TEST(DnsResolver, D20ADeadServerIsAskedLast) {
  DnsFiles files;
  DnsServer dead([](const DnsQuestion&, DnsServer::Responder&) {});
  DnsServer good(kWww);
  auto options = files.options({dead.address(), good.address()});
  options.timeout = 100ms;
  Resolver resolver(options);
  const Hints hints{.family = AF_INET, .socktype = SOCK_STREAM};
  EXPECT_EQ(addresses_of(resolver, "www.test", hints), Texts{"192.0.2.1"});
  EXPECT_EQ(dead.questions(), 1);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(addresses_of(resolver, "www.test", hints), Texts{"192.0.2.1"});
  EXPECT_EQ(dead.questions(), 1) << "it is remembered";
  EXPECT_EQ(resolver.stats().dead_servers, std::vector{dead.address()});
  EXPECT_EQ(resolver.stats().servers, (std::vector{good.address(), dead.address()}));
}

// One that isn't there is passed over at once, and one that refuses goes to the next, too.
NET_TEST(DnsResolver, D20TheNextServerIsAsked) {
  DnsFiles files;
  const net::Address closed = [] {
    const DnsServer gone([](const DnsQuestion&, DnsServer::Responder&) {});
    return gone.address();
  }();
  DnsServer refuses([](const DnsQuestion& question, DnsServer::Responder& responder) {
    responder.send(DnsReply(question).rcode(5));
  });
  DnsServer good(kWww);
  auto options = files.options({closed, refuses.address(), good.address()});
  options.timeout = 5s;
  Resolver resolver(options);
  EXPECT_EQ(addresses_of(resolver, "www.test", {.family = AF_INET, .socktype = SOCK_STREAM},
                         Deadline::after(4s)),
            Texts{"192.0.2.1"});
}

NET_TEST(DnsResolver, EqualQuestionsAreAskedOnce) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    responder.send_after(30ms, DnsReply(question).a("192.0.2.1").bytes());
  });
  Resolver resolver(files.options({server.address()}));
  ASSERT_TRUE(resolver.reload());
  const int here = Hub::current()->index();
  JoinSet<> set;
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(set.spawn(
        [&, i] {
          EXPECT_EQ(addresses_of(resolver, i % 2 ? "WWW.test" : "www.TEST",
                                 {.family = AF_INET, .socktype = SOCK_STREAM}),
                    Texts{"192.0.2.1"});
        },
        {.hub = here}));
  EXPECT_TRUE(set.wait());
  EXPECT_EQ(server.questions(), 1);
  EXPECT_EQ(resolver.stats().coalesced, 49u);
}

// Each waiter ends by itself; the question goes on for the others.
NET_TEST(DnsResolver, D10AWaiterLeavesAloneTheOthers) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    responder.send_after(80ms, DnsReply(question).a("192.0.2.1").bytes());
  });
  Resolver resolver(files.options({server.address()}));
  ASSERT_TRUE(resolver.reload());
  const Hints hints{.family = AF_INET, .socktype = SOCK_STREAM};
  const int here = Hub::current()->index();
  auto stays = spawn([&] { return addresses_of(resolver, "www.test", hints); }, {.hub = here});
  auto cancelled = spawn(
      [&] { return resolver.getaddrinfo("www.test", std::nullopt, hints).error(); }, {.hub = here});
  auto late = spawn(
      [&] {
        return resolver.getaddrinfo("www.test", std::nullopt, hints, Deadline::after(1ms)).error();
      },
      {.hub = here});
  until_parked(cancelled.handle(), WaitReason::io_poll);
  cancelled.cancel();
  EXPECT_EQ(cancelled.join().value(), Errc::cancelled);
  EXPECT_EQ(late.join().value(), Errc::timed_out);
  EXPECT_EQ(stays.join().value(), Texts{"192.0.2.1"});
  EXPECT_EQ(server.questions(), 1);
}

// When the last waiter leaves nothing stays behind, although no answer will ever come.
NET_TEST(DnsResolver, NobodyWaitsForSilence) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion&, DnsServer::Responder&) {});
  auto options = files.options({server.address()});
  options.timeout = 60s;
  Resolver resolver(options);
  EXPECT_EQ(resolver.getaddrinfo("www.test", std::nullopt, {}, Deadline::after(20ms)).error(),
            Errc::timed_out);
  yield_until([&] { return resolver.stats().in_flight == 0; });
  // The scheduler's run ends with this fiber, not with the questions' minute.
}

std::set<std::string> threads_now() {
  std::set<std::string> all;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    all.insert(task.path().filename());
  return all;
}

// Nobody is answered before all have asked.
NET_TEST(DnsResolver, FiveHundredNamesAtATime) {
  DnsFiles files;
  std::map<std::string, std::pair<DnsServer::Responder, std::string>> waiting;
  DnsServer server([&](const DnsQuestion& question, DnsServer::Responder& responder) {
    const auto reply =
        DnsReply(question).a("192.0.2." + question.name.substr(1, question.name.find('.') - 1));
    if (question.name == "h1.first.test" || waiting.size() == 500) return responder.send(reply);
    waiting.insert_or_assign(question.name, std::pair(responder, reply.bytes()));
    if (waiting.size() < 500) return;
    for (auto& [name, each] : waiting)
      each.first.send(each.second);
  });
  auto options = files.options({server.address()});
  options.timeout = 300ms;
  options.attempts = 6;
  Resolver resolver(options);
  // The files are read on the blocking pool, once; from then on there is no thread more.
  ASSERT_EQ(addresses_of(resolver, "h1.first.test", {.family = AF_INET, .socktype = SOCK_STREAM}),
            Texts{"192.0.2.1"});
  const auto threads = threads_now();
  const auto no_thread_more = [&] {
    for (const auto& thread : threads_now())
      EXPECT_TRUE(threads.contains(thread));
  };
  JoinSet<> set;
  for (int i = 0; i < 500; ++i)
    ASSERT_TRUE(set.spawn([&, i] {
      const std::string name = 'h' + std::to_string(i % 250) + ".x" + std::to_string(i) + ".test";
      EXPECT_EQ(addresses_of(resolver, name, {.family = AF_INET, .socktype = SOCK_STREAM}),
                Texts{"192.0.2." + std::to_string(i % 250)});
      if (i % 20 == 0) no_thread_more();
    }));
  EXPECT_TRUE(set.wait());
}

NET_TEST(DnsResolver, TheCacheKeepsWhatTheTtlAllows) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    DnsReply reply(question);
    if (question.name == "keep.test") reply.a("192.0.2.1", {}, 600);
    if (question.name == "zero.test") reply.a("192.0.2.2", {}, 0);
    if (question.name == "nx.test") reply.rcode(3).soa(600);
    if (question.name == "fail.test") reply.rcode(2);
    responder.send(reply);
  });
  auto options = files.options({server.address()});
  options.cache_entries = 10;
  Resolver resolver(options);
  const Hints hints{.family = AF_INET, .socktype = SOCK_STREAM};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(addresses_of(resolver, "keep.test", hints), Texts{"192.0.2.1"});
    EXPECT_EQ(addresses_of(resolver, "zero.test", hints), Texts{"192.0.2.2"});
    EXPECT_EQ(resolver.getaddrinfo("nx.test", std::nullopt, hints).error(), DnsErrc::not_found);
    EXPECT_EQ(resolver.getaddrinfo("fail.test", std::nullopt, hints).error(),
              DnsErrc::server_failure);
  }
  EXPECT_EQ(server.questions("keep.test/A"), 1);
  EXPECT_EQ(server.questions("zero.test/A"), 3);
  EXPECT_EQ(server.questions("nx.test/A"), 1);
  EXPECT_GE(server.questions("fail.test/A"), 3);
  EXPECT_EQ(resolver.stats().cached, 2u);
  resolver.clear_cache();
  EXPECT_EQ(addresses_of(resolver, "keep.test", hints), Texts{"192.0.2.1"});
  EXPECT_EQ(server.questions("keep.test/A"), 2);
}

NET_TEST(DnsResolver, RecordsAreQueried) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    DnsReply reply(question);
    if (question.name == "nx.test") reply.rcode(3);
    if (question.name == "refused.test") reply.rcode(5);
    if (question.type == RecordType::mx)
      reply.record({}, 15, be16(10) + DnsReply::encode("mail.test"));
    if (question.type == RecordType::txt) reply.record({}, 16, std::string("\5hello", 6));
    responder.send(reply);
  });
  Resolver resolver(files.options({server.address()}));
  const auto mx = resolver.query("x.test.", RecordType::mx);
  ASSERT_TRUE(mx) << mx.error().message();
  EXPECT_EQ(std::get<MxData>((*mx)->answers.at(0).data).exchange, "mail.test");
  const auto txt = resolver.query("x.test", RecordType::txt);
  ASSERT_TRUE(txt);
  EXPECT_EQ(std::get<TxtData>((*txt)->answers.at(0).data).strings, Texts{"hello"});
  EXPECT_EQ(resolver.query("x.test", RecordType::srv).error(), DnsErrc::no_data);
  EXPECT_EQ(resolver.query("nx.test", RecordType::srv).error(), DnsErrc::not_found);
  EXPECT_EQ(resolver.query("refused.test", RecordType::srv).error(), DnsErrc::refused);
  EXPECT_EQ(resolver.query("a..b", RecordType::a).error(), DnsErrc::malformed_name);
}

NET_TEST(DnsResolver, AnExchangeGivesWhatTheServerSaid) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    DnsReply reply(question);
    if (question.name == "fail.test") reply.rcode(2);
    responder.send(reply.a("192.0.2.1"));
  });
  Resolver resolver(files.options({server.address()}));
  for (const char* name : {"WwW.test", "fail.test"}) {
    const std::string question = std::string("\x12\x34\1\0\0\1\0\0\0\0\0\0", 12) +
                                 DnsReply::encode(name) + be16(1) + be16(1);
    const auto answer = resolver.exchange(std::as_bytes(std::span(question)));
    ASSERT_TRUE(answer) << name << answer.error().message();
    EXPECT_EQ(static_cast<int>((*answer)[0]), 0x12);
    EXPECT_EQ(static_cast<int>((*answer)[1]), 0x34);
    const auto parsed = parse_answer(*answer);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->name, name) << "the case is the question's";
    EXPECT_EQ(parsed->rcode, std::string_view(name) == "fail.test" ? 2 : 0);
  }
  EXPECT_EQ(resolver.exchange(std::as_bytes(std::span("short"))).error(), DnsErrc::bad_answer);
}

NET_TEST(DnsResolver, AddressesHaveNames) {
  DnsFiles files;
  files.write("hosts", "192.0.2.9 nine.test nine\n");
  DnsServer server(zone({{"1.2.0.192.in-addr.arpa/PTR", {"one.test"}},
                         {"3.2.0.192.in-addr.arpa/PTR", {"bad name.test"}}}));
  Resolver resolver(files.options({server.address()}));
  const auto name = [&](std::string_view address, int flags) {
    const auto info = resolver.getnameinfo(net::Address::parse(address).value(), flags);
    return info ? info->host + ' ' + info->service : info.error().message();
  };
  EXPECT_EQ(name("192.0.2.1:80", 0), "one.test http");
  EXPECT_EQ(name("192.0.2.9:443", NI_NUMERICSERV), "nine.test 443");
  EXPECT_EQ(name("192.0.2.2:80", 0), "192.0.2.2 http");
  EXPECT_EQ(name("192.0.2.3:9999", 0), "192.0.2.3 9999");
  EXPECT_EQ(name("192.0.2.2:80", NI_NAMEREQD), "Name or service not known");
  EXPECT_EQ(name("[fe80::1%lo]:123", NI_NUMERICHOST | NI_DGRAM), "fe80::1%lo ntp");
  EXPECT_EQ(name("[::1]:80", NI_NUMERICHOST | NI_NUMERICSERV), "::1 80");
  EXPECT_EQ(resolver.getnameinfo(net::Address(), 0).error(), DnsErrc::family);
  EXPECT_EQ(resolver.getnameinfo(net::Address::loopback_ipv4(), 1 << 20).error(),
            DnsErrc::bad_flags);
}

NET_TEST(DnsResolver, SourcesBeyondFilesAndDnsAreTold) {
  DnsFiles files;
  files.write("nsswitch.conf", "hosts: mdns4_minimal [NOTFOUND=return] files myhostname dns\n");
  DnsServer server(kWww);
  Resolver resolver(files.options({server.address()}));
  EXPECT_EQ(addresses_of(resolver, "www.test").size(), 2u);
  EXPECT_EQ(resolver.stats().ignored_sources, (Texts{"mdns4_minimal", "myhostname"}));
}

// Off a fiber the calling thread waits.
TEST(DnsResolverThread, AThreadWaitsForItself) {
  DnsFiles files;
  DnsServer server(kWww);
  Resolver resolver(files.options({server.address()}));
  EXPECT_EQ(addresses_of(resolver, "www.test").size(), 2u);
  DnsServer silent([](const DnsQuestion&, DnsServer::Responder&) {});
  Resolver waits(files.options({silent.address()}));
  EXPECT_EQ(waits.getaddrinfo("www.test", std::nullopt, {}, Deadline::after(20ms)).error(),
            Errc::timed_out);
  EXPECT_EQ(waits.stats().in_flight, 0u);
}

// RUNLOOM_DNS=system, and the option.
FIBER_TEST(DnsResolver, TheSystemsResolverIsThereToo) {
  Resolver resolver({.system = true});
  EXPECT_EQ(addresses_of(resolver, "127.1"), Texts{"127.0.0.1"});
  EXPECT_EQ(resolver.getaddrinfo("127.0.0.1", "80", {.flags = 1 << 20}).error(),
            DnsErrc::bad_flags);
  EXPECT_EQ(resolver.getnameinfo(net::Address::loopback_ipv4(80), NI_NUMERICHOST | NI_NUMERICSERV)
                .value()
                .service,
            "80");
  EXPECT_EQ(resolver.stats().system_calls, 3u);
  ASSERT_EQ(::setenv("RUNLOOM_DNS", "system", 1), 0);
  Resolver chosen;
  ASSERT_EQ(::unsetenv("RUNLOOM_DNS"), 0);
  EXPECT_EQ(addresses_of(chosen, "127.1"), Texts{"127.0.0.1"});
  EXPECT_EQ(chosen.stats().system_calls, 1u);
}

}  // namespace
}  // namespace runloom::dns
