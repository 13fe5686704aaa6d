"""Runs tests on code from a policy, which has an incentive to forge their result.

run_inside   the text that runs in the sandbox: a parent that reports, a child that shares its process with the code
reports      runs it from outside, reads only sealed reports, and makes the controls: copies of the tests that must
fail, so that a result in which they pass is forged
"""
