"""What Inspect finds through its entry point: the hooks and the sandbox."""

from openclaw_rl_inspect.hooks import SessionHooks
from openclaw_rl_inspect.sandbox import BubblewrapEnvironment

__all__ = ["BubblewrapEnvironment", "SessionHooks"]
