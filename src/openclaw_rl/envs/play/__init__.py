"""Agent programs as players: the real program in a sandbox, with the gateway as its only network.

programs    a program's location on this machine, its folders, and an environment's contract with it
forwarder   the connection from the sandbox to the gateway: the permitted calls, and their session
journal     episodes begun, scored and paid, so that a killed player neither loses nor repeats a payment
player      one episode, and all episodes in a plan
"""
