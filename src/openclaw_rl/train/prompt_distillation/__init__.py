"""Prompt distillation: train a note into the weights in idle time, until the policy follows it without the prompt.

prompts    training prompts: the user's past ones, everyday ones while these are few, and the held-out ones
measure    replies sampled behind users' requests, distance to the prompted policy, and stopping rules
round      one round for one note: drafts, step by step, that end in a candidate
notebook   next note, result of each round, and the conditions for a note to leave the prompt
distiller  the loop: one step per tick
"""
