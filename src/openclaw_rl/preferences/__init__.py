"""Wishes for replies: parsed once, compared, worded for a prompt and checked. Pure; shared by every room that needs it.

parse         a wish as demands: lengths, lists, language, words in it, beginning, end, case, units, ...
check         whether a reply does what a wish asks; None where no program can say
wording       the sentence that goes into a prompt
contradicts   whether a newer note replaces an older one
"""

from openclaw_rl.preferences.checking import RuleChecker, check, checker_of, meets
from openclaw_rl.preferences.parsing import parse
from openclaw_rl.preferences.vocabulary import Demand, Wish

__all__ = ["Demand", "RuleChecker", "Wish", "check", "checker_of", "meets", "parse"]
