//! `$push`, `$concatArrays`, `$addToSet` and `$setUnion`, from which values can be taken back.

use std::collections::{HashMap, VecDeque};

use sheaf_bson::{Bump, OwnedValue, Value, array_in};
use sheaf_collation::{SharedCollator, key_of};
use sheaf_errors::Result;
use smallvec::SmallVec;

use super::Removable;
use crate::accumulators::array_elements;

/// What a document's value adds: itself, or the elements of it.
fn parts<'a>(flat: Option<&str>, value: Value<'a>) -> Result<SmallVec<[Value<'a>; 4]>> {
    match flat {
        Some(name) => Ok(array_elements(name, value)?.collect()),
        None if value.is_missing() => Ok(SmallVec::new()),
        None => Ok(SmallVec::from_slice(&[value])),
    }
}

/// `$push`, and `$concatArrays`, which adds the elements of arrays.
pub(crate) struct List {
    /// The name of the function that takes arrays apart.
    flat: Option<&'static str>,
    values: VecDeque<OwnedValue>,
    bytes: usize,
}

impl List {
    pub(crate) fn new(flat: Option<&'static str>) -> List {
        List { flat, values: VecDeque::new(), bytes: 0 }
    }
}

impl Removable for List {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        for part in parts(self.flat, value)? {
            let part = OwnedValue::from(part);
            self.bytes += part.memory_bytes();
            self.values.push_back(part);
        }
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        for _ in parts(self.flat, value)? {
            let gone = self.values.pop_front();
            self.bytes -= gone.map_or(0, |gone| gone.memory_bytes());
        }
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>> {
        sheaf_meter::tick_for(self.bytes)?;
        Ok(Value::Array(array_in(arena, |out| self.values.iter().for_each(|value| _ = out.push(value)))))
    }

    fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

/// `$addToSet`, and `$setUnion`, which adds the elements of arrays.
pub(crate) struct Set {
    flat: Option<&'static str>,
    /// How many of each value are in the window.
    /// By what they compare as; with the first of them, if that is another.
    counts: HashMap<OwnedValue, (u64, Option<OwnedValue>), ahash::RandomState>,
    bytes: usize,
    collator: Option<SharedCollator>,
}

impl Set {
    pub(crate) fn new(flat: Option<&'static str>, collator: Option<SharedCollator>) -> Set {
        Set { flat, counts: HashMap::default(), bytes: 0, collator }
    }
}

impl Removable for Set {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        for part in parts(self.flat, value)? {
            let key = key_of(self.collator.as_ref(), part);
            let bytes = key.memory_bytes() + size_of::<u64>();
            let (count, first) = self.counts.entry(key).or_default();
            *count += 1;
            if *count == 1 {
                *first = self.collator.is_some().then(|| OwnedValue::from(part));
                self.bytes += bytes + first.as_ref().map_or(0, OwnedValue::memory_bytes);
            }
        }
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        for part in parts(self.flat, value)? {
            let key = key_of(self.collator.as_ref(), part);
            let (count, _) = self.counts.get_mut(&key).expect("what leaves has come");
            *count -= 1;
            if *count == 0 {
                let (gone, (_, first)) = self.counts.remove_entry(&key).expect("it was there just now");
                let bytes = gone.memory_bytes() + first.as_ref().map_or(0, OwnedValue::memory_bytes);
                self.bytes -= bytes + size_of::<u64>();
            }
        }
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>> {
        sheaf_meter::tick_for(self.bytes)?;
        let values = self.counts.iter().map(|(key, (_, first))| first.as_ref().unwrap_or(key));
        Ok(Value::Array(array_in(arena, |out| values.for_each(|value| _ = out.push(value)))))
    }

    fn memory_bytes(&self) -> usize {
        self.bytes
    }
}
