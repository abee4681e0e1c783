//! Any bytes as what a member says first, to either side, and as records of a link: nobody proves a key that he does not have, and nothing
//! is read that the other side has not sealed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_auth::Keys;
use sheaf_auth::link::{Accepting, Dialling, OPENING_BYTES, Session, VERDICT_BYTES};

const WORD: [u8; 4] = *b"ShMb";

fuzz_target!(|data: &[u8]| {
    let keys = Keys::parse("- thekeyofthisside\n- another", "file").expect("two keys");
    let cut = |at: usize| data.split_at(at.min(data.len()));
    let (mut opening, rest) = ([0; OPENING_BYTES], cut(OPENING_BYTES).1);
    opening[..cut(OPENING_BYTES).0.len()].copy_from_slice(cut(OPENING_BYTES).0);
    accepts(&keys, &opening, rest);
    dials(&keys, &opening, rest);
    // With the mark, which bytes at random seldom have.
    opening[..4].copy_from_slice(b"ShKy");
    accepts(&keys, &opening, rest);
    dials(&keys, &opening, rest);
    records(&keys, data);
});

fn accepts(keys: &Keys, opening: &[u8; OPENING_BYTES], rest: &[u8]) {
    let Ok((accepting, _)) = Accepting::new(keys, WORD, [2; 32], opening) else { return };
    let Some((number, proofs)) = rest.split_first() else { return };
    let Ok(bytes) = Accepting::proof_bytes(*number) else { return };
    let proofs = &proofs[..bytes.min(proofs.len())];
    assert!(accepting.finish(proofs).is_err(), "{proofs:?}");
}

fn dials(keys: &Keys, opening: &[u8; OPENING_BYTES], rest: &[u8]) {
    let (dialling, _) = Dialling::new(keys, WORD, [1; 32]);
    let Ok((proving, _)) = dialling.prove(opening) else { return };
    let mut verdict = [0; VERDICT_BYTES];
    let given = rest.len().min(VERDICT_BYTES);
    verdict[..given].copy_from_slice(&rest[..given]);
    assert!(proving.finish(&verdict).is_err(), "{verdict:?}");
}

/// Two ends that have proved themselves to each other.
fn meet(keys: &Keys) -> (Session, Session) {
    let (dialling, opening) = Dialling::new(keys, WORD, [1; 32]);
    let (accepting, answer) = Accepting::new(keys, WORD, [2; 32], &opening).expect("an opening");
    let (proving, proofs) = dialling.prove(&answer).expect("an answer");
    let (accepted, verdict) = accepting.finish(&proofs[1..]).expect("the same keys");
    (proving.finish(&verdict).expect("the same keys"), accepted)
}

fn records(keys: &Keys, data: &[u8]) {
    let (mut one, mut other) = meet(keys);
    assert!(!matches!(other.open.open(data), Ok(Some(_))), "{data:?}");
    let (mut one_more, mut other_end) = meet(keys);
    // What was sealed is read whole, and nothing else, wherever it is changed.
    let mut sent = Vec::new();
    one.seal.seal(data, &mut sent);
    let mut read = Vec::new();
    let mut at = 0;
    while let Some((record, bytes)) = other_end.open.open(&sent[at..]).expect("it was sealed") {
        read.extend_from_slice(record);
        at += bytes;
    }
    assert!(read == data && at == sent.len());
    let Some(place) = data.first().map(|first| usize::from(*first) % sent.len()) else { return };
    let mut changed = Vec::new();
    one_more.seal.seal(data, &mut changed);
    changed[place] ^= 1 + data[data.len() - 1] % 255;
    assert!(!matches!(meet(keys).1.open.open(&changed), Ok(Some(_))), "{place}");
}
