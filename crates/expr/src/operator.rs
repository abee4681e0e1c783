//! The operator table: what an entry says, and how it is found.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;

use sheaf_bson::{Bump, DocBuf, Value};
use sheaf_errors::Result;

use crate::context::{ParseCx, Slot};
use crate::expr::{Call, Cx, Expr};
use crate::ops::{self, Compiled, Pattern, SortBy};

/// Evaluation of an operator whose arguments are all evaluated first.
pub(crate) type ValuesFn = for<'a, 'e> fn(&[Value<'a>], Cx<'a, 'e>) -> Result<Value<'a>>;
/// Evaluation of an operator that evaluates its arguments itself.
pub(crate) type LazyFn = for<'a, 'e> fn(&'a Call, Cx<'a, 'e>) -> Result<Value<'a>>;
/// Parsing of an operator with a grammar of its own.
pub(crate) type ParseFn = fn(&'static Operator, Value<'_>, &mut ParseCx) -> Result<Expr>;

/// Prints the argument of an operator with a grammar of its own, for explain.
pub(crate) type SerializeFn = for<'a> fn(&'a Call, &'a Bump) -> Value<'a>;

/// One operator.
#[derive(Debug)]
pub(crate) struct Operator {
    /// With its dollar.
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    /// Whether constant arguments make a constant.
    pub(crate) pure: bool,
    /// How explain prints the argument of an operator with a grammar of its own.
    pub(crate) serialize: Option<SerializeFn>,
}

/// How many positional arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arity {
    Exactly(usize),
    Between(usize, usize),
    Any,
}

/// How an operator takes its arguments.
pub(crate) enum Form {
    /// Positional, all evaluated before the call.
    Values(Arity, ValuesFn),
    /// Positional, evaluated by the function as it needs them.
    Lazy(Arity, LazyFn),
    /// An object with named fields; arguments arrive in the order of [`Named::fields`].
    Named(&'static Named, LazyFn),
    /// A grammar of its own.
    Custom(ParseFn, LazyFn),
}

impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Form::Values(..) => "Values",
            Form::Lazy(..) => "Lazy",
            Form::Named(..) => "Named",
            Form::Custom(..) => "Custom",
        })
    }
}

/// The fields of an operator's object argument.
#[derive(Debug)]
pub(crate) struct Named {
    /// Names in argument order, each with the code for its absence; 0 for an optional one.
    pub(crate) fields: &'static [(&'static str, i32)],
    /// Code for an argument that is no object.
    pub(crate) not_object: i32,
    /// Code for an unknown field.
    pub(crate) unknown: i32,
}

/// What an operator's parser prepared besides arguments.
#[derive(Debug)]
pub(crate) enum State {
    None,
    /// Variables that the operator sets, with their names, in the order of its grammar.
    Variables(Box<[(Box<str>, Slot)]>),
    /// The name of a piece of metadata.
    Metadata(&'static str),
    /// The state of a random generator.
    Random(AtomicU64),
    /// A compiled pattern; `None` if it is known to be null.
    Regex(Option<Pattern>),
    /// How many of the arguments are inputs, and `useLongestLength`.
    Zip {
        inputs: usize,
        longest: bool,
    },
    /// An order of elements, and the field that gave it, for explain.
    SortBy(SortBy, DocBuf),
    /// A function in JavaScript.
    Function(Box<Compiled>),
}

const fn entry(name: &'static str, form: Form) -> Operator {
    Operator { name, form, pure: true, serialize: None }
}

/// Exactly one argument.
pub(crate) const fn unary(name: &'static str, eval: ValuesFn) -> Operator {
    entry(name, Form::Values(Arity::Exactly(1), eval))
}

/// Exactly two arguments.
pub(crate) const fn binary(name: &'static str, eval: ValuesFn) -> Operator {
    entry(name, Form::Values(Arity::Exactly(2), eval))
}

/// Exactly `n` arguments.
pub(crate) const fn exactly(name: &'static str, n: usize, eval: ValuesFn) -> Operator {
    entry(name, Form::Values(Arity::Exactly(n), eval))
}

/// Between `min` and `max` arguments.
pub(crate) const fn between(name: &'static str, min: usize, max: usize, eval: ValuesFn) -> Operator {
    entry(name, Form::Values(Arity::Between(min, max), eval))
}

/// Any number of arguments.
pub(crate) const fn nary(name: &'static str, eval: ValuesFn) -> Operator {
    entry(name, Form::Values(Arity::Any, eval))
}

/// Positional arguments that the function evaluates itself.
pub(crate) const fn lazy(name: &'static str, arity: Arity, eval: LazyFn) -> Operator {
    entry(name, Form::Lazy(arity, eval))
}

/// One object with named fields.
pub(crate) const fn named(name: &'static str, fields: &'static Named, eval: LazyFn) -> Operator {
    entry(name, Form::Named(fields, eval))
}

/// A grammar of its own.
pub(crate) const fn custom(name: &'static str, parse: ParseFn, eval: LazyFn) -> Operator {
    entry(name, Form::Custom(parse, eval))
}

impl Operator {
    /// Says how explain prints the argument of a custom operator; without this it is printed as an array.
    pub(crate) const fn serialized(mut self, serialize: SerializeFn) -> Self {
        self.serialize = Some(serialize);
        self
    }

    /// Marks an operator whose value is not decided by its arguments.
    pub(crate) const fn impure(mut self) -> Self {
        self.pure = false;
        self
    }
}

static TABLE: LazyLock<HashMap<&'static str, &'static Operator, ahash::RandomState>> = LazyLock::new(|| {
    let mut table = HashMap::default();
    for op in ops::FAMILIES.iter().flat_map(|family| family.iter()) {
        let twice = table.insert(op.name, op);
        assert!(twice.is_none(), "operator {} has two entries", op.name);
    }
    table
});

/// The operator of this name.
pub(crate) fn find(name: &str) -> Option<&'static Operator> {
    TABLE.get(name).copied()
}

/// Whether `name` (with its dollar) is an expression operator.
pub fn is_known_operator(name: &str) -> bool {
    find(name).is_some()
}

/// The names of all expression operators, with their dollars.
pub fn operator_names() -> impl Iterator<Item = &'static str> {
    ops::FAMILIES.iter().flat_map(|family| family.iter()).map(|op| op.name)
}
