//! Writes of many documents or statements in one message.

use sheaf_bson::{DocWriter, RawDoc};

use super::{Client, Collection, Side};
use crate::error::Result;

/// A write command under construction, in the buffer that will be sent: its documents or statements are appended one
/// after another as a section of their own.
pub struct WriteBatch<'c> {
    client: &'c mut Client,
    count: i64,
    acknowledged: bool,
    /// Sent again when the primary was lost.
    again: bool,
}

/// What a write did. Without an acknowledgement, what was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Documents inserted, matched or deleted.
    pub n: i64,
    /// Documents that an update changed.
    pub modified: i64,
    /// Documents that an update inserted.
    pub upserted: i64,
}

impl<'c> WriteBatch<'c> {
    pub(super) fn begin(client: &'c mut Client, command: &str, field: &str, to: &Collection) -> Self {
        Self::begin_with(client, command, field, to, true)
    }

    fn begin_with(
        client: &'c mut Client,
        command: &str,
        field: &str,
        to: &Collection,
        ordered: bool,
    ) -> Self {
        let session = &mut client.session;
        // A transaction's write concern belongs to its commit.
        let transaction = session.in_transaction();
        let concern =
            if to.write_concern.is_default() { &client.to.write_concern } else { &to.write_concern };
        let acknowledged = transaction || concern.acknowledged();
        let again = client.to.retry && acknowledged && !transaction;
        let flags = if acknowledged { 0 } else { sheaf_wire::Flags::MORE_TO_COME };
        client.message.begin(flags, |body| {
            body.append(command, to.name.as_str()).append("ordered", ordered);
            if !transaction {
                concern.append(body);
            }
            if again {
                session.append_retryable(body);
            } else {
                session.append(body);
            }
            body.append("$db", to.db.as_str());
        });
        client.message.begin_sequence(field);
        WriteBatch { client, count: 0, acknowledged, again }
    }

    /// Appends a document or statement, written in place.
    pub fn push(&mut self, fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>)) -> &mut Self {
        fill(&mut DocWriter::new(self.client.message.bytes()));
        self.count += 1;
        self
    }

    /// Appends a document or statement that is bytes already.
    pub fn push_raw(&mut self, document: RawDoc<'_>) -> &mut Self {
        self.client.message.bytes().extend_from_slice(document.as_bytes());
        self.count += 1;
        self
    }

    /// Documents or statements so far.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Bytes of the message so far. A message has at most 48,000,000.
    pub fn size(&mut self) -> usize {
        self.client.message.bytes().len()
    }

    /// Sends it and waits for what the write concern asks for. An error of a single document is an error, too.
    pub fn send(self) -> Result<Written> {
        self.client.message.end_sequence();
        if !self.acknowledged {
            self.client.exchange(Side::Primary)?;
            return Ok(Written { n: self.count, ..Written::default() });
        }
        self.client.round_trip(Side::Primary, self.again)?;
        let reply = self.client.last_reply()?;
        let number = |key: &str| reply.get(key).and_then(|n| n.as_exact_i64()).unwrap_or(0);
        let upserted = reply.get("upserted").and_then(|list| list.as_array()).map_or(0, |list| list.count());
        Ok(Written { n: number("n"), modified: number("nModified"), upserted: upserted as i64 })
    }
}
