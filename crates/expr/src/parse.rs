//! From BSON to expressions.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_meter::ALLOCATION;

use crate::constant::{Constant, size_of_constant};
use crate::context::{Binding, ParseCx, validate_variable_read};
use crate::env::size_of_value;
use crate::expr::{Base, Call, Expr, Node};
use crate::operator::{self, Arity, Form, Named, Operator, State};
use crate::ops::{MAX_STRING, check_length, show};
use crate::path::{FieldPath, validate_field_name};

/// What an expression takes: in a list while it is parsed, and in one of the right length afterwards.
const NODE_BYTES: usize = 2 * size_of::<Expr>();

/// What a field of an object takes besides its expression and the letters of its name: it is in a set while the object is
/// parsed.
const FIELD_BYTES: usize = 2 * size_of::<Box<str>>() + 2 * size_of::<&str>() + ALLOCATION;

/// Nesting beyond this is refused; documents from clients cannot be deeper.
const MAX_EXPRESSION_DEPTH: usize = 200;

impl Expr {
    /// Parses an operand: a string that starts with `$` is a path or a variable, a document whose first
    /// field starts with `$` is an operator, other documents and arrays hold expressions, everything else
    /// is itself.
    pub fn parse(value: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
        sheaf_meter::tick(1)?;
        sheaf_meter::grow(NODE_BYTES)?;
        match value {
            Value::String(text) if text.starts_with('$') => parse_path(text, cx),
            Value::Document(doc) => Self::parse_object(doc, cx),
            Value::Array(array) => nested(cx, |cx| parse_array(array, cx)),
            _ => {
                check_literal(value)?;
                sheaf_meter::grow(size_of_constant(value))?;
                Ok(Expr::literal(value))
            }
        }
    }

    /// Parses a document: an operator (`{$add: [1, 2]}`) or an object of expressions (`{a: "$b"}`).
    pub fn parse_object(doc: RawDoc<'_>, cx: &mut ParseCx) -> Result<Expr> {
        nested(cx, |cx| match doc.iter().next() {
            Some(first) if first.key_bytes().starts_with(b"$") => parse_operator_document(doc, cx),
            _ => parse_fields(doc, cx),
        })
    }

    /// Parses an operator and its argument: `parse_operator("$add", [1, 2])`.
    pub fn parse_operator(name: &str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
        sheaf_meter::grow(size_of::<Call>() + ALLOCATION)?;
        let Some(op) = operator::find(name) else {
            bail!(Code::INVALID_PIPELINE_OPERATOR, "Unrecognized expression '{name}'");
        };
        match &op.form {
            Form::Values(arity, _) | Form::Lazy(arity, _) => {
                let args = parse_arguments(op.name, *arity, argument, cx)?;
                Ok(Expr::call(op, args, State::None, cx))
            }
            Form::Named(fields, _) => {
                let args = parse_named(op.name, fields, argument, cx)?;
                Ok(Expr::call(op, args, State::None, cx))
            }
            Form::Custom(parse, _) => parse(op, argument, cx),
        }
    }

    /// A call, or its value if that is known already.
    pub(crate) fn call(op: &'static Operator, args: Vec<Expr>, state: State, cx: &mut ParseCx) -> Expr {
        let fixed = op.pure && args.iter().all(|arg| arg.constant().is_some() || arg.is_absent());
        let call = Expr::unfolded(op, args, state).collated(cx.collator());
        if !fixed {
            return call;
        }
        let arena = bumpalo::Bump::new();
        let folded = call.eval(RawDoc::EMPTY, &crate::Env::new(&arena)).map(Expr::literal);
        match folded {
            // What is much larger than what it is made from is made when it is needed.
            Ok(literal) if literal.constant().is_some_and(|value| size_of_value(value) > FOLDED_BYTES) => {
                call
            }
            Ok(literal) => literal,
            Err(error) => {
                cx.fold_failed(error);
                call
            }
        }
    }
}

/// Longest value that a call of constants is replaced with.
const FOLDED_BYTES: usize = 1 << 20;

/// Refuses a constant that holds a string, or bytes, too long for a value of an expression.
pub(crate) fn check_literal(value: Value<'_>) -> Result<()> {
    let len = match value {
        Value::String(text) | Value::Symbol(text) | Value::JavaScript(text) => text.len(),
        Value::Binary(binary) => binary.bytes.len(),
        Value::Document(doc) | Value::Array(doc) if doc.len() > MAX_STRING => {
            return doc.values().try_for_each(check_literal);
        }
        _ => return Ok(()),
    };
    check_length(len)
}

/// Guards the stack against deep nesting.
fn nested<T>(cx: &mut ParseCx, parse: impl FnOnce(&mut ParseCx) -> Result<T>) -> Result<T> {
    if cx.depth >= MAX_EXPRESSION_DEPTH {
        bail!(Code::OVERFLOW, "Expression exceeds maximum nested depth of {MAX_EXPRESSION_DEPTH}");
    }
    cx.depth += 1;
    let parsed = parse(cx);
    cx.depth -= 1;
    parsed
}

fn parse_operator_document(doc: RawDoc<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let mut elements = doc.iter();
    match (elements.next(), elements.next()) {
        (Some(only), None) => Expr::parse_operator(only.key(), only.value(), cx),
        _ => bail!(
            15983,
            "an object representing an expression must have exactly one field: {}",
            show(Value::Document(doc))
        ),
    }
}

fn parse_fields(doc: RawDoc<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let mut fields: Vec<(Box<str>, Expr)> = Vec::new();
    let mut names = std::collections::HashSet::<&str, ahash::RandomState>::default();
    for element in doc.iter() {
        let name = element.key();
        validate_field_name(name)?;
        sheaf_meter::tick(1)?;
        sheaf_meter::grow(FIELD_BYTES + name.len())?;
        if !names.insert(name) {
            bail!(16406, "duplicate field name specified in object literal: {}", show(Value::Document(doc)));
        }
        fields.push((name.into(), Expr::parse(element.value(), cx)?));
    }
    let fixed = fields.iter().all(|(_, field)| field.constant().is_some());
    let expr = Expr(Node::Object(fields.into()));
    Ok(if fixed { fold(expr) } else { expr })
}

fn parse_array(array: RawDoc<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let items = array.values().map(|item| Expr::parse(item, cx)).collect::<Result<Vec<_>>>()?;
    let fixed = items.iter().all(|item| item.constant().is_some());
    let expr = Expr(Node::Array(items.into()));
    Ok(if fixed { fold(expr) } else { expr })
}

/// The constant of an object or array of constants. Where there is no memory for it now, it is left to whoever evaluates it, if anybody
/// does: that one fails.
fn fold(expr: Expr) -> Expr {
    let arena = bumpalo::Bump::new();
    let constant = expr.eval(RawDoc::EMPTY, &crate::Env::new(&arena)).map(Expr::literal);
    constant.unwrap_or(expr)
}

/// Parses `$a.b` or `$$name.a.b`.
fn parse_path(text: &str, cx: &ParseCx) -> Result<Expr> {
    sheaf_meter::tick(1 + cx.names_in_scope() as u32 / 8)?;
    let parts = 1 + text.bytes().filter(|b| *b == b'.').count();
    sheaf_meter::grow(text.len() + parts * (size_of::<Box<str>>() + ALLOCATION))?;
    let Some(variable) = text.strip_prefix("$$") else {
        let path = &text[1..];
        if path.is_empty() {
            bail!(16872, "'$' by itself is not a valid FieldPath");
        }
        // `$a` means `$$CURRENT.a`, so that an ending dot is found before empty names.
        let path = FieldPath::parse(path)?;
        return Ok(match cx.lookup("CURRENT") {
            None => Expr(Node::Path { base: Base::Current, path, name: None }),
            Some(binding) => bound("CURRENT", binding, path)?,
        });
    };
    let (name, rest) = match variable.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (variable, None),
    };
    validate_variable_read(name)?;
    let path = match rest {
        Some("") => bail!(40353, "FieldPath must not end with a '.'."),
        Some(rest) => FieldPath::parse(rest)?,
        None => FieldPath::empty(),
    };
    match (cx.lookup(name), name) {
        (Some(binding), _) => bound(name, binding, path),
        (None, _) => system_variable(name, path, cx),
    }
}

fn bound(name: &str, binding: &Binding, path: FieldPath) -> Result<Expr> {
    Ok(match binding {
        Binding::Slot(slot) => Expr(Node::Path { base: Base::Slot(*slot), path, name: Some(name.into()) }),
        // A large constant that is named often is there once.
        Binding::Constant(value) if path.parts().is_empty() => Expr(Node::Constant(value.clone())),
        Binding::Constant(value) => constant_path(value.value(), &path)?,
    })
}

fn constant_path(value: Value<'_>, path: &FieldPath) -> Result<Expr> {
    let arena = bumpalo::Bump::new();
    let found = crate::path::descend(value, path.parts(), &arena);
    sheaf_meter::tick_for(size_of_value(found))?;
    Ok(Expr(Node::Constant(Constant::counted(found)?)))
}

fn system_variable(name: &str, path: FieldPath, cx: &ParseCx) -> Result<Expr> {
    Ok(match name {
        "ROOT" => Expr(Node::Path { base: Base::Root, path, name: None }),
        "CURRENT" => Expr(Node::Path { base: Base::Current, path, name: None }),
        "REMOVE" => Expr(Node::Constant(Constant::MISSING)),
        "NOW" if !cx.has_now => bail!(51144, "Builtin variable '$$NOW' is not available"),
        "NOW" if !path.parts().is_empty() => Expr(Node::Constant(Constant::MISSING)),
        "NOW" => match cx.now {
            Some(now) => Expr::literal(Value::DateTime(now)),
            None => Expr(Node::Now),
        },
        "CLUSTER_TIME" => match cx.cluster_time() {
            Some(time) => constant_path(Value::Timestamp(time), &path)?,
            None => bail!(10071200, "Builtin variable '$$CLUSTER_TIME' is not available"),
        },
        "USER_ROLES" if let Some(roles) = &cx.user_roles => {
            constant_path(Value::Array(roles.as_raw()), &path)?
        }
        // What a search service tells of a search; there is none here.
        "SEARCH_META" => Expr(Node::Constant(Constant::MISSING)),
        "DESCEND" | "PRUNE" | "KEEP" if cx.redact => {
            let word = match name {
                "DESCEND" => "descend",
                "PRUNE" => "prune",
                _ => "keep",
            };
            constant_path(Value::String(word), &path)?
        }
        _ => bail!(17276, "Use of undefined variable: {name}"),
    })
}

/// Parses positional arguments: an array's elements, or one argument that is no array.
pub(crate) fn parse_arguments(
    name: &str,
    arity: Arity,
    argument: Value<'_>,
    cx: &mut ParseCx,
) -> Result<Vec<Expr>> {
    let args = match argument {
        Value::Array(array) => {
            array.values().map(|item| Expr::parse(item, cx)).collect::<Result<Vec<_>>>()?
        }
        single => vec![Expr::parse(single, cx)?],
    };
    let count = args.len();
    match arity {
        Arity::Exactly(n) if count != n => {
            bail!(16020, "Expression {name} takes exactly {n} arguments. {count} were passed in.")
        }
        Arity::Between(min, max) if count < min || count > max => bail!(
            28667,
            "Expression {name} takes at least {min} arguments, and at most {max}, but {count} were passed in."
        ),
        _ => Ok(args),
    }
}

/// Parses an object argument into one expression per field of the operator, [`Node::Absent`] where an
/// optional one is not given.
pub(crate) fn parse_named(
    name: &str,
    spec: &Named,
    argument: Value<'_>,
    cx: &mut ParseCx,
) -> Result<Vec<Expr>> {
    let fields = named_fields(name, spec, argument)?;
    let mut args = Vec::with_capacity(fields.len());
    for field in fields {
        args.push(match field {
            Some(value) => Expr::parse(value, cx)?,
            None => Expr(Node::Absent),
        });
    }
    Ok(args)
}

/// Sorts the fields of an object argument into the operator's order, and checks that they are known and
/// complete.
pub(crate) fn named_fields<'v>(
    name: &str,
    spec: &Named,
    argument: Value<'v>,
) -> Result<Vec<Option<Value<'v>>>> {
    let Value::Document(doc) = argument else {
        bail!(
            spec.not_object_code(),
            "{name} only supports an object as its argument, found: {}",
            argument.type_name()
        );
    };
    let mut found = vec![None; spec.fields.len()];
    for element in doc.iter() {
        match spec.fields.iter().position(|(field, _)| *field == element.key()) {
            Some(at) => found[at] = Some(element.value()),
            None => bail!(Code(spec.unknown), "Unrecognized argument to {name}: {}", element.key()),
        }
    }
    for ((field, missing), value) in spec.fields.iter().zip(&found) {
        if *missing != 0 && value.is_none() {
            bail!(Code(*missing), "Missing '{field}' parameter to {name}");
        }
    }
    Ok(found)
}

impl Named {
    fn not_object_code(&self) -> Code {
        Code(self.not_object)
    }
}
