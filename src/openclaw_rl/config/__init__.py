"""The settings: one typed tree, one TOML file; the only module that reads the environment.

settings the tree, each setting documented where it is declared; values: the types for their values
names    the flags and environment names that select a setting; renamed: keys from earlier releases, and names
         used elsewhere whose value is fixed
sources  defaults < preset < known environment names < file < OPENCLAW_RL__SECTION__SETTING < --set and flags
keys     the user of each bearer key
shown    output for users: the table, the JSON, the commented file
"""

from openclaw_rl.config.keys import api_keys
from openclaw_rl.config.names import ENVIRONMENT, FLAGS, GROUPS, SETTINGS, Flag, Setting
from openclaw_rl.config.settings import Config
from openclaw_rl.config.shown import Resolved, Row, as_json, get, render, template
from openclaw_rl.config.sources import DEFAULT_FILE, cache_dir, environment, key_in, load, presets

__all__ = [
    "DEFAULT_FILE",
    "ENVIRONMENT",
    "FLAGS",
    "GROUPS",
    "SETTINGS",
    "Config",
    "Flag",
    "Resolved",
    "Row",
    "Setting",
    "api_keys",
    "as_json",
    "cache_dir",
    "environment",
    "get",
    "key_in",
    "load",
    "presets",
    "render",
    "template",
]
