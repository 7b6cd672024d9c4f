"""The connection between the front end and an agent, and how an agent joins its run.

A frame is a length (4 bytes, little-endian) and a message of `dragon.runtime.protocol.front_end`. An agent joins in
these steps:

1. The agent connects to one of the token's addresses with TLS and compares the certificate's fingerprint with the
   token's. Unless they match it sends nothing.
2. The front end sends a Challenge with a nonce. 3. The agent replies with Join: its own nonce, an HMAC of both under
the run's secret, and the description of the node.
   A recorded greeting has an old nonce and proves nothing.
4. The front end sends Welcome once all nodes have joined, or Refused with the reason.

The kernel probes the other side every second (`watch_silence`), so a broken network is noticed within five seconds. It
probes the machine, not the process, so a busy loop or Ctrl-Z is not mistaken for a lost node.
"""
