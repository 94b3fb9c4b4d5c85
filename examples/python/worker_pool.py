"""Computes SHA-256 of many files as sha256sum does, by a pool of workers.

    python examples/python/worker_pool.py --workers 8 /usr/bin

Names go to the workers through one channel, results come back through another. The channels have no
room, so nothing piles up however many files there are. Reading and hashing happen on threads of the
pool behind blocking(), and hashlib lets go of the interpreter meanwhile: more cores, more files.
"""

import argparse
import hashlib
import os
import sys

import example

import runloom
from runloom import sync


def files_below(name):
    """The name itself, if it is no directory."""
    if not os.path.isdir(name):
        return [name]
    return [
        os.path.join(folder, file)
        for folder, _, files in os.walk(name)
        for file in files
        if os.path.isfile(os.path.join(folder, file))
    ]


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def work(jobs, results):
    for path in jobs:
        try:
            results.send((path, runloom.blocking(digest_of, path), None))
        except OSError as error:
            results.send((path, None, error))


def feed(names, jobs):
    for name in names:
        for path in runloom.blocking(files_below, name):
            jobs.send(path)
    jobs.close()


def digests(names, workers):
    """(path, digest or None, error or None) in the order in which they are ready."""
    jobs, results = sync.Chan(), sync.Chan()
    pool = sync.WaitGroup()
    for _ in range(workers):
        pool.go(work, jobs, results)
    sync.fiber(feed, names, jobs)

    def close():
        pool.wait()
        results.close()

    sync.fiber(close)
    return results


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="FILE", help="or a directory")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="(%(default)s)")
    options = parser.parse_args()
    if options.workers < 1:
        parser.error("--workers must be positive")
    failed = False

    def run():
        nonlocal failed
        for path, digest, error in digests(options.names, options.workers):
            if error is None:
                print(f"{digest}  {path}", flush=True)
            else:
                print(error, file=sys.stderr)
                failed = True

    example.run(run)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
