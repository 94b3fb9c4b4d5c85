"""Each rule of include_rules.py finds a planted fault, and nothing where the rules are kept."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import include_rules

GOOD_TREE = {
    "src/sched/include/runloom/sched/fiber.hpp": "#include <vector>\n",
    "src/sched/hub.hpp": '#include "runloom/sched/fiber.hpp"\n',
    "src/sched/context.cpp": '#include <boost/context/detail/fcontext.hpp>\n#include "hub.hpp"\n',
    "src/net/include/runloom/net/stream.hpp": "#include <runloom/sched/fiber.hpp>\n",
    "src/net/netpoll_epoll.cpp": "#include <sys/epoll.h>\n",
    "src/net/netpoll_uring.cpp": "#include <liburing.h>\n",
    "src/tls/engine.cpp": '#include <openssl/ssl.h>\n#include "runloom/net/stream.hpp"\n',
    "src/dns/channel.cpp": "#include <ares.h>\n",
    "python/bindings/pystate.c": "#include <Python.h>\n#include <internal/pycore_frame.h>\n",
    "python/bindings/module.cpp": "#include <pybind11/pybind11.h>\n",
    "python/bindings/net/socket.cpp": '#include "runloom/net/stream.hpp"\n',
    "tests/sched/hub_test.cpp": '#include <gtest/gtest.h>\n#include "sched/hub.hpp"\n',
    "bench/peers/echo_asio.cpp": "#include <boost/asio.hpp>\n",
}

# Path of the faulty file, its text, and a part of the message that it must give.
FAULTS = [
    ("src/sched/timer.cpp", '#include "runloom/net/stream.hpp"', "sched must not depend on net"),
    ("src/sched/timer.cpp", '#include "../net/fd.hpp"', "sched must not depend on net"),
    ("src/net/fd.cpp", '#include "runloom/tls/stream.hpp"', "net must not depend on tls"),
    ("src/dns/dial.cpp", '#include "runloom/tls/stream.hpp"', "dns must not depend on tls"),
    ("src/net/fd.cpp", '#include "../sched/hub.hpp"', "private to sched"),
    ("src/net/fd.cpp", '#include "sched/hub.hpp"', "private to sched"),
    ("src/http/server.cpp", '#include "runloom/net/stream.hpp"', "no rule"),
    ("src/sched/fiber.cpp", "#include <boost/context/fiber.hpp>", "Boost"),
    ("src/net/fd.cpp", "#  include <liburing.h>", "liburing"),
    ("src/net/fd.cpp", "#include <openssl/ssl.h>", "OpenSSL"),
    ("src/net/fd.cpp", '#include "openssl/ssl.h"', "OpenSSL"),
    ("src/net/address.cpp", "#include <ares.h>", "c-ares"),
    ("src/net/address.cpp", "#include <ares_dns.h>", "c-ares"),
    ("src/net/fd.cpp", "#include <sys/epoll.h>", "epoll"),
    ("src/sched/hub.cpp", "#include <Python.h>", "CPython"),
    ("src/sched/hub.cpp", "#include <gtest/gtest.h>", "GoogleTest"),
    ("python/bindings/core/g.cpp", "#include <internal/pycore_frame.h>", "CPython's internals"),
    ("python/bindings/core/g.cpp", '#include "../../../src/sched/hub.hpp"', "private to sched"),
    ("examples/cpp/echo.cpp", '#include "sched/hub.hpp"', "private to sched"),
    ("examples/cpp/echo.cpp", "#include <boost/context/fiber.hpp>", "Boost"),
    (
        "src/net/include/runloom/net/poll.hpp",
        "#include <sys/epoll.h>",
        "a public header includes epoll",
    ),
    (
        "src/tls/include/runloom/tls/context.hpp",
        "#include <openssl/ssl.h>",
        "a public header includes OpenSSL",
    ),
    (
        "src/sched/include/runloom/sched/hub.hpp",
        '#include "../../../hub.hpp"',
        "which is not installed",
    ),
]


class IncludeRules(unittest.TestCase):
    def check(self, extra: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            for name, text in {**GOOD_TREE, **extra}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            count, problems = include_rules.check_tree(root)
            self.assertGreaterEqual(count, len(GOOD_TREE))
            return problems

    def test_good_tree_has_no_problems(self) -> None:
        self.assertEqual(self.check({}), [])

    def test_each_planted_fault_is_found(self) -> None:
        for path, text, message in FAULTS:
            with self.subTest(path=path, text=text):
                problems = self.check({path: text + "\n"})
                self.assertTrue(problems, "the fault was not found")
                self.assertTrue(all(p.startswith(path + ":1: ") for p in problems), problems)
                self.assertTrue(any(message in p for p in problems), problems)

    def test_a_comment_is_no_include(self) -> None:
        self.assertEqual(self.check({"src/net/fd.cpp": "// #include <openssl/ssl.h>\n"}), [])


if __name__ == "__main__":
    unittest.main()
