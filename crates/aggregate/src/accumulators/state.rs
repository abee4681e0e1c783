//! What accumulators are made of.

use sheaf_bson::{Bump, OwnedValue, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Expr;

/// What gathers the values of one accumulator in one group.
pub trait State: Send {
    /// Takes in one value ([`Value::Missing`] where the document has none).
    fn add(&mut self, value: Value<'_>) -> Result<()>;

    /// The result; [`Value::Missing`] counts as null.
    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>>;

    /// All that was gathered, as a value from which [`State::merge`] goes on; [`Value::Missing`] if nothing has come.
    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>>;

    /// Takes in what another state of this accumulator has gathered of the documents behind its own.
    ///
    /// Errors: `TypeMismatch` for what is no [partial](State::partial) result of this accumulator.
    fn merge(&mut self, partial: Value<'_>) -> Result<()>;

    /// Bytes held apart from the state itself; for accumulators that grow (`grows`).
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// A state whose values are partial results.
pub(super) struct Merging(pub Box<dyn State>);

impl State for Merging {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        self.0.merge(value)
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

/// A parsed argument.
pub(crate) struct Parsed {
    /// Evaluated for each document; its value is added.
    pub input: Expr,
    /// Evaluated once for each group (`n` of `$firstN`).
    pub init: Option<Expr>,
    pub make: Make,
}

/// Makes the state of a group from the value of `init`.
pub(crate) type Make = Box<dyn Fn(Value<'_>) -> Result<Box<dyn State>> + Send + Sync>;

/// The error for a value that is no partial result.
pub(super) fn no_partial<T>(name: &str, value: Value<'_>) -> Result<T> {
    bail!(
        Code::TYPE_MISMATCH,
        "a partial result of {name} cannot be of type {}: {}",
        value.type_name(),
        crate::print::value(value)
    )
}

/// The elements of a partial result that is an array; none of a missing one.
pub(super) fn partial_elements<'a>(name: &str, partial: Value<'a>) -> Result<RawDoc<'a>> {
    match partial {
        Value::Missing => Ok(RawDoc::EMPTY),
        Value::Array(elements) => Ok(elements),
        other => no_partial(name, other),
    }
}

/// Refuses to hold more than 100 MiB in one state that cannot go to disk.
pub(super) fn check_state_memory(name: &str, held: usize) -> Result<()> {
    const LIMIT: usize = 100 << 20;
    if held > LIMIT {
        bail!(
            Code::EXCEEDED_MEMORY_LIMIT,
            "{name} used too much memory and cannot spill to disk. Used: {held} bytes. Memory limit: {LIMIT} bytes"
        );
    }
    Ok(())
}

/// A copy of an owned value in an arena.
pub(crate) fn copy_in<'a>(value: &OwnedValue, arena: &'a Bump) -> Value<'a> {
    let holder = sheaf_bson::document_in(arena, |out| _ = out.append("", value.as_value()));
    holder.iter().next().map_or(Value::Missing, |element| element.value())
}
