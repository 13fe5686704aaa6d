"""A server of Tinker's protocol with real LoRA numerics over a small model, for the SDK itself to talk to.

`tinker_server(folder)` runs one for the length of a block. It trains and samples the model in ``folder`` in float32,
keeps checkpoints in memory (`TinkerServer.dump` and ``restore`` outlive it) and fails on request: `TinkerServer.fail`.

>>> from fakes.tinker import KEY
>>> KEY.startswith("tml-")  # the one key it takes: nobody's
True
"""

from fakes.tinker.server import KEY, TinkerServer, tinker_server

__all__ = ["KEY", "TinkerServer", "tinker_server"]
