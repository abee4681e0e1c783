//! What a sorter puts aside.

use sheaf_errors::Result;

/// Where a sorter puts what does not fit in memory: runs, each sorted.
pub trait Runs {
    /// Keeps one run; the items come in order.
    fn write(&mut self, items: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> Result<()>;
    /// Gives the runs back, in the order in which they were written; each time anew.
    fn open(&mut self) -> Result<Vec<Run>>;
}

/// One run being read: keys and payloads in order.
pub trait ReadRun {
    /// Puts the next item in the place of what these hold; false at the end.
    fn read(&mut self, key: &mut Vec<u8>, payload: &mut Vec<u8>) -> Result<bool>;
}

/// One run being read.
pub type Run = Box<dyn ReadRun + Send>;
