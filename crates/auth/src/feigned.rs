//! Users that there are not: whoever asks for one is answered as if there were, by every server of a deployment and after each
//! restart alike.

use std::collections::BTreeMap;

use sheaf_bson::{DocBuf, RawDoc};

use crate::name::UserName;
use crate::scram::{Credential, Mechanism};

/// How often a user's mechanisms apply the hash, in the order of [`Mechanism::ALL`]; `None` of those that it does not have.
type Kind = [Option<u32>; 2];

/// What is made up of a name.
#[derive(Clone, Debug)]
pub struct Feigned {
    secret: [u8; 32],
    /// The kinds of users that there are, and how many there are of each: those that there are not are distributed like them.
    kinds: BTreeMap<Kind, u64>,
    /// A user that there is: to look for one that there is not takes as long.
    example: Option<DocBuf>,
}

impl Feigned {
    /// So many users are enough to know of which kinds they are.
    pub const ENOUGH: usize = 1000;

    /// Where there are no users: of this secret.
    pub fn new(secret: [u8; 32]) -> Self {
        Feigned { secret, kinds: BTreeMap::new(), example: None }
    }

    /// Of the users' collection: its number is the same everywhere and for ever, and strangers don't know it.
    pub fn of_collection(uuid: &[u8]) -> Self {
        let of_uuid = Mechanism::Sha256.hmac(uuid, b"users that are not there");
        Feigned::new(std::array::from_fn(|at| of_uuid[at]))
    }

    /// There is this user.
    pub fn add(&mut self, user: RawDoc<'_>) {
        let kept = user.get("credentials").and_then(|kept| kept.as_doc()).unwrap_or(RawDoc::EMPTY);
        let kind = Mechanism::ALL.map(|mechanism| {
            let count = kept.get(mechanism.name())?.as_doc()?.get("iterationCount")?.as_exact_i64()?;
            u32::try_from(count).ok()
        });
        // Those of others' making prove nothing here.
        if kind != [None; 2] {
            *self.kinds.entry(kind).or_default() += 1;
            self.example.get_or_insert_with(|| user.into());
        }
    }

    /// The document of a user that there is, if there is any.
    pub fn example(&self) -> Option<RawDoc<'_>> {
        self.example.as_ref().map(|example| example.as_raw())
    }

    /// A number made of the name.
    fn number(&self, user: &UserName) -> u64 {
        let hash = Mechanism::Sha256.hmac(&self.secret, format!("kind:{user}").as_bytes());
        u64::from_be_bytes(std::array::from_fn(|at| hash[at]))
    }

    /// The kind of user that this one would be; `None` where there are none to be like.
    fn kind(&self, user: &UserName) -> Option<Kind> {
        let all: u64 = self.kinds.values().sum();
        let mut at = ((u128::from(self.number(user)) * u128::from(all)) >> 64) as u64;
        for (kind, count) in &self.kinds {
            match at.checked_sub(*count) {
                None => return Some(*kind),
                Some(rest) => at = rest,
            }
        }
        None
    }

    /// Whether it would have this mechanism.
    pub fn has(&self, user: &UserName, mechanism: Mechanism) -> bool {
        user.db != "$external" && self.kind(user).is_none_or(|kind| kind[place(mechanism)].is_some())
    }

    /// A credential that it would have, which nothing proves; `iterations` are those of a new one.
    pub fn credential(&self, user: &UserName, mechanism: Mechanism, iterations: u32) -> Credential {
        let own = self.kind(user).and_then(|kind| kind[place(mechanism)]);
        Credential::of_nobody(mechanism, &self.secret, &user.to_string(), own.unwrap_or(iterations))
    }
}

fn place(mechanism: Mechanism) -> usize {
    match mechanism {
        Mechanism::Sha1 => 0,
        Mechanism::Sha256 => 1,
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn user(sha1: Option<i32>, sha256: Option<i32>) -> DocBuf {
        let mut kept = DocBuf::new();
        for (name, count) in [("SCRAM-SHA-1", sha1), ("SCRAM-SHA-256", sha256)] {
            if let Some(count) = count {
                kept = kept.with(name, doc! { "iterationCount": count }.as_raw());
            }
        }
        doc! { "user": "u", "db": "d", "credentials": kept.as_raw() }
    }

    #[test]
    fn those_that_are_not_there_are_like_those_that_are() {
        let mut feigned = Feigned::of_collection(&[7; 16]);
        let name = |at: usize| UserName::new(format!("nobody{at}"), "lib");
        let credential = |feigned: &Feigned, at| feigned.credential(&name(at), Mechanism::Sha256, 15_000);
        assert!(feigned.has(&name(0), Mechanism::Sha1) && credential(&feigned, 0).iterations == 15_000);
        feigned.add(doc! { "user": "u", "db": "$external", "credentials": { "external": true } }.as_raw());
        assert!(feigned.example().is_none());
        for _ in 0..2 {
            feigned.add(user(Some(10_000), Some(15_000)).as_raw());
        }
        feigned.add(user(Some(10_000), None).as_raw());
        feigned.add(user(None, Some(20_000)).as_raw());
        let with = |wanted: &dyn Fn(&UserName) -> bool| (0..1000).filter(|at| wanted(&name(*at))).count();
        let of = |iterations: u32| {
            with(&|user| {
                feigned.has(user, Mechanism::Sha256)
                    && feigned.credential(user, Mechanism::Sha256, 30_000).iterations == iterations
            })
        };
        assert!((400..600).contains(&of(15_000)) && (150..350).contains(&of(20_000)));
        assert!((150..350).contains(&with(&|user| !feigned.has(user, Mechanism::Sha256))));
        assert_eq!(with(&|user| Mechanism::ALL.iter().all(|one| !feigned.has(user, *one))), 0);
        assert!(!feigned.has(&UserName::new("CN=x", "$external"), Mechanism::Sha256));
        // The same wherever and whenever it is asked for; of another deployment something else.
        let again = Feigned::of_collection(&[7; 16]);
        assert_eq!(credential(&again, 5).salt, credential(&feigned, 5).salt);
        assert_ne!(credential(&again, 5).salt, credential(&again, 6).salt);
        assert_ne!(credential(&Feigned::of_collection(&[8; 16]), 5).salt, credential(&again, 5).salt);
    }
}
