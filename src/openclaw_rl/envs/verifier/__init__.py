"""Runs tests on code that a policy wrote, where that code has every reason to forge their result.

run_inside   the text that runs in the sandbox: a parent that reports, a child that shares its process with the code
reports      runs it from outside, and reads only a report that is sealed
controls     copies of the tests that must fail: a result that holds for these too is forged
"""
