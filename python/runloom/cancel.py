"""Time limits and cancellation for blocks of code.

    with runloom.timeout(5):
        conn = sync.tcp_connect("example.org", 80)
        reply = ask(conn)

Cancellation is level-triggered: once a scope is cancelled, or its time is up, every call inside
that waits raises runloom.Cancelled, until the block is left. So a block ends although something in
it catches too much; clean-up that has to wait goes into a shield().
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runloom_c import Cancelled, CancelScope

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Literal, Self

__all__ = ["CancelScope", "Cancelled", "shield", "timeout"]


class timeout(CancelScope):  # used as a function
    """A block that may take so many seconds, after which TimeoutError is raised at its end.

    None: as long as it likes. The time can be changed by `deadline`. Inside the block the calls
    that wait raise Cancelled. A block that ends by itself, or by another exception, raises nothing
    of this, however late.
    """

    __slots__ = ()

    def __new__(cls, seconds: float | None) -> Self:
        return super().__new__(cls, seconds)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        if not super().__exit__(kind, error, traceback):
            return False
        raise TimeoutError("timed out") from error


def shield(timeout: float | None = None) -> CancelScope:
    """A block that no scope around it and no G.cancel() reaches; the timeout ends it, silently.

    with runloom.shield(5):
        conn.sendall(b"QUIT\\r\\n")
    """
    return CancelScope(timeout, shield=True)
