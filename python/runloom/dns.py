"""Names: the resolver that all of runloom uses, and the records of name servers.

    for name, kind, ttl, data in runloom.dns.query("example.org", "MX"):
        print(name, kind, ttl, data)

It resolves as glibc does, from the same files, which it reads again when they change, and without a
thread. docs/dns.md says where it differs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from runloom_c import _dns_query, _dns_reload, _dns_stats

from .sync.socket import getaddrinfo, getnameinfo

__all__ = ["Record", "getaddrinfo", "getnameinfo", "query", "reload", "stats"]


class Record(NamedTuple):
    """What a name server says of a name; `data` is text as in a zone file."""

    name: str
    type: str
    ttl: int
    data: str


def query(name: str, type: str = "A", *, timeout: float | None = None) -> list[Record]:
    """The records of a name, with the aliases that lead to them in front.

    The type is A, AAAA, CNAME, MX, TXT, SRV, PTR, NS, SOA, CAA, HTTPS, SVCB or TYPE1234. No file is
    looked at. socket.gaierror when there are none, or no server answers.
    """
    return [Record(*each) for each in _dns_query(name, type, timeout)]


def stats() -> dict[str, Any]:
    """Counters of the resolver, the servers that it asks, and the sources that nsswitch.conf names
    and that it leaves out (RUNLOOM_DNS=system uses them)."""
    return _dns_stats()


def reload() -> None:
    """Read the files now. It does so by itself within a second of a change."""
    _dns_reload()
