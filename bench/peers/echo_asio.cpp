// Peer: Boost.Asio with C++20 coroutines, TCP echo, one thread.
// Usage: echo_asio PORT
#include <utility>  // Boost 1.74 needs it and does not include it

#include <boost/asio.hpp>
#include <cstdint>
#include <cstdlib>

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

asio::awaitable<void> echo(tcp::socket socket) {
  char buffer[16384];
  for (;;) {
    // Errors as values: an exception for each client that leaves would weigh on Asio.
    boost::system::error_code error;
    const std::size_t n = co_await socket.async_read_some(
        asio::buffer(buffer), asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    co_await asio::async_write(socket, asio::buffer(buffer, n),
                               asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
  }
}

asio::awaitable<void> serve(std::uint16_t port) {
  const auto executor = co_await asio::this_coro::executor;
  tcp::acceptor acceptor(executor, {asio::ip::address_v4::loopback(), port});
  acceptor.listen(4096);
  for (;;) {
    boost::system::error_code error;
    tcp::socket socket =
        co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (error) continue;
    socket.set_option(tcp::no_delay(true), error);
    asio::co_spawn(executor, echo(std::move(socket)), asio::detached);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  asio::io_context context(1);
  asio::co_spawn(context, serve(static_cast<std::uint16_t>(std::atoi(argv[1]))), asio::detached);
  context.run();
}
