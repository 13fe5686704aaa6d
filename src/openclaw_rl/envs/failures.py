"""What an environment raises is its own failure, and no fault of the policy's: it is anyone's code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from openclaw_rl.errors import EnvFailed


def told(error: BaseException) -> str:
    """The error in a line."""
    return f"{type(error).__name__}: {error}"


def as_failure(error: BaseException) -> BaseException:
    """An error as EnvFailed; what only stops the program (a cancellation) as it is."""
    if isinstance(error, EnvFailed) or not isinstance(error, Exception):
        return error
    return EnvFailed(told(error))


@contextmanager
def failing_alone() -> Iterator[None]:
    """Whatever is raised within is raised as EnvFailed, and so costs one episode."""
    try:
        yield
    except EnvFailed:
        raise
    except Exception as error:
        raise as_failure(error) from error
