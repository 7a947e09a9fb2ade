"""The imperative part: one engine task that makes plans durable, and the tasks that carry effects out.

Owns: time, tasks, calls to the workflow server, start and stop.  Must never know: JSON-RPC towards callers, bytes on disk.
"""
