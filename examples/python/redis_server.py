"""A small Redis: strings with expiry, in memory, over RESP2 with pipelining.

    python examples/python/redis_server.py --port 6379
    redis-cli set greeting hello
    redis-benchmark -t set,get,incr -P 16
    python -c "import redis; print(redis.Redis(protocol=2).incr('n'))"

PING, ECHO, SET (EX, PX, NX, XX), GET, DEL, EXISTS, INCR, INCRBY, EXPIRE, TTL, MGET, KEYS; and as
much of COMMAND, CONFIG, CLIENT, INFO and SELECT as clients ask for when they connect.

Fibers of one thread change places only where they wait, and no command waits: each is atomic
without a lock.
"""

import fnmatch
import time

import example

LINE_LIMIT = 64 * 1024
COMMAND_LIMIT = 64 * 1024 * 1024  # bytes of its words
WORDS_LIMIT = 64 * 1024
BATCH = 64 * 1024  # replies that are collected before they are sent

OK = b"+OK\r\n"
NOTHING = b"$-1\r\n"


class ProtocolError(Exception):
    pass


class CommandError(Exception):
    """What the client did wrong; it goes on."""


# ---- RESP ----


class Client:
    """Reads commands and collects replies, which are sent before it waits for more commands: those
    of pipelined commands go together."""

    def __init__(self, conn):
        self.conn = conn
        self.buffer = bytearray()
        self.position = 0  # what is before it has been read
        self.replies = bytearray()

    def reply(self, data):
        self.replies += data
        if len(self.replies) > BATCH:
            self.flush()

    def flush(self):
        if self.replies:
            self.conn.sendall(self.replies)
            self.replies = bytearray()

    def fill(self):
        """Waits for more; False at the end of the stream."""
        self.flush()
        del self.buffer[: self.position]
        self.position = 0
        data = self.conn.recv(65536)
        self.buffer += data
        return bool(data)

    def line(self):
        """Without its end; None at the end of the stream."""
        while (end := self.buffer.find(b"\n", self.position)) < 0:
            if len(self.buffer) - self.position > LINE_LIMIT:
                raise ProtocolError("too big inline request")
            if not self.fill():
                return None
        line = bytes(self.buffer[self.position : end])
        self.position = end + 1
        return line.removesuffix(b"\r")

    def exactly(self, count):
        while len(self.buffer) - self.position < count + 2:
            if not self.fill():
                return None
        data = bytes(self.buffer[self.position : self.position + count])
        self.position += count + 2  # with the line's end
        return data

    def command(self):
        """The words of the next one, at least one; None at the end of the stream."""
        while True:
            line = self.line()
            if line is None:
                return None
            if not line.startswith(b"*"):
                words = line.split()  # as somebody types it into nc
            else:
                words = []
                room = COMMAND_LIMIT
                for _ in range(number(line[1:], WORDS_LIMIT, "invalid multibulk length")):
                    head = self.line()
                    if head is None:
                        return None
                    if not head.startswith(b"$"):
                        raise ProtocolError(f"expected '$', got '{head[:1].decode('latin-1')}'")
                    word = self.exactly(number(head[1:], room, "invalid bulk length"))
                    if word is None:
                        return None
                    words.append(word)
                    room -= len(word)
            if words:
                return words


def number(text, limit, complaint):
    if not text.isdigit() or len(text) > 18 or int(text) > limit:
        raise ProtocolError(complaint)
    return int(text)


def bulk(data):
    return NOTHING if data is None else b"$%d\r\n%b\r\n" % (len(data), data)


def integer(value):
    return b":%d\r\n" % value


def array(parts):
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


# ---- commands ----


class Store:
    """Values under keys, with the moment at which each ends. One that has ended goes when somebody
    asks for it."""

    def __init__(self):
        self.values = {}
        self.ends = {}  # key: time.monotonic()

    def get(self, key):
        """None: there is none, or it has ended."""
        end = self.ends.get(key)
        if end is not None and time.monotonic() >= end:
            self.remove(key)
        return self.values.get(key)

    def set(self, key, value, seconds=None):
        self.values[key] = value
        self.ends.pop(key, None)
        if seconds is not None:
            self.ends[key] = time.monotonic() + seconds

    def remove(self, key):
        self.ends.pop(key, None)
        return self.values.pop(key, None) is not None


def integer_of(data):
    try:
        if not -(2**63) <= (value := int(data)) < 2**63 or data.strip() != data or b"_" in data:
            raise ValueError
    except ValueError:
        raise CommandError("value is not an integer or out of range") from None
    return value


def ping(store, *text):
    return bulk(text[0]) if text else b"+PONG\r\n"


def echo(store, text):
    return bulk(text)


def get(store, key):
    return bulk(store.get(key))


def mget(store, *keys):
    return array([bulk(store.get(key)) for key in keys])


def set_(store, key, value, *options):
    seconds, only_if = None, None
    words = iter(options)
    for option in words:
        match option.upper():
            case (b"EX" | b"PX") as unit if seconds is None:
                seconds = integer_of(next(words, b"")) / (1 if unit == b"EX" else 1000)
                if seconds <= 0:
                    raise CommandError("invalid expire time in 'set' command")
            case (b"NX" | b"XX") as condition if only_if is None:
                only_if = condition
            case _:
                raise CommandError("syntax error")
    if only_if is not None and (store.get(key) is None) != (only_if == b"NX"):
        return NOTHING
    store.set(key, value, seconds)
    return OK


def incr(store, key, amount=b"1"):
    old = store.get(key)
    value = (0 if old is None else integer_of(old)) + integer_of(amount)
    if not -(2**63) <= value < 2**63:
        raise CommandError("increment or decrement would overflow")
    if old is not None:
        store.values[key] = b"%d" % value  # its end stays
    else:
        store.set(key, b"%d" % value)
    return integer(value)


def delete(store, *keys):
    return integer(sum(store.get(key) is not None and store.remove(key) for key in keys))


def exists(store, *keys):
    return integer(sum(store.get(key) is not None for key in keys))


def expire(store, key, seconds):
    left = integer_of(seconds)
    if store.get(key) is None:
        return integer(0)
    if left <= 0:
        store.remove(key)
    else:
        store.ends[key] = time.monotonic() + left
    return integer(1)


def ttl(store, key):
    if store.get(key) is None:
        return integer(-2)
    end = store.ends.get(key)
    return integer(-1 if end is None else round(end - time.monotonic()))


def keys_(store, pattern):
    text = pattern.decode("latin-1").replace("[^", "[!")
    found = [key for key in list(store.values) if store.get(key) is not None]
    return array([bulk(k) for k in found if fnmatch.fnmatchcase(k.decode("latin-1"), text)])


def select(store, database):
    if integer_of(database) != 0:
        raise CommandError("DB index is out of range")
    return OK


def config(store, what, *names):
    """redis-benchmark asks; nothing can be set."""
    if what.upper() != b"GET":
        raise CommandError("only CONFIG GET")
    return array([bulk(each) for name in names for each in (name, b"")])


def command(store, *_what):
    return array([])


def client_(store, *_what):
    return OK


def quit_(store):
    return OK


def info(store, *_sections):
    return bulk(b"# Server\r\nredis_version:0.0.0\r\nredis_mode:standalone\r\n")


# What a command is called, what does it, and the least and the most that it takes (None: any).
COMMANDS = {
    b"PING": (ping, 0, 1),
    b"ECHO": (echo, 1, 1),
    b"GET": (get, 1, 1),
    b"MGET": (mget, 1, None),
    b"SET": (set_, 2, None),
    b"INCR": (incr, 1, 1),
    b"INCRBY": (incr, 2, 2),
    b"DEL": (delete, 1, None),
    b"EXISTS": (exists, 1, None),
    b"EXPIRE": (expire, 2, 2),
    b"TTL": (ttl, 1, 1),
    b"KEYS": (keys_, 1, 1),
    b"SELECT": (select, 1, 1),
    b"CONFIG": (config, 1, None),
    b"COMMAND": (command, 0, None),
    b"CLIENT": (client_, 1, None),
    b"INFO": (info, 0, None),
    b"QUIT": (quit_, 0, 0),
}


def execute(store, words):
    """The reply to a command."""
    name, *arguments = words
    function, least, most = COMMANDS.get(name.upper(), (None, 0, None))
    shown = name[:128].decode("latin-1").replace("\r", " ").replace("\n", " ")
    try:
        if function is None:
            raise CommandError(f"unknown command '{shown}'")
        if len(arguments) < least or (most is not None and len(arguments) > most):
            raise CommandError(f"wrong number of arguments for '{shown.lower()}' command")
        return function(store, *arguments)
    except CommandError as error:
        return b"-ERR %b\r\n" % str(error).encode("latin-1")


def redis(store):
    def handler(conn):
        client = Client(conn)
        try:
            while (words := client.command()) is not None:
                client.reply(execute(store, words))
                if words[0].upper() == b"QUIT":
                    break
        except ProtocolError as error:
            client.reply(b"-ERR Protocol error: %b\r\n" % str(error).encode("latin-1"))
        client.flush()

    return handler


def main():
    options = example.parser(__doc__, port=6379).parse_args()
    # What is no protocol is answered before the connection is closed; it lingers, so that a client
    # that still sends reads that answer.
    example.run(lambda: example.serve(options.host, options.port, redis(Store()), linger=1))


if __name__ == "__main__":
    main()
