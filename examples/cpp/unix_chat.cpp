// A chat over Unix sockets: one program, server and client. Everybody is known by the user and the
// process that the kernel says he is; nobody has to be asked, and nobody can lie.
//
//     build/release/examples/example_unix_chat serve /tmp/chat.sock
//     build/release/examples/example_unix_chat join /tmp/chat.sock      (in other terminals)
//
// Only the server's own user may join: the socket's file has the mode 0600 from its first moment.
// The client copies its standard input to the server and what the server says to its standard
// output, both of which may be terminals, pipes or files.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "example.hpp"
#include "runloom/net/buffered.hpp"
#include "runloom/net/copy.hpp"
#include "runloom/net/stdio.hpp"
#include "runloom/net/unix_listener.hpp"
#include "runloom/net/unix_stream.hpp"
#include "runloom/sched/channel.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/mutex.hpp"

using namespace runloom;

namespace {

constexpr std::size_t kLongestLine = 1024;
constexpr std::size_t kMessagesBehind = 256;
constexpr auto kWriteTime = std::chrono::seconds(30);

using Message = std::shared_ptr<const std::string>;

struct Member {
  explicit Member(net::UnixStream& connection) : stream(connection) {}
  net::UnixStream& stream;
  Channel<Message> outbox{kMessagesBehind};
};

class Room {
 public:
  void join(Member& member) {
    const std::lock_guard hold(mutex_);
    members_.insert(&member);
  }
  void leave(Member& member) {
    const std::lock_guard hold(mutex_);
    members_.erase(&member);
  }
  // Nobody waits for a slow listener: who has too much to read is put out.
  void say(std::string text, const Member* except) {
    const auto message = std::make_shared<const std::string>(std::move(text));
    const std::lock_guard hold(mutex_);
    for (Member* member : members_)
      if (member != except && !member->outbox.try_send(message)) member->stream.close();
  }

 private:
  Mutex mutex_;
  std::set<Member*> members_;
};

Result<void> write_messages(Member& member) {
  for (;;) {
    RUNLOOM_TRY(const Message message, member.outbox.recv());
    const auto deadline = Deadline::after(kWriteTime);
    if (auto sent = member.stream.write_all(net::bytes(*message), deadline); !sent) return sent;
  }
}

Result<void> chat(net::UnixStream& stream, Room& room) {
  RUNLOOM_TRY(const auto who, stream.peer_credentials());
  const std::string name =
      "user " + std::to_string(who.uid) + " (process " + std::to_string(who.pid) + ")";
  Member member(stream);
  JoinSet<> writer;
  if (auto spawned = writer.spawn([&] { return write_messages(member); }); !spawned) return spawned;
  room.join(member);
  room.say("* " + name + " has joined\n", nullptr);
  net::BufferedReader reader(stream);
  while (const auto line = reader.read_line(kLongestLine))
    room.say(name + ": " + std::string(*line) + "\n", &member);
  room.leave(member);
  room.say("* " + name + " has left\n", nullptr);
  static_cast<void>(member.outbox.close());
  return writer.wait();
}

Result<void> serve(const net::Address& address) {
  RUNLOOM_TRY(auto listener, net::UnixListener::listen(address, {.bind = {.mode = 0600}}));
  std::printf("listening on %s\n", address.to_string().c_str());
  std::fflush(stdout);
  Room room;
  JoinSet<> members;
  for (;;) {
    auto stream = listener.accept_retrying();
    if (!stream) return Unexpected{stream.error()};
    // What goes wrong with one member ends him, and nobody else.
    auto spawned = members.spawn(
        [&room, member = std::move(*stream)]() mutable { static_cast<void>(chat(member, room)); });
    if (!spawned) return spawned;
  }
}

Result<void> join(const net::Address& address) {
  RUNLOOM_TRY(auto server,
              net::UnixStream::connect(address, Deadline::after(std::chrono::seconds(5))));
  RUNLOOM_TRY(auto in, net::stdin_stream());
  RUNLOOM_TRY(auto out, net::stdout_stream());
  // Both directions end with the server; the end of our input only ends what we say.
  auto speaking = spawn([&]() -> Result<void> {
    const auto copied = net::copy(in, server);
    return copied ? server.shutdown_write() : Unexpected{copied.error()};
  });
  const auto heard = net::copy(server, out);
  speaking.cancel();
  static_cast<void>(speaking.join());
  return heard ? Result<void>() : Unexpected{heard.error()};
}

}  // namespace

int main(int argc, char** argv) {
  constexpr const char* kUsage = "example_unix_chat serve|join PATH [--hubs N]";
  const auto arguments = example::parse(argc, argv, kUsage);
  const auto& rest = arguments.rest;
  if (rest.size() != 2 || (rest[0] != "serve" && rest[0] != "join")) {
    std::fprintf(stderr, "usage: %s\n", kUsage);
    return 2;
  }
  std::string problem;
  const auto address = net::Address::from_unix_path(rest[1], &problem);
  if (!address) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 2;
  }

  const net::Signals signals({SIGINT, SIGTERM});
  Options options = Options::from_environment();
  options.hubs = arguments.hubs;
  Scheduler scheduler(std::move(options));
  const auto done = scheduler.run([&]() -> Result<void> {
    auto main = spawn([&] { return rest[0] == "serve" ? serve(*address) : join(*address); });
    const auto stopper = spawn([&, handle = main.handle()]() mutable {
      if (signals.wait()) handle.cancel();
    });
    auto result = main.join();
    stopper.cancel();
    if (!result && result.error() == Errc::cancelled) return {};
    return result;
  });
  if (!done) {
    std::fprintf(stderr, "%s: %s\n", rest[1].c_str(), done.error().message().c_str());
    return 1;
  }
  return 0;
}
