//! Finds that somebody else can go on with: `$_requestResumeToken`, `$_resumeAfter` and `$_startAt`. An aggregate of nothing but
//! filters takes them, too.
//!
//! A token holds the key of a record, `{$recordId: <binary>}`, as mongod's has it for clustered collections: here every
//! collection's records are kept by their keys. Who has one passes it back as it is. Where all is read there is nothing to go on with: the
//! token holds null, and no read begins behind it.

use sheaf_bson::{Binary, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::query::Start;
use sheaf_storage::{Collection, View};

use crate::args::{Args, Flag, Object};

/// What a find says of tokens.
#[derive(Clone, Copy, Default)]
pub struct Resume<'a> {
    is_asked: bool,
    after: Option<RawDoc<'a>>,
    at: Option<RawDoc<'a>>,
}

impl<'a> Resume<'a> {
    /// Errors: `TypeMismatch`.
    pub fn parse(args: &mut Args<'a>) -> Result<Self> {
        let given = |token: &RawDoc<'a>| !token.is_empty();
        Ok(Resume {
            is_asked: args.optional::<Flag>("$_requestResumeToken")?.is_some_and(|flag| flag.0),
            after: args.optional::<Object<'a>>("$_resumeAfter")?.map(|token| token.0).filter(given),
            at: args.optional::<Object<'a>>("$_startAt")?.map(|token| token.0).filter(given),
        })
    }

    /// Whether batches come with tokens.
    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Checks the tokens, and what they stand beside: natural order is the only one.
    ///
    /// Errors: `BadValue`, 7738600.
    pub fn check(&self, hint: Value<'_>, sort: Option<RawDoc<'_>>) -> Result<()> {
        if !self.is_asked {
            if self.after.or(self.at).is_some() {
                bail!(
                    Code::BAD_VALUE,
                    "'requestResumeToken' must be true if 'resumeAfter' or 'startAt' is specified"
                );
            }
            return Ok(());
        }
        if !hint.as_doc().is_some_and(is_natural) {
            bail!(Code::BAD_VALUE, "hint must be {{$natural:1}} if 'requestResumeToken' is enabled");
        }
        if sort.is_some_and(|sort| !sort.is_empty() && !is_natural(sort)) {
            bail!(Code::BAD_VALUE, "sort must be unset or {{$natural:1}} if 'requestResumeToken' is enabled");
        }
        match (self.after, self.at) {
            (Some(_), Some(_)) => bail!(Code::BAD_VALUE, "Cannot set both '$_startAt' and '$_resumeAfter'"),
            (Some(token), None) => check_token("$_resumeAfter", token),
            (None, Some(token)) => check_token("$_startAt", token),
            (None, None) => Ok(()),
        }
    }

    /// Where the scan begins; `None` is with the first record.
    pub fn start(&self) -> Option<Start> {
        let record = |token: RawDoc<'_>| match token.get("$recordId") {
            Some(Value::Binary(key)) => Some(key.bytes.to_vec()),
            _ => None,
        };
        let after = self.after.is_some();
        Some(Start { record: record(self.after.or(self.at)?)?, after })
    }

    /// The record behind which the scan begins has to be there still.
    ///
    /// Errors: `KeyNotFound`; `CommandNotSupported` for the log, whose entries are no records.
    pub fn check_record(&self, collection: &Collection, view: &View) -> Result<()> {
        if self.is_asked && collection.is_oplog() {
            bail!(Code::COMMAND_NOT_SUPPORTED, "there are no resume tokens of the oplog");
        }
        if self.after.is_none() {
            return Ok(());
        }
        let record = self.start().map(|start| view.get(collection, &start.record)).transpose()?;
        if record.flatten().is_none() {
            bail!(
                Code::KEY_NOT_FOUND,
                "Failed to resume collection scan: the recordId from which we are attempting to resume no longer exists \
                 in the collection."
            );
        }
        Ok(())
    }
}

/// `{$natural: 1}`, whatever the number's type.
fn is_natural(order: RawDoc<'_>) -> bool {
    order.count() == 1 && order.get("$natural").and_then(|direction| direction.as_exact_i64()) == Some(1)
}

fn check_token(name: &str, token: RawDoc<'_>) -> Result<()> {
    let record = token.get_or_missing("$recordId");
    let is_record = matches!(record, Value::Int64(_) | Value::Binary(_) | Value::Null);
    let is_sync = |sync: Value<'_>| matches!(sync, Value::Binary(Binary { subtype: 4, .. }));
    let fits = match token.count() {
        1 => is_record,
        2 => is_record && token.get("$initialSyncId").is_some_and(is_sync),
        _ => false,
    };
    if !fits {
        bail!(
            Code::BAD_VALUE,
            "Malformed resume token: the '{name}' object must contain '$recordId', of type NumberLong, BinData or jstNULL and \
             optional '$initialSyncId of type BinData."
        );
    }
    if matches!(record, Value::Int64(_)) {
        bail!(7738600, "The '{name}' parameter must match collection type: records have binary ids.");
    }
    Ok(())
}

/// The token of a scan whose last record has this key; `None`: it has given none yet.
pub fn token(record: Option<&[u8]>) -> DocBuf {
    let id = record.map_or(Value::Null, |bytes| Value::Binary(Binary { subtype: 0, bytes }));
    DocBuf::new().with("$recordId", id)
}
