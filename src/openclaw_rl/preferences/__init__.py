"""Wishes about replies: parsed once, compared, worded for a prompt and checked. Pure; shared across the package.

parse         a wish as demands: lengths, lists, language, contained words, beginning, end, case, units, ...
check         True if a reply meets a wish; None if no program can check it
wording       the sentence for a prompt
contradicts   True if a newer note replaces an older one
"""

from openclaw_rl.preferences.checking import RuleChecker, check, checker_of, meets
from openclaw_rl.preferences.parsing import parse
from openclaw_rl.preferences.vocabulary import Demand, Wish

__all__ = ["Demand", "RuleChecker", "Wish", "check", "checker_of", "meets", "parse"]
