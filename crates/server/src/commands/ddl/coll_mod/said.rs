//! What the log says of a `collMod`: what was asked for, as MongoDB's oplog and change streams tell it, also where nothing changes by it.

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_storage::Said;

use super::CollMod;
use super::index::IndexChange;
use crate::args::safe_i64;

/// What it says of an index: `{name, ...}` with what is to change, and how that was before.
pub struct SaidOfIndex {
    asked: DocBuf,
    before: DocBuf,
}

impl SaidOfIndex {
    fn flag(&mut self, name: &str, change: Option<(bool, bool)>) {
        if let Some((old, new)) = change {
            self.asked.append(name, new);
            self.before.append(name, old);
        }
    }
}

impl IndexChange {
    /// What the log says of the change of the index of this name; nothing, if the index is as it is wished.
    pub fn said(&self, name: &str) -> Option<SaidOfIndex> {
        let mut said = SaidOfIndex { asked: doc! { "name": name }, before: DocBuf::new() };
        let nothing = said.asked.as_bytes().len();
        if let Some((old, new)) = self.expire {
            said.asked.append("expireAfterSeconds", new);
            said.before.append("expireAfterSeconds", old.map_or(Value::Missing, Value::Int64));
        }
        said.flag("hidden", self.hidden);
        if self.unique {
            said.asked.append("unique", true);
        }
        said.flag("prepareUnique", self.prepare_unique);
        if self.non_unique {
            said.asked.append("forceNonUnique", true);
        }
        (said.asked.as_bytes().len() > nothing).then_some(said)
    }
}

/// What the log says of all that the command asks of a collection.
pub fn of(command: &CollMod<'_>, index: Option<SaidOfIndex>) -> Said {
    let number = |n: Option<i64>| n.map_or(Value::Missing, Value::Int64);
    let mut asked = DocBuf::new();
    asked.append("cappedSize", number(command.capped_size)).append("cappedMax", number(command.capped_max));
    let (of_index, index_before) = index.map(|index| (index.asked, index.before)).unzip();
    if let Some(index) = &of_index {
        asked.append("index", index);
    }
    if let Some(validator) = command.validator {
        asked.append("validator", validator);
    }
    for (field, word) in
        [("validationLevel", command.validation_level), ("validationAction", command.validation_action)]
    {
        asked.append(field, word.map_or(Value::Missing, Value::String));
    }
    if let Some(enabled) = command.images {
        asked.append("changeStreamPreAndPostImages", &doc! { "enabled": enabled });
    }
    // A number is told as a long, whatever it was; "off" is told as it is.
    let seconds = command.expire_after_seconds.map_or(Value::Missing, |value| match value {
        number if number.is_number() => Value::Int64(safe_i64(number).unwrap_or(0)),
        other => other,
    });
    asked.append("expireAfterSeconds", seconds);
    Said { asked, index_before }
}
