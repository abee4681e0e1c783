//! Whether the catalog has room for another definition.

use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Catalog;

use crate::op::Operation;

/// Definitions of less are let in unseen: a collection takes as much whatever its options are.
const SMALL_BYTES: usize = 1 << 10;

/// What a definition takes in memory for each of its bytes: as it stands, parsed, and in the caches of who uses it.
const KEPT_BYTES: u64 = 4;

/// Refuses a definition of so many bytes, if they and those of all definitions there are would take more than a
/// quarter of the memory that operations have. Definitions (validators, views, filters of partial indexes) are in memory
/// as long as they exist, and a folder must open again where it was written.
///
/// Errors: `ExceededMemoryLimit`.
pub fn check_room(op: &Operation<'_>, bytes: usize) -> Result<()> {
    if bytes < SMALL_BYTES {
        return Ok(());
    }
    let share = op.node().memory.limit() / 4;
    let kept = (bytes as u64 + defined_bytes(&op.catalog())) * KEPT_BYTES;
    if kept > share {
        bail!(
            Code::EXCEEDED_MEMORY_LIMIT,
            "The definitions of collections, views and indexes would take {kept} bytes of memory, more than their share of {share}"
        );
    }
    Ok(())
}

fn defined_bytes(catalog: &Catalog) -> u64 {
    let of_indexes = |indexes: &[std::sync::Arc<sheaf_storage::Index>]| {
        indexes.iter().map(|index| index.spec.as_bytes().len()).sum::<usize>()
    };
    catalog.all().map(|one| (one.options.as_bytes().len() + of_indexes(&one.indexes)) as u64).sum()
}
