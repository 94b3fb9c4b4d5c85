"""What can't be copied, since others wait on the very object."""

from __future__ import annotations

from typing import NoReturn


class Unique:
    """A base of what owns a descriptor, or is waited for: a copy of it would be half of one.

    copy.copy(), copy.deepcopy() and pickle raise TypeError, as they do for native locks and
    sockets.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")
