"""The connection between the front end and an agent, and how an agent joins its run.

A frame is a length (4 bytes, little-endian) and a message of `dragon.runtime.protocol.front_end`. Joining
goes so:

1. The agent calls one of the token's addresses by TLS and compares the certificate's fingerprint with the token's.
   Until they agree it sends nothing.
2. The front end sends a Challenge with a nonce.
3. The agent answers with Join: a nonce of its own, an HMAC of both under the run's secret, and what the node has. A
   greeting that somebody recorded holds an old nonce and proves nothing.
4. The front end sends Welcome once all nodes are there, or Refused with the reason.

The kernel asks every second whether the other side is there (`watch_silence`), so a network that went silent is
noticed within five seconds. It asks the other machine and not the other process, so neither a busy loop nor Ctrl-Z
looks like a dead node.
"""
