"""Rehearsal: a note is taught in idle time, until the policy does without it.

prompts    what is asked: the user's own past, everyday prompts while that is short, and what is held back
replies    replies of weights that are in no ledger, sampled behind users' requests
measure    how far the policy without the note is from the policy with it, and when to stop
round      one rehearsal of one note: drafts, step by step, that end in a candidate
notebook   which note is next, what became of it, and when it may leave the prompt
rehearser  all of it, a step a tick
"""
