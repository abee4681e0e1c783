"""A proxy for MongoDB's wire protocol that lies once: it answers for a write that it has not passed on, or changes one.

The laboratory's checks must find this. A proxy that tells the truth must change nothing.
"""

import socket
import struct
import threading

MORE_TO_COME = 2


def acknowledgement(request_id, n):
    """The reply {n, nModified, ok: 1} to this request."""
    fields = b"\x10n\x00" + struct.pack("<i", n) + b"\x10nModified\x00" + struct.pack("<i", n)
    fields += b"\x01ok\x00" + struct.pack("<d", 1.0)
    document = struct.pack("<i", len(fields) + 5) + fields + b"\x00"
    body = struct.pack("<IB", 0, 0) + document
    return struct.pack("<iiii", len(body) + 16, 1, request_id, 2013) + body


def receive(connection, length):
    parts = []
    while length > 0:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def message_from(connection):
    head = receive(connection, 16)
    if head is None:
        return None
    rest = receive(connection, struct.unpack("<i", head[:4])[0] - 16)
    return None if rest is None else head + rest


def command_of(message, known=None):
    """Name of the command and of its collection: the body's first element. A command whose first element is no text is
    looked for by its name."""
    if known and message[26:].startswith(known.encode() + b"\x00") and message[25] != 2:
        return known, ""
    if message[25] != 2:
        return "", ""
    name_end = message.index(b"\x00", 26)
    length = struct.unpack("<i", message[name_end + 1 : name_end + 5])[0]
    return message[26:name_end].decode(), message[name_end + 5 : name_end + 4 + length].decode()


def documents_in(message):
    """How many documents or statements the message's sequence holds."""
    at = 21 + struct.unpack("<i", message[21:25])[0]
    if at >= len(message) or message[at] != 1:
        return 0
    at = message.index(b"\x00", at + 5) + 1
    count = 0
    while at < len(message):
        at += struct.unpack("<i", message[at : at + 4])[0]
        count += 1
    return count


class Lie:
    """What is done to the `nth` (from 0) message with this command and collection.

    With `within_transaction`, the first message of a transaction does not count: without it, the server would not know
    of the transaction, and the client would simply begin it anew.
    """

    def __init__(self, command, collection, nth, within_transaction=False):
        self.wanted = (command, collection)
        self.within_transaction = within_transaction
        self.left = nth
        self.told = False
        self.lock = threading.Lock()

    def applies(self, message):
        if command_of(message) != self.wanted or self.begins_transaction(message):
            return False
        with self.lock:
            self.left -= 1
            if self.left == -1 and not self.told:
                self.told = True
                return True
            return False

    def begins_transaction(self, message):
        return self.within_transaction and b"startTransaction\x00" in message

    def change(self, message):
        """What goes to the server instead; None for nothing at all."""
        raise NotImplementedError


class Drop(Lie):
    """The write is acknowledged, and nothing happens."""

    def change(self, message):
        return None


class FlipBit(Lie):
    """One bit of the last document's body is another one."""

    def change(self, message):
        at = len(message) - 100
        return message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]


class MoreMoney(Lie):
    """An increment of `balance` gives one more than it should."""

    def change(self, message):
        at = message.index(b"\x12balance\x00") + 9
        amount = struct.unpack("<q", message[at : at + 8])[0]
        return message[:at] + struct.pack("<q", amount + 1) + message[at + 8 :]


class OldAnswer(Lie):
    """The nth answer (from 0) of this kind is given once more, `later` messages of this kind on; that message is never
    passed on.

    With `with_documents`, the name of a batch, only answers count whose batch is not empty. The command's collection is
    not looked at when it is "".
    """

    def __init__(self, command, collection, nth, later=0, with_documents=None, **options):
        super().__init__(command, collection, nth, **options)
        self.with_documents = with_documents
        self.later = later
        self.kept = {}

    def concerns(self, message):
        command, collection = command_of(message, self.wanted[0])
        wanted = command == self.wanted[0] and self.wanted[1] in ("", collection)
        return wanted and not self.begins_transaction(message)

    def keep(self, connection, message, answer):
        """Sees every answer."""
        if self.concerns(message) and (not self.with_documents or holds_documents(answer, self.with_documents)):
            with self.lock:
                self.left -= 1
                if self.left >= -1:
                    self.kept[connection] = answer

    def old(self, connection, message):
        """The answer that this message gets instead of its own."""
        with self.lock:
            if self.told or self.left >= 0 or connection not in self.kept or not self.concerns(message):
                return None
            self.later -= 1
            if self.later >= 0:
                return None
            self.told = True
            old = self.kept[connection]
            return old[:8] + message[4:8] + old[12:]


def holds_documents(answer, batch):
    """Whether the array of this name in an answer has a first element."""
    at = answer.find(b"\x04" + batch.encode() + b"\x00")
    return at >= 0 and struct.unpack("<i", answer[at + len(batch) + 2 : at + len(batch) + 6])[0] > 5


class Proxy:
    """Listens on a port of its own, and passes everything on but for one lie."""

    def __init__(self, server_port, lie=None):
        self.server_port = server_port
        self.lie = lie
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def uri(self):
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            with client, socket.create_connection(("127.0.0.1", self.server_port)) as server:
                for connection in (client, server):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while (message := message_from(client)) is not None:
                    answer = self.answer(client, message, server)
                    if answer is not None:
                        client.sendall(answer)
        except OSError:
            # One side has gone; the other one is told by the closed socket.
            pass

    def answer(self, client, message, server):
        if not isinstance(self.lie, OldAnswer):
            return self.pass_on(message, server)
        old = self.lie.old(client, message)
        if old is not None:
            return old
        answer = message_from(server) if server.sendall(message) is None else None
        if answer is not None:
            self.lie.keep(client, message, answer)
        return answer

    def pass_on(self, message, server):
        flags = struct.unpack("<I", message[16:20])[0]
        passed = message
        if self.lie and self.lie.applies(message):
            passed = self.lie.change(message)
        if passed is not None:
            server.sendall(passed)
        if flags & MORE_TO_COME:
            return None
        if passed is None:
            return acknowledgement(struct.unpack("<i", message[4:8])[0], documents_in(message))
        return message_from(server)

    def close(self):
        self.listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
