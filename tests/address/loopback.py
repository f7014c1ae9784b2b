"""A server's service without a network: every message passes the codec on its way."""

from __future__ import annotations

from cerebras_tf.address.codec import Reader, encode
from cerebras_tf.address.messages import ANSWERS, REQUESTS, Failure, error_of, failure_of
from cerebras_tf.address.remote import RemoteWafer
from cerebras_tf.address.service import Service
from cerebras_tf.kernels.compiled_threads import num_threads

MAX_BYTES = 1 << 30


def sent(message, kinds=(*REQUESTS, *ANSWERS), max_bytes=MAX_BYTES):
    """A message as it arrives."""
    reader, found = Reader(max_bytes, kinds), None
    for frame in encode(3, message):
        assert found is None
        found = reader.feed(frame)
    number, arrived = found
    assert number == 3
    return arrived


class Loopback:
    """A link to a service in this process."""

    def __init__(self, service=None):
        self.service, self.threads = service or Service(), num_threads()
        self.on_files = self.service.on_files

    def begin(self, request, size=0):
        answer = self.call(request)
        return lambda: answer

    def send(self, request, size):
        self.call(request)

    def call(self, request):
        try:
            answer = self.service.answer(sent(request, REQUESTS))
        except Exception as error:
            answer = failure_of(error)
        answer = sent(answer, ANSWERS)
        if isinstance(answer, Failure):
            raise error_of(answer)
        return answer


def loopback():
    """A wafer on a service of its own, and the link to it."""
    link = Loopback()
    return RemoteWafer(link), link
