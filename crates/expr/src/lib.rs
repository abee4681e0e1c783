//! The aggregation expression language: `{$add: ["$price", 1]}` and kin.
//!
//! An expression is parsed once ([`Expr::parse`], in a [`ParseCx`] that knows the variables in scope) and
//! evaluated per document ([`Expr::eval`], in an [`Env`] that holds the arena for computed values and the
//! values of the variables). Constants are folded while parsing; a folding that fails is kept in the context
//! until [`ParseCx::finish`], because MongoDB reports parse errors of the whole pipeline before those.
//!
//! Operators live in one table ([`operator`]), one file per family under `ops`. To add one: write its
//! evaluation function in the family's file and its entry in the `OPERATORS` list at the top of that file.

#![forbid(unsafe_code)]

mod constant;
mod context;
mod date_text;
mod deps;
mod env;
mod expr;
mod operator;
mod ops;
mod parse;
mod path;
mod serialize;
mod time;

pub use context::{
    ClusterClock, ParseCx, Scope, Slot, StoredFunctions, SystemVariables, validate_variable_name,
};
pub use deps::Deps;
pub use env::{Env, size_of_value};
pub use expr::{Expr, View};
pub use operator::{is_known_operator, operator_names};
pub use ops::{Unit, check_nesting, show};
pub use path::{FieldPath, get_path};
