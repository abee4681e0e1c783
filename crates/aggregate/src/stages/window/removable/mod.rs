//! What is made of the values in a window: values come in at its end and leave at its beginning, in the order in which they came.

mod best;
mod calculus;
mod numeric;
mod percentile;
mod sets;

use sheaf_bson::{Bump, Value};
use sheaf_errors::Result;

pub(super) use best::{Best, FirstLast, Scaler, Top};
pub(super) use calculus::{ExpMovingAvg, Integral, Locf, difference};
pub(super) use numeric::{Covariance, Deviation, Mean, Total, narrowest};
pub(super) use percentile::Percentiles;
pub(super) use sets::{List, Set};

/// A function over a window that values can leave.
pub(super) trait Removable: Send {
    /// Takes in the window's next value. `sort` is the document's value of the field that is sorted by.
    fn add(&mut self, value: Value<'_>, sort: Value<'_>) -> Result<()>;

    /// Lets go of the window's first value, which was taken in as this.
    fn remove(&mut self, value: Value<'_>) -> Result<()>;

    /// The result for the document that has the value `current`.
    fn result<'a>(&mut self, current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>>;

    /// Whether the result depends on the document's own value.
    fn needs_current(&self) -> bool {
        false
    }

    /// Whether it reads the documents' values of the field that is sorted by.
    fn needs_sort(&self) -> bool {
        false
    }

    /// Bytes held apart from the state itself.
    fn memory_bytes(&self) -> usize {
        0
    }
}
