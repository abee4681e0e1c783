//! `$percentile` and `$median`.

use sheaf_bson::{Bump, Value};
use sheaf_errors::Result;

use super::Removable;
use crate::accumulators::percentile::{Wanted, order, result_of};

/// All numbers in the window, in order.
pub(crate) struct Percentiles {
    wanted: Wanted,
    sorted: Vec<f64>,
}

impl Percentiles {
    pub(crate) fn new(wanted: Wanted) -> Percentiles {
        Percentiles { wanted, sorted: Vec::new() }
    }
}

impl Removable for Percentiles {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        if let Some(n) = value.as_f64() {
            let place = self.sorted.partition_point(|known| order(*known, n).is_le());
            self.sorted.insert(place, n);
        }
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        if let Some(n) = value.as_f64() {
            let place = self.sorted.partition_point(|known| order(*known, n).is_lt());
            self.sorted.remove(place);
        }
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(result_of(&self.wanted, &self.sorted, arena))
    }

    fn memory_bytes(&self) -> usize {
        self.sorted.capacity() * size_of::<f64>()
    }
}
