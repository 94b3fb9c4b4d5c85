"""Servers that fork their workers."""

from __future__ import annotations

from fiber_support import output


def test_K04_workers_that_were_forked_serve_and_are_replaced() -> None:
    """The parent has a fiber, a thread of the blocking pool and its own poller when it forks."""
    code = """
        import os, socket, time, warnings
        import runloom, runloom_c
        from runloom.sync import tcp_listen
        warnings.simplefilter("ignore")  # 3.12 warns of forks in programs with threads
        WORKERS, GENERATIONS = (8, 20) if os.environ.get("RUNLOOM_FULL") else (4, 5)

        def worker(server):
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(100)
                assert runloom_c.blocking(len, asked) == len(asked)
                connection.sendall(asked + b" %d" % os.getpid())
            return 0

        def start(server):
            pid = os.fork()
            if pid == 0:
                # The fiber that forked is the only one; what it raises would run the parent's code.
                try:
                    os._exit(worker(server))
                finally:
                    os._exit(1)
            return pid

        def ask(address):
            with socket.create_connection(address, timeout=10) as client:
                client.sendall(b"who")
                answer = b""
                while piece := client.recv(100):
                    answer += piece
                return int(answer.split()[1])

        def main():
            with tcp_listen("127.0.0.1", 0) as server:
                busy = runloom_c.go(lambda: runloom_c.blocking(time.sleep, 0.2))
                runloom_c.sched_sleep(0.01)
                for _ in range(GENERATIONS):
                    pids = {start(server) for _ in range(WORKERS)}
                    answers = {runloom_c.blocking(ask, server.getsockname()) for _ in pids}
                    assert answers == pids
                    for pid in pids:
                        _, status = runloom_c.blocking(os.waitpid, pid, 0)
                        assert status == 0, status
                busy.join()
            print("served")

        runloom.run(1, main)
    """
    assert output(code, limit=50) == "served\n"
