"""SCRAM, for clients that speak MongoDB's protocol by themselves."""

import base64
import hashlib
import hmac
import secrets
import socket
import struct


class Login:
    """SCRAM in two round trips: the first message travels with `hello`."""

    def __init__(self, mechanism, user, password):
        self.mechanism, self.user = mechanism, user
        self.digest = "sha1" if mechanism == "SCRAM-SHA-1" else "sha256"
        self.secret = password.encode()
        if self.digest == "sha1":
            self.secret = hashlib.md5(f"{user}:mongo:{password}".encode()).hexdigest().encode()
        self.salted = {}

    def mac(self, key, text):
        return hmac.new(key, text, self.digest).digest()

    def __call__(self, wire, cached=False):
        """Logs in by `wire.call`; what was derived of the password before is used again where it is `cached`."""
        nonce = base64.b64encode(secrets.token_bytes(24)).decode()
        bare = f"n={self.user},r={nonce}"
        first = {"saslStart": 1, "mechanism": self.mechanism, "payload": f"n,,{bare}".encode(), "db": "admin",
                 "options": {"skipEmptyExchange": True}}
        begun = wire.call({"hello": 1, "speculativeAuthenticate": first, "$db": "admin"})["speculativeAuthenticate"]
        challenge = begun["payload"].decode()
        fields = dict(field.split("=", 1) for field in challenge.split(","))
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        if not cached or salt not in self.salted:
            self.salted[salt] = hashlib.pbkdf2_hmac(self.digest, self.secret, salt, iterations)
        salted = self.salted[salt]
        key = self.mac(salted, b"Client Key")
        final = f"c=biws,r={fields['r']}"
        mark = self.mac(hashlib.new(self.digest, key).digest(), f"{bare},{challenge},{final}".encode())
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, mark))).decode()
        done = wire.call({"saslContinue": 1, "conversationId": begun["conversationId"], "payload": f"{final},p={proof}".encode(),
                          "$db": "admin"})
        assert done["done"], done


class Wire:
    """A connection on which commands go as they are: drivers put sessions and times of their own into them."""

    def __init__(self, server, user, password):
        self.socket = socket.create_connection(("127.0.0.1", server.port), 60)
        Login("SCRAM-SHA-256", user, password)(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, command):
        """The reply, whatever it says."""
        import bson

        body = b"\0\0\0\0\0" + bson.encode(command)
        self.socket.sendall(struct.pack("<iiii", len(body) + 16, 1, 0, 2013) + body)
        (length,) = struct.unpack("<i", self.read(4))
        return bson.decode(self.read(length - 4)[17:])

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the server has closed the connection"
            data += more
        return data
