//! How two members prove to each other that they have the same key, and how what they send is sealed from then on.
//!
//! ```text
//! dialling                                   accepting
//! word, "ShKy", nonce d                  ->
//!                                        <-  "ShKy", nonce a
//! number of keys, a proof by each of them ->
//!                                        <-  the number of the key that both have, a proof by it
//! ```
//!
//! A proof is an HMAC-SHA-256 over who gives it, the word by which the connection is known and both nonces, so none is worth anything on
//! another connection, in the other direction, or for another purpose. Of the same things each direction has a key of its own, by
//! which every [record](seal) carries a code over its number and its bytes: what is played again, left out, put in or altered is
//! noticed before anything of it is read. It hides nothing: that is for TLS.

pub mod seal;

use ctutils::CtEq;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::keys::{Keys, MOST_KEYS};
use seal::{Opener, Sealer};

/// What a member says that is about to prove itself; read as the length of a greeting it would be too long.
pub const MARK: [u8; 4] = *b"ShKy";

/// A number that is used once, of which each side chooses one.
pub type Nonce = [u8; 32];

/// A mark and a nonce.
pub const OPENING_BYTES: usize = MARK.len() + size_of::<Nonce>();

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// Of the accepting side's last message.
pub const VERDICT_BYTES: usize = 1 + PROOF_BYTES;

/// The two directions of a connection whose ends have proved themselves.
pub struct Session {
    /// For what this side sends.
    pub seal: Sealer,
    /// For what it receives.
    pub open: Opener,
}

/// What both sides know of a connection.
#[derive(Clone, Copy)]
struct Transcript {
    word: [u8; 4],
    dialling: Nonce,
    accepting: Nonce,
}

impl Transcript {
    fn mac(&self, key: &str, what: &str) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(b"sheaf members 1 ");
        mac.update(what.as_bytes());
        mac.update(&[0]);
        mac.update(&self.word);
        mac.update(&self.dialling);
        mac.update(&self.accepting);
        mac.finalize().into_bytes().into()
    }

    fn is(&self, key: &str, what: &str, proof: &[u8]) -> bool {
        proof.ct_eq(self.mac(key, what).as_slice()).to_bool()
    }

    fn directions(&self, key: &str) -> (Sealer, Sealer) {
        let sealer = |what: &str| Sealer::new(self.mac(key, what));
        (sealer("from dialling"), sealer("from accepting"))
    }
}

fn opening(nonce: &Nonce) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..MARK.len()].copy_from_slice(&MARK);
    bytes[MARK.len()..].copy_from_slice(nonce);
    bytes
}

fn nonce_of(opening: &[u8; OPENING_BYTES]) -> Option<Nonce> {
    let (mark, nonce) = opening.split_at(MARK.len());
    (mark == MARK).then(|| nonce.try_into().ok()).flatten()
}

/// The dialling side.
pub struct Dialling<'k> {
    keys: &'k Keys,
    word: [u8; 4],
    nonce: Nonce,
}

impl<'k> Dialling<'k> {
    /// Begins on a connection that is known by `word`; gives what to send behind that.
    pub fn new(keys: &'k Keys, word: [u8; 4], nonce: Nonce) -> (Self, [u8; OPENING_BYTES]) {
        (Dialling { keys, word, nonce }, opening(&nonce))
    }

    /// Takes the other side's opening, and gives what to send.
    ///
    /// Errors: it is none.
    pub fn prove(self, other: &[u8; OPENING_BYTES]) -> Result<(Proving<'k>, Vec<u8>), &'static str> {
        let accepting = nonce_of(other).ok_or("it does not prove that it has the key")?;
        let transcript = Transcript { word: self.word, dialling: self.nonce, accepting };
        let mut out = vec![self.keys.iter().count() as u8];
        self.keys.iter().for_each(|key| out.extend_from_slice(&transcript.mac(key, "dialling")));
        Ok((Proving { keys: self.keys, transcript }, out))
    }
}

/// The dialling side, having proved itself.
pub struct Proving<'k> {
    keys: &'k Keys,
    transcript: Transcript,
}

impl Proving<'_> {
    /// Takes the other side's proof.
    ///
    /// Errors: it is none.
    pub fn finish(self, verdict: &[u8; VERDICT_BYTES]) -> Result<Session, &'static str> {
        let key = self.keys.iter().nth(usize::from(verdict[0]));
        let key = key.filter(|key| self.transcript.is(key, "accepting", &verdict[1..]));
        let (own, other) = self.transcript.directions(key.ok_or("it has another key")?);
        Ok(Session { seal: own, open: other.into_opener() })
    }
}

/// The accepting side.
pub struct Accepting<'k> {
    keys: &'k Keys,
    transcript: Transcript,
}

impl<'k> Accepting<'k> {
    /// Begins with the other side's opening; gives what to send.
    ///
    /// Errors: it is none.
    pub fn new(
        keys: &'k Keys,
        word: [u8; 4],
        nonce: Nonce,
        other: &[u8; OPENING_BYTES],
    ) -> Result<(Self, [u8; OPENING_BYTES]), &'static str> {
        let dialling = nonce_of(other).ok_or("it does not prove that it has the key")?;
        Ok((Accepting { keys, transcript: Transcript { word, dialling, accepting: nonce } }, opening(&nonce)))
    }

    /// Bytes of the proofs that follow their number.
    ///
    /// Errors: a number that nobody has.
    pub fn proof_bytes(number: u8) -> Result<usize, &'static str> {
        match usize::from(number) {
            number @ 1..=MOST_KEYS => Ok(number * PROOF_BYTES),
            _ => Err("it does not prove that it has the key"),
        }
    }

    /// Takes the other side's proofs; gives what to send.
    ///
    /// Errors: none of them is by a key of this side.
    pub fn finish(self, proofs: &[u8]) -> Result<(Session, [u8; VERDICT_BYTES]), &'static str> {
        let found = proofs.chunks_exact(PROOF_BYTES).enumerate().find_map(|(number, proof)| {
            let key = self.keys.iter().find(|key| self.transcript.is(key, "dialling", proof))?;
            Some((number, key))
        });
        let (number, key) = found.ok_or("it has another key")?;
        let mut verdict = [0; VERDICT_BYTES];
        verdict[0] = number as u8;
        verdict[1..].copy_from_slice(&self.transcript.mac(key, "accepting"));
        let (other, own) = self.transcript.directions(key);
        Ok((Session { seal: own, open: other.into_opener() }, verdict))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: [u8; 4] = *b"ShMb";

    fn keys(text: &str) -> Keys {
        Keys::parse(text, "f").unwrap()
    }

    fn meet(dialling: &Keys, accepting: &Keys) -> Result<(Session, Session), &'static str> {
        let (one, opening) = Dialling::new(dialling, WORD, [1; 32]);
        let (other, answer) = Accepting::new(accepting, WORD, [2; 32], &opening)?;
        let (one, proofs) = one.prove(&answer)?;
        assert_eq!(Accepting::proof_bytes(proofs[0])?, proofs.len() - 1);
        let (accepted, verdict) = other.finish(&proofs[1..])?;
        Ok((one.finish(&verdict)?, accepted))
    }

    #[test]
    fn members_with_a_key_in_common_understand_each_other() {
        for (one, other) in
            [("aaaaaa", "aaaaaa"), ("- aaaaaa\n- bbbbbb", "bbbbbb"), ("bbbbbb", "- aaaaaa\n- bbbbbb")]
        {
            let (mut one, mut other) = meet(&keys(one), &keys(other)).unwrap();
            let mut sent = Vec::new();
            one.seal.seal(b"there", &mut sent);
            let (read, rest) = other.open.open(&sent).unwrap().unwrap();
            assert_eq!((read, rest), (&b"there"[..], sent.len()));
            let mut back = Vec::new();
            other.seal.seal(b"and back", &mut back);
            assert_eq!(one.open.open(&back).unwrap().unwrap().0, b"and back");
            // What one side has sent is not taken as the other's.
            assert!(one.open.open(&sent).is_err());
        }
        assert_eq!(meet(&keys("aaaaaa"), &keys("bbbbbb")).err(), Some("it has another key"));
    }

    #[test]
    fn proofs_are_for_one_connection_one_side_and_one_purpose() {
        let key = keys("aaaaaa");
        let (one, opening) = Dialling::new(&key, WORD, [1; 32]);
        let (other, answer) = Accepting::new(&key, WORD, [2; 32], &opening).unwrap();
        let (one, proofs) = one.prove(&answer).unwrap();
        // Played to a later connection, and to one for another purpose.
        let (later, _) = Accepting::new(&key, WORD, [3; 32], &opening).unwrap();
        assert!(later.finish(&proofs[1..]).is_err());
        let (else_where, _) = Accepting::new(&key, *b"ShCp", [2; 32], &opening).unwrap();
        assert!(else_where.finish(&proofs[1..]).is_err());
        // Sent back to who has sent it.
        let mut mirrored = [0; VERDICT_BYTES];
        mirrored[1..].copy_from_slice(&proofs[1..]);
        assert!(one.finish(&mirrored).is_err());
        assert!(other.finish(&[]).is_err());
        assert!(Accepting::new(&key, WORD, [2; 32], &[0; OPENING_BYTES]).is_err());
        assert!(Accepting::proof_bytes(0).is_err() && Accepting::proof_bytes(17).is_err());
    }
}
