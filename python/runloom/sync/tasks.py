"""Fibers that belong together: JoinSet, gather, Future."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

from runloom._unique import Unique
from runloom.cancel import timeout as runloom_timeout
from runloom_c import Cancelled, CancelScope, Condition, current_g
from runloom_c import _sync_fiber as fiber

from .primitives import named_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

    from typing_extensions import TypeVar

    from runloom_c import G

    _T = TypeVar("_T", default=Any)  # JoinSet() is a JoinSet[Any]
else:
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["Future", "JoinSet", "gather"]

_P = ParamSpec("_P")


class JoinSet(Unique, Generic[_T]):
    """Fibers that end before the block does which started them.

        with JoinSet() as tasks:
            tasks.spawn(copy, client, server)
            tasks.spawn(copy, server, client)

    The end of the block waits for all. The first that fails cancels the others and the block, and
    what it raised is raised at the end of the block; what others raise while they are cancelled is
    reported by sys.unraisablehook. A block that raises cancels all of them. None outlives the
    block, whatever happens. It is used on a fiber.

    With keep_results, next() and iteration give the results in the order in which they come.
    """

    def __init__(self, *, keep_results: bool = False) -> None:
        self._children: set[G[_T]] = set()
        self._results: deque[G[_T]] | None = deque() if keep_results else None
        self._changed = Condition()  # of the results
        self._failed: G[_T] | None = None
        self._cancelled = False
        self._closed = False
        self._scope: CancelScope | None = None

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._children)

    def spawn(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> G[_T]:
        """Start fn(*args, **kwargs) on a fiber of the set; after a cancel it does not begin."""
        if self._closed:
            raise RuntimeError("spawn() in a JoinSet whose block has ended")

        def child() -> _T:
            own: Any = current_g()
            try:
                return fn(*args, **kwargs)
            except Cancelled:
                raise
            except BaseException:
                self._fail(own)
                raise
            finally:
                self._children.discard(own)
                if self._results is not None:
                    self._keep(own)

        made = fiber(named_as(fn, child))
        self._children.add(made)
        if self._cancelled:
            made.cancel()
        return made

    def cancel(self) -> None:
        """Cancel all that have not ended, and all that come."""
        self._cancelled = True
        for each in list(self._children):
            each.cancel()

    def _fail(self, child: G[_T]) -> None:
        if self._failed is not None:
            return
        self._failed = child
        self.cancel()
        if self._scope is not None:
            self._scope.cancel()

    def _keep(self, child: G[_T]) -> None:
        with CancelScope(shield=True), self._changed:
            assert self._results is not None
            self._results.append(child)
            self._changed.notify_all()

    def _wait_all(self) -> None:
        while self._children:
            child = next(iter(self._children))
            child._wait()
            # One that was cancelled before it began has not said that it ended.
            self._children.discard(child)

    def _end(self) -> None:
        """Cancels all and waits for their ends, whatever happens to the caller."""
        self.cancel()
        with CancelScope(shield=True):
            self._wait_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all have ended, and raise what the first one that failed has raised.

        False when the time was up first. When the caller is cancelled they are, too, and are
        waited for.
        """
        try:
            with CancelScope(timeout) as scope:
                self._wait_all()
        except BaseException:
            self._end()
            raise
        if scope.cancelled_caught:
            return False
        self._raise_failure()
        return True

    def _raise_failure(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            failed.join()

    def next(self, timeout: float | None = None) -> _T:
        """The result of the next one that ends; what it raised is raised.

        StopIteration when none is left, TimeoutError when the time was up first.
        """
        if self._results is None:
            raise RuntimeError("next() needs a JoinSet(keep_results=True)")
        results = self._results
        if self._cancelled:
            with runloom_timeout(timeout):
                self._wait_all()
        with self._changed:
            if not self._changed.wait_for(lambda: results or not self._children, timeout):
                raise TimeoutError("timed out")
            if not results:
                raise StopIteration
            child = results.popleft()
        return child.join()

    def __iter__(self) -> Iterator[_T]:
        while True:
            try:
                result = self.next()
            except StopIteration:
                return
            yield result

    def __enter__(self) -> Self:
        if self._scope is not None or self._closed:
            raise RuntimeError("a JoinSet can be entered once")
        scope = CancelScope()
        scope.__enter__()
        self._scope = scope
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        scope, own = self._scope, None
        assert scope is not None
        if error is None:
            try:
                self._wait_all()
            except BaseException as late:
                error = own = late
        if error is not None:
            self._end()
        self._closed = True
        self._scope = None
        if scope.__exit__(None if error is None else type(error), error, traceback):
            error = own = None
        if error is None:
            self._raise_failure()
            return True
        if own is not None:
            raise own
        return False


def gather(*functions: Callable[[], _T]) -> list[_T]:
    """Call each on a fiber of its own; their results in this order.

    The first that fails cancels the others, and what it raised is raised.
    """
    for each in functions:
        if not callable(each):
            raise TypeError(f"gather() takes functions, one after the other, not {each!r}")
    with JoinSet[_T]() as tasks:
        fibers = [tasks.spawn(function) for function in functions]
    return [each.join() for each in fibers]


class Future(Unique, Generic[_T]):
    """A result that comes later, from any fiber or thread."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._done = False
        self._value: _T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[_T]], object]] = []

    def done(self) -> bool:
        """Whether there is a result or an exception."""
        return self._done

    def set_result(self, value: _T) -> None:
        """Give it its result; RuntimeError when it has one."""
        self._finish(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Let result() raise an exception."""
        if not isinstance(error, BaseException):
            raise TypeError(f"an exception is required, not {error!r}")
        self._finish(None, error)

    def _finish(self, value: _T | None, error: BaseException | None) -> None:
        with self._changed:
            if self._done:
                raise RuntimeError("the Future has its result")
            self._value, self._error, self._done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for each in callbacks:
            each(self)

    def result(self, timeout: float | None = None) -> _T:
        """Wait for the result; TimeoutError when the time was up first."""
        if self._wait(timeout) is not None:
            assert self._error is not None
            raise self._error
        return self._value  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the exception, or None when there is a result."""
        return self._wait(timeout)

    def _wait(self, timeout: float | None) -> BaseException | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._done, timeout):
                raise TimeoutError("timed out")
            return self._error

    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        """Call fn(self) when it is done, by whoever gives the result; at once if it is."""
        with self._changed:
            if not self._done:
                self._callbacks.append(fn)
                return
        fn(self)
