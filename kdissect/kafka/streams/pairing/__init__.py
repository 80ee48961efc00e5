"""A complete frame becomes a request that waits, or a response that finds its request.

The rules:

- A broker answers the requests of one connection in the order in which they came. So a response belongs to the oldest
  waiting request with its correlation id; requests in front of that one will not be answered any more (`unanswered`).
- Ids repeat (0.8's SimpleConsumer always sends 0), so order decides, never the id alone. Where bytes were lost, order
  does not decide either. For a client that was never seen to send a request before it had its answer, an answer then
  belongs to the last request that was sent before it. Other clients' requests with the same id get no answer: it may be
  that of any of them. A held response answers no request that was sent after it: one that acknowledges it, with any id.
- Produce with acks=0 is never answered: it is finished at once (`no_response`).
- A response can be captured before its own request. Unmatched ones are held for HOLD_PACKETS packets of the connection,
  and while earlier requests wait behind a hole, before they are called orphans.
- After a SaslHandshake v0 request, frames are bare tokens of the mechanism until one reads as a Kafka request again, or
  the broker refuses the handshake. Whether its answer was captured makes no difference: tokens are credentials.
- A request that was not answered before bytes of the other direction were lost is `partial`: its answer may be among
  them.
- A frame with bytes missing is `partial`; its last byte's time is unknown when bytes were never captured, but known
  when a snap length cut them (they did arrive).
"""
