"""Environments handed out as leases, in this process or on other machines.

leases    the pool itself: request ids that replay, heartbeats, a reaper, back-pressure, an event log
server    a pool behind HTTP, for other machines
remote    the client of such pools, spread by task
pooled    an `Env` on top of either, for rollouts
"""
