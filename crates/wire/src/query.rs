//! OP_QUERY: what the first message of older drivers is. MongoDB 5.1 and later answer it for the
//! handshake only.

use sheaf_bson::{RawDoc, validate};

use crate::header::HEADER_LEN;
use crate::{Header, WireError};

/// A parsed OP_QUERY.
#[derive(Debug)]
pub struct OpQuery<'a> {
    /// The message's header.
    pub header: Header,
    /// `db.collection`; handshakes go to `admin.$cmd`.
    pub namespace: &'a str,
    /// The command.
    pub body: RawDoc<'a>,
}

impl<'a> OpQuery<'a> {
    /// The database part of the namespace, if it is the `$cmd` pseudo-collection.
    pub fn command_db(&self) -> Option<&'a str> {
        self.namespace.strip_suffix(".$cmd")
    }

    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = Header::parse(bytes)?;
        let cut = || WireError::close("OP_QUERY is cut short");
        let after_flags = bytes.get(HEADER_LEN + 4..).ok_or_else(cut)?;
        let name_len = after_flags.iter().position(|b| *b == 0).ok_or_else(cut)?;
        let Ok(namespace) = std::str::from_utf8(&after_flags[..name_len]) else {
            return Err(WireError::close("OP_QUERY namespace is not valid UTF-8"));
        };
        // Numbers of documents to skip and to return follow; both are meaningless for commands.
        let documents = after_flags.get(name_len + 1 + 8..).ok_or_else(cut)?;
        let len = validate(documents, sheaf_bson::MAX_DEPTH)?;
        let mut body = RawDoc::new(&documents[..len]);
        // Old drivers wrap a command that has a read preference.
        for wrapper in ["$query", "query"] {
            let first = body.iter().next();
            if let Some(inner) = first.filter(|e| e.key() == wrapper).and_then(|e| e.value().as_doc()) {
                body = inner;
                break;
            }
        }
        Ok(OpQuery { header, namespace, body })
    }
}
