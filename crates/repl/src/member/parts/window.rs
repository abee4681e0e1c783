//! What is on its way to one member.

use std::collections::VecDeque;

/// What is on its way to one member.
#[derive(Default)]
pub struct Window {
    /// The last index of each message with entries, and their bytes.
    sent: VecDeque<(u64, usize)>,
    bytes: usize,
}

impl Window {
    /// A message goes out whose last entry is this one.
    pub fn add(&mut self, last: u64, bytes: usize) {
        self.sent.push_back((last, bytes));
        self.bytes += bytes;
    }

    /// Bytes of what is under way.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Panics where the count is not that of what is under way.
    pub fn check(&self) {
        let bytes: usize = self.sent.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(self.bytes, bytes, "{} messages are under way", self.sent.len());
    }

    /// The member has everything up to here.
    pub fn arrived(&mut self, index: u64) {
        while let Some((_, bytes)) = self.sent.front().filter(|(last, _)| *last <= index) {
            assert!(self.bytes >= *bytes, "{bytes} of {} bytes have arrived", self.bytes);
            self.bytes -= bytes;
            self.sent.pop_front();
        }
    }
}
