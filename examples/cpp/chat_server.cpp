// A chat room: who connects says a name and then lines, which everybody else gets.
//
//     build/release/examples/example_chat_server --port 7002
//     nc 127.0.0.1 7002
//
// Each member has two fibers: one reads its lines, one writes what the others said. Between them
// stands a channel of limited size. Speaking never waits for a slow listener: a member whose
// channel is full is disconnected.
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "example.hpp"
#include "runloom/net/buffered.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/channel.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/mutex.hpp"

using namespace runloom;

namespace {

constexpr std::size_t kLongestLine = 1024;
constexpr std::size_t kMessagesBehind = 256;
constexpr auto kNameTime = std::chrono::seconds(30);
constexpr auto kWriteTime = std::chrono::seconds(30);

// Shared by all that are to get it.
using Message = std::shared_ptr<const std::string>;

struct Member {
  explicit Member(net::TcpStream& connection) : stream(connection) {}
  net::TcpStream& stream;
  Channel<Message> outbox{kMessagesBehind};
};

class Room {
 public:
  // A member is in the room for as long as its Stay lives.
  class Stay {
   public:
    Stay(Room& room, Member& member) : room_(room), member_(member) {
      const std::lock_guard hold(room_.mutex_);
      room_.members_.insert(&member_);
    }
    ~Stay() {
      const std::lock_guard hold(room_.mutex_);
      room_.members_.erase(&member_);
    }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

   private:
    Room& room_;
    Member& member_;
  };

  void say(std::string text, const Member* except) {
    const auto message = std::make_shared<const std::string>(std::move(text));
    const std::lock_guard hold(mutex_);
    for (Member* member : members_) {
      if (member == except) continue;
      if (!member->outbox.try_send(message)) member->stream.close();
    }
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

void talk(net::BufferedReader& reader, Room& room, Member& member, const std::string& name) {
  const Room::Stay stay(room, member);
  room.say("* " + name + " has joined\n", nullptr);
  for (;;) {
    const auto line = reader.read_line(kLongestLine);
    if (!line || *line == "/quit") return;
    room.say(name + ": " + std::string(*line) + "\n", &member);
  }
}

void chat(net::TcpStream& stream, Room& room) {
  net::BufferedReader reader(stream);
  if (!stream.write_all(net::bytes("Who are you?\n"))) return;
  const auto first = reader.read_line(kLongestLine, Deadline::after(kNameTime));
  if (!first || first->empty()) return;
  const std::string name(*first);

  Member member(stream);
  JoinSet<> writer;
  if (!writer.spawn([&] { return write_messages(member); })) return;
  talk(reader, room, member, name);
  room.say("* " + name + " has left\n", nullptr);
  // What is in the channel is still written; then the writer ends.
  static_cast<void>(member.outbox.close());
  static_cast<void>(writer.wait());
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = example::parse(argc, argv, "example_chat_server [--port N] [--hubs N]");
  Room room;
  net::Server server([&](net::TcpStream stream) { chat(stream, room); });
  return example::run(server, arguments);
}
