//! `$push`, `$addToSet`, `$concatArrays`, `$setUnion`, `$mergeObjects`.

use std::collections::HashSet;

use ahash::RandomState;
use hashbrown::HashTable;
use sheaf_bson::{Bump, Ordered, OwnedValue, Value, array_in};
use sheaf_collation::{SharedCollator, key_of};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx};

use super::state::{Parsed, State, check_state_memory, no_partial, partial_elements};

/// What a field of a merged document costs beside its name and value.
const FIELD_COST: usize = size_of::<(Box<str>, OwnedValue)>() + 2 * size_of::<usize>();

/// `$push`.
#[derive(Default)]
pub(super) struct Push {
    values: Vec<OwnedValue>,
    held: usize,
}

impl State for Push {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        if value.is_missing() {
            return Ok(());
        }
        let value = OwnedValue::from(value);
        self.held += value.memory_bytes();
        self.values.push(value);
        check_state_memory("$push", self.held)
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(Value::Array(array_in(arena, |out| self.values.iter().for_each(|value| value.push_to(out)))))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.result(arena)
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        partial_elements("$push", partial)?.values().try_for_each(|value| self.add(value))
    }

    fn memory_bytes(&self) -> usize {
        self.held
    }
}

/// `$addToSet`.
#[derive(Default)]
pub(super) struct AddToSet {
    /// Looked up by values that are only borrowed: most of what comes is there already, and is not copied.
    values: HashTable<OwnedValue>,
    hasher: ahash::RandomState,
    held: usize,
    /// With a collator, what the values are compared by.
    keys: HashSet<OwnedValue, ahash::RandomState>,
    collator: Option<SharedCollator>,
}

pub(super) fn parse_add_to_set(_: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    let collator = cx.collator().cloned();
    Ok(Parsed {
        input: Expr::parse(argument, cx)?,
        init: None,
        make: Box::new(move |_| Ok(Box::new(AddToSet { collator: collator.clone(), ..AddToSet::default() }))),
    })
}

impl State for AddToSet {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        if value.is_missing() {
            return Ok(());
        }
        if self.collator.is_some() {
            let key = key_of(self.collator.as_ref(), value);
            let bytes = key.memory_bytes();
            if !self.keys.insert(key) {
                return Ok(());
            }
            self.held += bytes;
        }
        let hash = self.hasher.hash_one(Ordered(value));
        if self.values.find(hash, |known| known.equals(value)).is_some() {
            return Ok(());
        }
        let value = OwnedValue::from(value);
        self.held += value.memory_bytes();
        self.values.insert_unique(hash, value, |known| self.hasher.hash_one(known));
        check_state_memory("$addToSet", self.held)
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(Value::Array(array_in(arena, |out| self.values.iter().for_each(|value| value.push_to(out)))))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.result(arena)
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        partial_elements("$addToSet", partial)?.values().try_for_each(|value| self.add(value))
    }

    fn memory_bytes(&self) -> usize {
        self.held
    }
}

/// The elements of an array that `$concatArrays` or `$setUnion` takes in; none of a missing one.
pub(crate) fn array_elements<'a>(name: &str, value: Value<'a>) -> Result<impl Iterator<Item = Value<'a>>> {
    let array = match value {
        Value::Missing => sheaf_bson::RawDoc::EMPTY,
        Value::Array(array) => array,
        other => bail!(
            Code::TYPE_MISMATCH,
            "{name} requires array inputs, but input {} is of type {}",
            crate::print::value(other),
            other.type_name()
        ),
    };
    Ok(array.values())
}

/// `$concatArrays`.
#[derive(Default)]
pub(super) struct ConcatArrays(Push);

impl State for ConcatArrays {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        array_elements("$concatArrays", value)?.try_for_each(|element| self.0.add(element))
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.0.result(arena)
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.0.partial(arena)
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        self.0.merge(partial)
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

/// `$setUnion`.
pub(super) struct SetUnion(AddToSet);

pub(super) fn parse_set_union(_: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    let collator = cx.collator().cloned();
    let make = move || SetUnion(AddToSet { collator: collator.clone(), ..AddToSet::default() });
    Ok(Parsed {
        input: Expr::parse(argument, cx)?,
        init: None,
        make: Box::new(move |_| Ok(Box::new(make()))),
    })
}

impl State for SetUnion {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        array_elements("$setUnion", value)?.try_for_each(|element| self.0.add(element))
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.0.result(arena)
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.0.partial(arena)
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        self.0.merge(partial)
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

/// `$mergeObjects`: fields in the order in which their names came first, each with the value that came last.
#[derive(Default)]
pub(super) struct MergeObjects {
    fields: Vec<(Box<str>, OwnedValue)>,
    /// Where a name stands in `fields`.
    places: HashTable<usize>,
    hasher: RandomState,
    held: usize,
}

impl MergeObjects {
    fn set(&mut self, name: &str, value: Value<'_>) {
        let value = OwnedValue::from(value);
        self.held += value.memory_bytes();
        let hash = self.hasher.hash_one(name);
        let fields = &self.fields;
        match self.places.find(hash, |&at| &*fields[at].0 == name) {
            Some(&at) => {
                self.held -= self.fields[at].1.memory_bytes();
                self.fields[at].1 = value;
            }
            None => {
                self.held += name.len() + FIELD_COST;
                self.fields.push((name.into(), value));
                let (fields, hasher) = (&self.fields, &self.hasher);
                self.places.insert_unique(hash, fields.len() - 1, |&at| hasher.hash_one(&*fields[at].0));
            }
        }
    }
}

impl State for MergeObjects {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        let new = match value {
            Value::Document(new) => new,
            _ if value.is_nullish() => return Ok(()),
            _ => bail!(
                40400,
                "$mergeObjects requires object inputs, but input {} is of type {}",
                crate::print::value(value),
                value.type_name()
            ),
        };
        sheaf_meter::tick_for(new.len())?;
        new.iter().for_each(|element| self.set(element.key(), element.value()));
        Ok(())
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(Value::Document(sheaf_bson::document_in(arena, |out| {
            self.fields.iter().for_each(|(name, value)| _ = out.append(name, value));
        })))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.result(arena)
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        match partial {
            Value::Missing | Value::Document(_) => self.add(partial),
            other => no_partial("$mergeObjects", other),
        }
    }

    fn memory_bytes(&self) -> usize {
        self.held
    }
}
