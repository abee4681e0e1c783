"""SCRAM, for clients that speak MongoDB's protocol by themselves."""

import base64
import hashlib
import hmac
import secrets


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
