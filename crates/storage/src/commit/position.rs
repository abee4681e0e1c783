//! Where a batch ends, as it stands in the batch.

use sheaf_errors::{Code, Result, bail};

use crate::db::{Cf, Db};
use crate::keys::catalog_key;
use crate::options::OpTime;

/// What a batch says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// The last operation in it. Within an entry, when its time is before the entry's: a group is applied in several batches.
    pub at: OpTime,
    /// The number of the batch; batches are written one after another.
    pub batch: u64,
}

impl Position {
    const LEN: usize = 32;

    /// As it stands in the catalog.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (at, n) in [self.at.term, self.at.index, self.at.time, self.batch].into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Position> {
        if bytes.len() != Self::LEN {
            return None;
        }
        let mut numbers = bytes.chunks_exact(8).map(|n| n.try_into().map_or(0, u64::from_le_bytes));
        let mut next = || numbers.next();
        let at = OpTime { term: next()?, index: next()?, time: next()? };
        Some(Position { at, batch: next()? })
    }

    /// That of the last batch in the files. `None`: written by a version that did not note it.
    pub fn read(db: &Db) -> Result<Option<Position>> {
        let Some(bytes) = db.get(Cf::Catalog, catalog_key::POSITION)? else { return Ok(None) };
        match Position::decode(&bytes) {
            Some(position) => Ok(Some(position)),
            None => bail!(Code::INTERNAL_ERROR, "the data files' position has {} bytes", bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_read_back() {
        let position = Position { at: OpTime { term: 3, index: 1 << 40, time: u64::MAX - 5 }, batch: 77 };
        assert_eq!(Position::decode(&position.encode()), Some(position));
        assert_eq!(Position::decode(b"short"), None);
    }
}
