"""``python -m openclaw.server`` is ``openclaw-rl serve``: the API alone, with the same flags. Not part of the wheel."""

from openclaw_rl.cli import main
from openclaw_rl.cli.run import serve

main(serve, "python -m openclaw.server")
