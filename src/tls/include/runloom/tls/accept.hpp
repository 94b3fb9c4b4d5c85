// What a server does with each connection that it accepts: TLS around it, within a deadline.
//
//     auto wrap = tls::server_wrap(context);
//     RUNLOOM_TRY(auto stream, wrap(std::move(tcp), Deadline::after(10s)));
#pragma once

#include <functional>
#include <memory>

#include "runloom/net/stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/tls/context.hpp"

namespace runloom::tls {

using Wrap = std::function<Result<std::unique_ptr<net::Stream>>(std::unique_ptr<net::Stream> below,
                                                                Deadline deadline)>;

// A function that makes the handshake of a server over the stream that it is given and returns a
// tls::Stream. It parks, is a cancel point, and may run on several hubs at a time. It fails as
// Stream::handshake() does, and the stream is gone then: closed at once when the peer was silent or
// has left, and else after up to a second in which the peer may take the alert that says why.
Wrap server_wrap(Context context);

}  // namespace runloom::tls
