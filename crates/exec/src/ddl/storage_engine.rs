//! `storageEngine` of collections and indexes: options for engines, of which there is one under two names.

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};

/// Checks the names of the engines; what is said to them has no effect.
///
/// Errors: `BadValue`, `InvalidOptions`.
pub(super) fn check(options: RawDoc<'_>) -> Result<()> {
    for element in options.iter() {
        if element.value().as_doc().is_none() {
            bail!(Code::BAD_VALUE, "'storageEngine.{}' has to be an embedded document.", element.key());
        }
        if !matches!(element.key(), "wiredTiger" | "sheaf") {
            bail!(
                Code::INVALID_OPTIONS,
                "{} is not a registered storage engine for this server",
                element.key()
            );
        }
    }
    Ok(())
}
