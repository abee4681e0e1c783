"""MongoDB's messages on a plain socket: whole ones, and what a hostile client makes of them."""

import itertools
import socket
import struct
import zlib

import bson

HEADER = struct.Struct("<iiii")
OP_MSG, OP_QUERY, OP_COMPRESSED, OP_REPLY = 2013, 2004, 2012, 1
# Opcodes of old, and some that never were.
LEFTOVERS = [1, 1000, 2001, 2002, 2003, 2005, 2006, 2007, 2010, 2011, 0, -1, 2**31 - 1]
MORE_TO_COME, EXHAUST_ALLOWED, CHECKSUM = 2, 1 << 16, 1
LARGEST = 48_000_000

_numbers = itertools.count(1)


class Gone(Exception):
    """The server has closed the connection, or did not answer in time."""


def packed(opcode, body, length=None):
    """A message; its header may lie about the length."""
    return HEADER.pack(16 + len(body) if length is None else length, next(_numbers) & 0x7FFFFFFF, 0, opcode) + body


def message(command, flags=0, sections=()):
    """OP_MSG of a command (a dict or encoded); `sections` are (name, [documents])."""
    document = command if isinstance(command, bytes) else bson.encode(command)
    body = struct.pack("<I", flags) + b"\0" + document
    for name, documents in sections:
        content = name.encode() + b"\0" + b"".join(bson.encode(d) for d in documents)
        body += b"\1" + struct.pack("<i", len(content) + 4) + content
    return packed(OP_MSG, body)


def query(command, flags=0, count=-1, namespace=b"admin.$cmd"):
    """OP_QUERY, as old drivers greet."""
    return packed(OP_QUERY, struct.pack("<i", flags) + namespace + b"\0" + struct.pack("<ii", 0, count) + bson.encode(command))


def compressed(inner, compressor=2, declared=None, opcode=OP_MSG, data=None):
    """OP_COMPRESSED of a message; the declared size and the data may be anything."""
    body = inner[16:]
    data = zlib.compress(body) if data is None else data
    size = len(body) if declared is None else declared
    return packed(OP_COMPRESSED, struct.pack("<iiB", opcode, size, compressor) + data)


class Connection:
    """A socket to the server."""

    def __init__(self, port, timeout=30.0, receive_buffer=None):
        self.socket = socket.socket()
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.socket.settimeout(timeout)
            self.socket.connect(("127.0.0.1", port))
        except OSError as error:
            self.socket.close()
            raise Gone(str(error)) from None

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Gone(str(error)) from None

    def receive(self):
        """The body of the next OP_MSG or OP_REPLY, decoded."""
        header = self.exactly(16)
        length, _, _, opcode = HEADER.unpack(header)
        body = self.exactly(length - 16)
        try:
            return bson.decode(body[20:] if opcode == OP_REPLY else body[5:])
        except bson.errors.BSONError as error:
            # Values that Python has no type for.
            return {"ok": 1.0, "undecoded": str(error)}

    def exactly(self, count):
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(min(1 << 20, count - len(parts)))
            except OSError as error:
                raise Gone(str(error)) from None
            if not part:
                raise Gone("closed by the server")
            parts += part
        return bytes(parts)

    def ask(self, command, **more):
        """A command and its reply."""
        self.send(message(command, **more))
        return self.receive()

    def close(self, reset=False):
        """Closes in order, or with a reset that may overtake what was sent."""
        try:
            if reset:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.socket.close()
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
