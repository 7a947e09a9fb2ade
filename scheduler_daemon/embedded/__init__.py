"""The embedded workflow server: deployments from a TOML file, executed as processes, served as `workflow.*` over loopback HTTP.

It stands for another program.  It shares nothing with the daemon but the leaf `jsonrpc`, the daemon reaches it only over HTTP, and
a real workflow server can take its place.  Its parts, from the bottom up:

- `schemas`, `deployments`: what may be run, read once at the start
- `launcher`, `processes`: one step as a process group that cannot outlive its server
- `steps`: what an ended process means
- `runs`: what is durable
- `executions`: starts and resumes, each key executed once
- `answers`, `methods`, `server`: the recorded contract, method by method, and the face
"""
