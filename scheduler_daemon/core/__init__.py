"""The part of the daemon that only thinks.

Everything here is a function of its arguments: no file, socket, clock, random number, log line or coroutine.  That is what lets a
test ask about any moment, what makes replaying the journal give the live state exactly, and what lets an operator ask "what would
happen if".  Two libraries are used and each has one home: croniter in `calendar`, jsonschema in `bindings`.
"""
