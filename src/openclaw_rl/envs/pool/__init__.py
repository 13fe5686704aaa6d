"""Environments under leases, in this process or on other machines.

leases    the pool itself: request ids that replay, heartbeats, a reaper, back-pressure, an event log
server    a pool behind HTTP, for other machines
remote    the client for such pools, spread by task, and an `Env` on top of any pool, for rollouts
"""
