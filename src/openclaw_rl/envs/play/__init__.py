"""Agent programs as players: the real program in a sandbox, with the gateway as its only network.

contract    what an environment offers such a program
programs    where a program lies on this machine, and what of the machine it needs to see
forwarder   the way from the sandbox to the gateway: which calls pass, and as whose
journal     what was begun, scored and paid, so that a killed player neither forgets nor pays twice
player      one episode, and all of a plan
"""
