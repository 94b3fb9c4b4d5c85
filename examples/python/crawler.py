"""Visits all pages of a site, many at a time, and reports broken links.

    python examples/python/crawler.py http://localhost:8000/ --at-once 20

The protocol is the standard library's: http.client only needs a socket that parks fibers. A page is
a fiber of the JoinSet and starts those of its links; the JoinSet ends when the last one has.
"""

import argparse
import http.client
import sys
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

import example

import runloom
from runloom import sync

PAGE_LIMIT = 4 * 1024 * 1024  # bytes that are read of a page
HEADERS = {"User-Agent": "runloom-crawler", "Connection": "close"}
REDIRECTS = (301, 302, 303, 307, 308)


class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = sync.tcp_connect(self.host, self.port)


class SecureConnection(http.client.HTTPConnection):
    default_port = 443
    context = None  # None trusts whom the system trusts

    def connect(self):
        self.sock = sync.tls_connect(self.host, self.port, context=self.context)


class Links(HTMLParser):
    """What a page refers to."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("href", "src") and value]


def fetch(url):
    """The status of a page and its links."""
    parts = urlsplit(url)
    kind = SecureConnection if parts.scheme == "https" else Connection
    connection = kind(parts.hostname, parts.port)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers=HEADERS)
        response = connection.getresponse()
        if response.status in REDIRECTS:
            links = [response.headers.get("Location", "")]
        elif response.headers.get_content_type() == "text/html":
            charset = response.headers.get_content_charset("utf-8")
            links = Links(response.read(PAGE_LIMIT).decode(charset, "replace")).found
        else:
            links = []
        return response.status, links
    finally:
        connection.close()


class Crawl:
    def __init__(self, start, at_once, timeout):
        self.site = urlsplit(start)[:2]  # scheme and host
        self.start = start
        self.timeout = timeout
        self.gate = sync.Semaphore(at_once)
        self.seen = {start}
        self.broken = 0

    def run(self):
        with sync.JoinSet() as pages:
            pages.spawn(self.visit, pages, self.start, "the command line")

    def visit(self, pages, url, source):
        links = ()
        try:
            with self.gate, runloom.timeout(self.timeout):
                status, links = fetch(url)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            status = str(error) or type(error).__name__
        if isinstance(status, int) and status < 400:
            print(status, url, flush=True)
        else:
            self.broken += 1
            print(f"{status} {url} (from {source})", flush=True)
        for link in links:
            self.follow(pages, link, url)

    def follow(self, pages, link, source):
        try:
            url = urldefrag(urljoin(source, link)).url
            if urlsplit(url)[:2] != self.site or url in self.seen:
                return
        except ValueError:  # it is no URL, and leads nowhere
            return
        self.seen.add(url)
        pages.spawn(self.visit, pages, url, source)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--at-once", type=int, default=20, help="pages (%(default)s)")
    parser.add_argument("--timeout", type=float, default=10, help="seconds a page (%(default)s)")
    parser.add_argument("--cafile", help="PEM file of the authority to trust, for https")
    options = parser.parse_args()
    if urlsplit(options.url).scheme not in ("http", "https") or not urlsplit(options.url).hostname:
        parser.error(f"{options.url!r} is no http or https URL")
    if options.at_once < 1:
        parser.error("--at-once must be positive")
    if options.cafile is not None:
        SecureConnection.context = runloom.tls.create_default_context(cafile=options.cafile)
    crawl = Crawl(options.url, options.at_once, options.timeout)

    def run():
        crawl.run()
        print(f"{len(crawl.seen)} pages, {crawl.broken} broken", flush=True)

    example.run(run)
    sys.exit(1 if crawl.broken else 0)


if __name__ == "__main__":
    main()
