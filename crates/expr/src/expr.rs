//! Parsed expressions and their evaluation.

use std::cmp::Ordering;

use sheaf_bson::{RawDoc, Value, array_in, document_in};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::Result;

use crate::constant::Constant;
use crate::context::Slot;
use crate::deps::Deps;
use crate::env::{Env, size_of_value};
use crate::operator::{Form, Operator, State};
use crate::ops::grown;
use crate::path::{FieldPath, descend, get_path};

/// A parsed expression.
#[derive(Debug)]
pub struct Expr(pub(crate) Node);

/// What a field path starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Base {
    /// The document, written `$a` or `$$CURRENT`.
    Current,
    /// The document, written `$$ROOT`.
    Root,
    /// A variable.
    Slot(Slot),
}

#[derive(Debug)]
pub(crate) enum Node {
    Constant(Constant),
    /// A path from the document or a variable; `name` is the variable's, for serialising.
    Path {
        base: Base,
        path: FieldPath,
        name: Option<Box<str>>,
    },
    /// `$$NOW` where the time was not known at parse time.
    Now,
    Object(Box<[(Box<str>, Expr)]>),
    Array(Box<[Expr]>),
    Call(Box<Call>),
    /// An optional argument that was not given.
    Absent,
}

/// An operator with its arguments.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) op: &'static Operator,
    pub(crate) args: Box<[Expr]>,
    /// What the operator's parser prepared besides arguments.
    pub(crate) state: State,
    /// How the operator compares strings, if not by their bytes.
    pub(crate) collator: Option<SharedCollator>,
}

/// The document and surroundings of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Cx<'a, 'e> {
    pub(crate) root: RawDoc<'a>,
    pub(crate) env: &'e Env<'a>,
    collator: Option<&'a SharedCollator>,
}

impl Cx<'_, '_> {
    /// [`Cx::compare`], counted.
    ///
    /// Errors: like [`Env::spend`].
    pub(crate) fn try_compare(&self, a: Value<'_>, b: Value<'_>) -> Result<Ordering> {
        sheaf_meter::tick_for(size_of_value(a).min(size_of_value(b)))?;
        Ok(self.compare(a, b))
    }

    /// Compares two values as the operator that is evaluated does.
    pub(crate) fn compare(&self, a: Value<'_>, b: Value<'_>) -> Ordering {
        compare_by(self.collator, a, b)
    }
}

/// The shape of an expression, for planners and optimisers.
#[derive(Debug)]
pub enum View<'e> {
    /// A value known since parsing.
    Constant(Value<'e>),
    /// A path into the document; empty for the document itself.
    Path(&'e FieldPath),
    /// A path into a variable; empty for the variable itself.
    Variable(Slot, &'e FieldPath),
    /// `$$NOW`, not known yet.
    Now,
    /// An object of expressions.
    Object(&'e [(Box<str>, Expr)]),
    /// An array of expressions.
    Array(&'e [Expr]),
    /// An operator and its arguments, in the order of its parameters.
    Operator(&'static str, &'e [Expr]),
}

impl Expr {
    /// The expression that always has this value.
    pub fn literal(value: Value<'_>) -> Expr {
        Expr(Node::Constant(Constant::new(value)))
    }

    /// The value for a document.
    ///
    /// ```
    /// use sheaf_bson::{Bump, Value, doc};
    /// use sheaf_expr::{Env, Expr, ParseCx};
    ///
    /// let mut cx = ParseCx::new();
    /// let text = doc! { "$multiply": ["$grams", { "$size": "$tags" }] };
    /// let expression = Expr::parse(Value::Document(text.as_raw()), &mut cx)?;
    /// cx.finish()?;
    /// let plant = doc! { "grams": 38, "tags": ["cereal", "bread"] };
    /// let arena = Bump::new();
    /// assert!(matches!(expression.eval(plant.as_raw(), &Env::new(&arena))?, Value::Int32(76)));
    /// # Ok::<(), sheaf_errors::Error>(())
    /// ```
    pub fn eval<'a>(&'a self, root: RawDoc<'a>, env: &Env<'a>) -> Result<Value<'a>> {
        self.value(Cx { root, env, collator: None })
    }

    /// The value, if it is known without a document.
    pub fn constant(&self) -> Option<Value<'_>> {
        match &self.0 {
            Node::Constant(constant) => Some(constant.value()),
            _ => None,
        }
    }

    /// The shape, for planners.
    pub fn view(&self) -> View<'_> {
        match &self.0 {
            Node::Constant(constant) => View::Constant(constant.value()),
            Node::Path { base: Base::Slot(slot), path, .. } => View::Variable(*slot, path),
            Node::Path { path, .. } => View::Path(path),
            Node::Now => View::Now,
            Node::Object(fields) => View::Object(fields),
            Node::Array(items) => View::Array(items),
            Node::Call(call) => View::Operator(call.op.name, &call.args),
            Node::Absent => View::Constant(Value::Missing),
        }
    }

    /// The path into the document that this expression is (`"$a.b"`), if it is no more than that.
    pub fn as_path(&self) -> Option<&FieldPath> {
        match &self.0 {
            Node::Path { base: Base::Current | Base::Root, path, .. } if !path.parts().is_empty() => {
                Some(path)
            }
            _ => None,
        }
    }

    /// Adds what this expression reads to `deps`.
    pub fn dependencies(&self, deps: &mut Deps) {
        match &self.0 {
            Node::Path { base: Base::Slot(_), .. } | Node::Constant(_) | Node::Now | Node::Absent => {}
            Node::Path { path, .. } if path.parts().is_empty() => deps.whole_document = true,
            Node::Path { path, .. } => _ = deps.paths.insert(path.dotted()),
            Node::Object(fields) => fields.iter().for_each(|(_, expr)| expr.dependencies(deps)),
            Node::Array(items) => items.iter().for_each(|expr| expr.dependencies(deps)),
            Node::Call(call) => {
                call.args.iter().for_each(|expr| expr.dependencies(deps));
                match &call.state {
                    State::Metadata(name) => _ = deps.metadata.insert(name),
                    State::Random(_) => deps.random = true,
                    _ => {}
                }
            }
        }
    }

    /// The constant null.
    pub(crate) fn null() -> Expr {
        Expr(Node::Constant(Constant::Scalar(Value::Null)))
    }

    /// An optional argument that was not given.
    pub(crate) fn absent() -> Expr {
        Expr(Node::Absent)
    }

    /// A call that compares strings by this collator.
    pub(crate) fn collated(mut self, collator: Option<&SharedCollator>) -> Expr {
        if let (Node::Call(call), Some(_)) = (&mut self.0, collator) {
            call.collator = collator.cloned();
        }
        self
    }

    /// A call that is not evaluated yet.
    pub(crate) fn unfolded(op: &'static Operator, args: Vec<Expr>, state: State) -> Expr {
        Expr(Node::Call(Box::new(Call { op, args: args.into(), state, collator: None })))
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.0, Node::Absent)
    }

    pub(crate) fn value<'a>(&'a self, cx: Cx<'a, '_>) -> Result<Value<'a>> {
        match &self.0 {
            Node::Constant(constant) => Ok(constant.value()),
            Node::Path { base: Base::Slot(slot), path, .. } => {
                let value = cx.env.get(*slot);
                if !path.parts().is_empty() {
                    cx.env.spend_for(size_of_value(value))?;
                }
                Ok(descend(value, path.parts(), cx.env.arena()))
            }
            Node::Path { path, .. } => {
                cx.env.spend_for(cx.root.len())?;
                Ok(get_path(cx.root, path.parts(), cx.env.arena()))
            }
            Node::Now => Ok(Value::DateTime(cx.env.now())),
            Node::Object(fields) => object(fields, cx),
            Node::Array(items) => array(items, cx),
            Node::Call(call) => {
                cx.env.spend(1)?;
                call.value(cx)
            }
            Node::Absent => Ok(Value::Missing),
        }
    }
}

impl Call {
    /// An argument's value.
    pub(crate) fn arg<'a>(&'a self, at: usize, cx: Cx<'a, '_>) -> Result<Value<'a>> {
        self.args[at].value(cx)
    }

    /// Whether an optional argument was given.
    pub(crate) fn has(&self, at: usize) -> bool {
        !self.args[at].is_absent()
    }

    /// The variables that the operator sets.
    pub(crate) fn slots(&self) -> &[(Box<str>, Slot)] {
        match &self.state {
            State::Variables(variables) => variables,
            _ => &[],
        }
    }

    /// The slot of the variable at this place.
    pub(crate) fn slot(&self, at: usize) -> Slot {
        self.slots()[at].1
    }

    fn value<'a>(&'a self, cx: Cx<'a, '_>) -> Result<Value<'a>> {
        let cx = Cx { collator: self.collator.as_ref(), ..cx };
        match &self.op.form {
            Form::Values(_, eval) => match &*self.args {
                [a] => {
                    let a = a.value(cx)?;
                    cx.env.spend_for(size_of_value(a))?;
                    eval(&[a], cx)
                }
                [a, b] => {
                    let (a, b) = (a.value(cx)?, b.value(cx)?);
                    cx.env.spend_for(size_of_value(a) + size_of_value(b))?;
                    eval(&[a, b], cx)
                }
                args => {
                    let mut values = bumpalo::collections::Vec::with_capacity_in(args.len(), cx.env.arena());
                    for arg in args {
                        let value = arg.value(cx)?;
                        cx.env.spend_for(size_of_value(value))?;
                        values.push(value);
                    }
                    eval(&values, cx)
                }
            },
            Form::Lazy(_, eval) | Form::Named(_, eval) | Form::Custom(_, eval) => eval(self, cx),
        }
    }
}

fn object<'a>(fields: &'a [(Box<str>, Expr)], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut failed = None;
    let doc = document_in(cx.env.arena(), |out| {
        for (name, expr) in fields {
            match expr.value(cx) {
                Ok(value) => {
                    out.append(name, value);
                    failed = grown(cx, out.size()).err();
                }
                Err(error) => {
                    failed = Some(error);
                    return;
                }
            }
            if failed.is_some() {
                return;
            }
        }
    });
    failed.map_or(Ok(()), Err)?;
    crate::ops::check_size(doc.len())?;
    check_literal(fields.iter().map(|(_, expr)| expr), Value::Document(doc))
}

fn array<'a>(items: &'a [Expr], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut failed = None;
    let array = array_in(cx.env.arena(), |out| {
        for expr in items {
            match expr.value(cx) {
                Ok(value) => {
                    out.push(value);
                    failed = grown(cx, out.size()).err();
                }
                Err(error) => {
                    failed = Some(error);
                    return;
                }
            }
            if failed.is_some() {
                return;
            }
        }
    });
    failed.map_or(Ok(()), Err)?;
    crate::ops::check_size(array.len())?;
    check_literal(items.iter(), Value::Array(array))
}

/// Levels of literals in literals from which on their value is checked. What a message can nest with fewer at a time no
/// stack minds.
const CHECKED_LEVELS: usize = 4;

/// What is smaller has not too many levels.
const CHECKED_BYTES: usize = 1 << 10;

/// Literals are what values become deep by.
fn check_literal<'a, 'e>(parts: impl Iterator<Item = &'e Expr>, value: Value<'a>) -> Result<Value<'a>> {
    fn is_deep(expr: &Expr, levels: usize) -> bool {
        levels == 0
            || match &expr.0 {
                Node::Object(fields) => fields.iter().any(|(_, inner)| is_deep(inner, levels - 1)),
                Node::Array(items) => items.iter().any(|inner| is_deep(inner, levels - 1)),
                _ => false,
            }
    }
    let (Value::Document(made) | Value::Array(made)) = value else { return Ok(value) };
    if made.len() >= CHECKED_BYTES && { parts }.any(|part| is_deep(part, CHECKED_LEVELS - 1)) {
        crate::ops::check_nesting(value)?;
    }
    Ok(value)
}
