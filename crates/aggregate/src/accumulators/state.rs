//! What accumulators are made of.

use sheaf_bson::{Bump, OwnedValue, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Expr;

/// What gathers the values of one accumulator in one group.
pub trait State: Send {
    /// Takes in one value ([`Value::Missing`] where the document has none).
    fn add(&mut self, value: Value<'_>) -> Result<()>;

    /// The result; [`Value::Missing`] counts as null.
    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>>;

    /// Bytes held apart from the state itself; for accumulators that grow (`grows`).
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// A parsed argument.
pub(super) struct Parsed {
    /// Evaluated for each document; its value is added.
    pub input: Expr,
    /// Evaluated once for each group (`n` of `$firstN`).
    pub init: Option<Expr>,
    pub make: Make,
}

/// Makes the state of a group from the value of `init`.
pub(super) type Make = Box<dyn Fn(Value<'_>) -> Result<Box<dyn State>> + Send + Sync>;

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
pub(super) fn copy_in<'a>(value: &OwnedValue, arena: &'a Bump) -> Value<'a> {
    let holder = sheaf_bson::document_in(arena, |out| _ = out.append("", value.as_value()));
    holder.iter().next().map_or(Value::Missing, |element| element.value())
}
