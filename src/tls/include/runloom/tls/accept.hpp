// What a server does with each connection that it accepts: TLS around it, within a deadline.
//
//     net::ServerOptions options;
//     options.wrap = tls::server_wrap(context);
//     net::Server server([](net::Connection& connection) { ... }, options);
#pragma once

#include <memory>

#include "runloom/net/server_options.hpp"
#include "runloom/net/stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/tls/context.hpp"

namespace runloom::tls {

// Makes the handshake of a server over the stream and returns a tls::Stream. Parks, is a cancel
// point. Fails as Stream::handshake() does, and the stream is gone then: closed at once when the
// peer was silent or has left, and else after up to a second in which the peer may take the alert
// that says why.
Result<std::unique_ptr<net::Stream>> accept(std::unique_ptr<net::Stream> below,
                                            const Context& context, Deadline deadline = {});

// The same for each connection of a net::Server. Connection::below() is the tls::Stream then.
net::ServerOptions::Wrap server_wrap(Context context);

}  // namespace runloom::tls
